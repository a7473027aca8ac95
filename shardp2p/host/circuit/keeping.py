"""Which relays a peer that cannot be dialled keeps places at. Pure.

Two, of different operators where there are. A relay that fails is left alone for a time that doubles; another takes
its place at once. One that answers late is not waited for: the next one is asked beside it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from shardp2p.host.circuit.candidates import Candidate, usable
from shardp2p.vocabulary import PeerId

WANTED: Final = 2
"""One to be reached over, and one for the moment in which the first is lost."""
MAX_CANDIDATES: Final = 64
"""More than will ever be tried; the nearest are taken."""
MAX_ASKING: Final = 4
"""Relays that are asked at the same time, the slow ones included."""
SLOW_S: Final = 2.0
"""A relay that has not answered for this long is no longer counted on."""
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
MAX_FAILURES: Final = 8
"""In a row; after them a relay is tried once in GIVEN_UP_S."""
GIVEN_UP_S: Final = 600.0
PROVEN_S: Final = 60.0
"""A place that was kept for this long clears what went wrong before."""
MAX_BROKEN: Final = 3
BROKEN_S: Final = 60.0
"""So many circuits that break within this time, and the relay is replaced where there is another."""
MAX_ADDRESSES: Final = 4
"""Of a relay that are announced with our own: a record has few places."""
SHORTEST_S: Final = 10.0
LONGEST_S: Final = 3600.0
"""What is believed of a reservation's lifetime: it is told in the relay's clock, which may be wrong by hours. A place
that ends earlier is noticed, since the relay ends its stream."""
MAX_RESTING: Final = 256


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask `candidate` for a place, and keep it until told otherwise or it is lost."""

    candidate: Candidate


@dataclass(frozen=True, slots=True)
class Release:
    """Give up the place at `peer`, or stop asking for one."""

    peer: PeerId
    reason: str


Command = Ask | Release


def renewal_s(lifetime_s: float) -> float:
    """How long after an answer to ask again, for a reservation that is said to last `lifetime_s`."""
    return 0.75 * min(max(lifetime_s, SHORTEST_S), LONGEST_S)


@dataclass(slots=True)
class _Relay:
    candidate: Candidate
    asked_at: float
    held_at: float | None = None
    broken_at: tuple[float, ...] = ()


@dataclass(slots=True)
class _Rest:
    until: float
    failures: int
    reason: str


class Keeping:
    """Decides for the peer `ours`. Times are those of any clock that does not go back."""

    def __init__(self, ours: PeerId) -> None:
        self._ours = ours
        self._is_wanted = False
        self._candidates: dict[PeerId, Candidate] = {}
        self._relays: dict[PeerId, _Relay] = {}
        self._resting: dict[PeerId, _Rest] = {}

    @property
    def held(self) -> tuple[Candidate, ...]:
        """The relays at which we have a place, the longest held first."""
        held = [(relay.held_at, relay.candidate) for relay in self._relays.values() if relay.held_at is not None]
        return tuple(candidate for _, candidate in sorted(held, key=lambda pair: pair[0]))

    @property
    def addresses(self) -> tuple[str, ...]:
        """The multiaddrs at which others reach us over the relays that we hold."""
        return tuple(
            f"{address}/p2p-circuit/p2p/{self._ours}"
            for candidate in self.held
            for address in candidate.addresses[:MAX_ADDRESSES]
        )

    @property
    def troubles(self) -> dict[PeerId, str]:
        """Why relays that we tried are left alone."""
        return {peer: rest.reason for peer, rest in self._resting.items()}

    def is_ours(self, peer: PeerId) -> bool:
        """Whether we have a place at `peer` or ask for one."""
        return peer in self._relays

    def set_candidates(self, candidates: Iterable[Candidate]) -> None:
        """These peers relay, as far as is known. A place that we have is kept while it works, named or not."""
        found = [made for made in map(usable, candidates) if made is not None and made.peer != self._ours]
        found.sort(key=lambda candidate: candidate.round_trip_s)
        self._candidates = {candidate.peer: candidate for candidate in found[:MAX_CANDIDATES]}

    def want(self, is_wanted: bool) -> None:
        """Whether we need to be reached over relays."""
        self._is_wanted = is_wanted

    def reserved(self, peer: PeerId, now: float) -> None:
        """`peer` keeps a place for us, anew or for longer."""
        relay = self._relays.get(peer)
        if relay is None:
            return
        if relay.held_at is None:
            relay.held_at = now
        elif now - relay.held_at >= PROVEN_S:
            self._resting.pop(peer, None)

    def failed(self, peer: PeerId, reason: str, now: float) -> None:
        """`peer` gave us no place, or we lost the one we had."""
        relay = self._relays.pop(peer, None)
        if relay is not None and relay.held_at is not None and now - relay.held_at >= PROVEN_S:
            self._resting.pop(peer, None)
        self._rest(peer, reason, now)

    def broke(self, peer: PeerId, now: float) -> None:
        """A circuit to us over `peer` ended against the will of both its ends."""
        relay = self._relays.get(peer)
        if relay is not None:
            recent = tuple(at for at in relay.broken_at if now - at < BROKEN_S)
            relay.broken_at = (*recent, now)[-MAX_BROKEN:]

    def step(self, now: float) -> list[Command]:
        """What to do now; ask again at `next_at`, and after every change."""
        if not self._is_wanted:
            return [self._release(peer, "relays are not needed any more") for peer in list(self._relays)]
        commands: list[Command] = self._drop_surplus()
        commands += self._drop_unreliable(now)
        while self._is_short(now) and self._asking < MAX_ASKING:
            chosen = self._choose(now)
            if chosen is None:
                break
            self._relays[chosen.peer] = _Relay(chosen, now)
            commands.append(Ask(chosen))
        return commands

    def next_at(self, now: float) -> float:
        """When something may have to be done although nothing changed; infinity for never."""
        if not self._is_wanted:
            return math.inf
        slow = [relay.asked_at + SLOW_S for relay in self._relays.values() if relay.held_at is None]
        rests = [self._resting[peer].until for peer in self._candidates if peer in self._resting]
        return min((at for at in (*slow, *rests) if at > now), default=math.inf)

    @property
    def _asking(self) -> int:
        return sum(relay.held_at is None for relay in self._relays.values())

    def _is_short(self, now: float) -> bool:
        counted = [
            relay for relay in self._relays.values() if relay.held_at is not None or now - relay.asked_at < SLOW_S
        ]
        if len(counted) < WANTED:
            return True
        # Two of one operator may go down together: a third of another one is worth asking.
        operators = {relay.candidate.operator for relay in counted}
        best = self._choose(now)
        return len(counted) == WANTED and len(operators) == 1 and best is not None and best.operator not in operators

    def _choose(self, now: float) -> Candidate | None:
        """Whom to ask next: of an operator that we do not have, without failures, near; else by chance, which differs
        from peer to peer, so that not all choose the same.
        """
        used = {relay.candidate.operator for relay in self._relays.values()}
        free = [
            candidate
            for peer, candidate in self._candidates.items()
            if peer not in self._relays and (peer not in self._resting or now >= self._resting[peer].until)
        ]
        return min(free, key=lambda candidate: self._preference(candidate, used), default=None)

    def _preference(self, candidate: Candidate, used: set[str]) -> tuple[bool, int, float, bytes]:
        rest = self._resting.get(candidate.peer)
        failures = rest.failures if rest else 0
        nearness = math.floor(candidate.round_trip_s / 0.05) if candidate.round_trip_s < math.inf else math.inf
        chance = hashlib.sha256(f"{self._ours} {candidate.peer}".encode()).digest()
        return candidate.operator in used, failures, nearness, chance

    def _drop_surplus(self) -> list[Command]:
        """Keep the longest held, but one of each operator before a second of any."""
        kept: list[Candidate] = []
        second: list[Candidate] = []
        for candidate in self.held:
            is_first = all(candidate.operator != other.operator for other in kept)
            (kept if is_first else second).append(candidate)
        return [self._release(candidate.peer, "enough others are held") for candidate in (kept + second)[WANTED:]]

    def _drop_unreliable(self, now: float) -> list[Command]:
        """Leave relays whose circuits break, once there is another to turn to."""
        commands: list[Command] = []
        for peer, relay in list(self._relays.items()):
            recent = [at for at in relay.broken_at if now - at < BROKEN_S]
            if len(recent) >= MAX_BROKEN and (len(self.held) > 1 or self._choose(now) is not None):
                reason = f"{MAX_BROKEN} circuits over it broke within {BROKEN_S:.0f} s"
                commands.append(self._release(peer, reason))
                self._rest(peer, reason, now)
        return commands

    def _release(self, peer: PeerId, reason: str) -> Release:
        del self._relays[peer]
        return Release(peer, reason)

    def _rest(self, peer: PeerId, reason: str, now: float) -> None:
        known = self._resting.pop(peer, None)
        failures = known.failures + 1 if known else 1
        pause_s = min(FIRST_PAUSE_S * 2.0 ** (failures - 1), LONGEST_PAUSE_S) if failures < MAX_FAILURES else GIVEN_UP_S
        if len(self._resting) >= MAX_RESTING:
            del self._resting[next(iter(self._resting))]
        self._resting[peer] = _Rest(now + pause_s, failures, reason)
