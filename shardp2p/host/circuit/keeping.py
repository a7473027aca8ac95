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
from shardp2p.host.circuit.resting import Resting
from shardp2p.vocabulary import PeerId

WANTED: Final = 2
"""One to be reached over, and one for the moment in which the first is lost."""
MAX_CANDIDATES: Final = 64
"""More than will ever be tried; the nearest are taken."""
MAX_ASKING: Final = 4
"""Relays that are asked at the same time, the slow ones included."""
SLOW_S: Final = 2.0
"""A relay that has not answered for this long is no longer counted on."""
PROVEN_S: Final = 60.0
"""A place that was kept for this long clears what went wrong before."""
MAX_STRIKES: Final = 3
STRIKES_S: Final = 60.0
"""So many failures of living peers to get through within this time, and a relay is replaced where there is another."""
DISTRUST_S: Final = 600.0
"""How long a relay that was replaced for that is not asked again, unless there is no other."""
MAX_BROKEN: Final = 64
"""Circuits that broke lately, whose peer may yet come back."""
MAX_ADDRESSES: Final = 4
"""Of a relay that are announced with our own: a record has few places."""
SHORTEST_S: Final = 10.0
LONGEST_S: Final = 3600.0
"""What is believed of a reservation's lifetime: it is told in the relay's clock, which may be wrong by hours. A place
that ends earlier is noticed, since the relay ends its stream."""


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
    strikes: tuple[float, ...] = ()


class Keeping:
    """Decides for the peer `ours`. Times are those of any clock that does not go back."""

    def __init__(self, ours: PeerId) -> None:
        self._ours = ours
        self._is_wanted = False
        self._candidates: dict[PeerId, Candidate] = {}
        self._relays: dict[PeerId, _Relay] = {}
        self._resting = Resting()
        self._distrusted: dict[PeerId, float] = {}  # until when; at most as many as can be held in that time
        self._broken: dict[PeerId, tuple[PeerId, float]] = {}  # by the peer at the other end

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
        return self._resting.reasons

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
            self._resting.forgive(peer)

    def failed(self, peer: PeerId, reason: str, now: float) -> None:
        """`peer` gave us no place, or we lost the one we had."""
        relay = self._relays.pop(peer, None)
        if relay is not None and relay.held_at is not None and now - relay.held_at >= PROVEN_S:
            self._resting.forgive(peer)
        self._resting.failed(peer, reason, now)

    def came_back(self, peer: PeerId, now: float) -> None:
        """A relay that rests is connected anew."""
        self._resting.hurry(peer, now)

    def broke(self, relay: PeerId, peer: PeerId, now: float) -> None:
        """A circuit to us from `peer` over `relay` ended against the will of both. Whose fault it was shows when the
        peer comes back: one that died does not.
        """
        self._broken.pop(peer, None)
        if len(self._broken) >= MAX_BROKEN:
            del self._broken[next(iter(self._broken))]
        self._broken[peer] = relay, now

    def came(self, peer: PeerId, now: float) -> None:
        """`peer` made a circuit to us."""
        relay, at = self._broken.pop(peer, (None, now))
        if relay is not None and now - at < STRIKES_S:
            self.distrust(relay, now)

    def distrust(self, peer: PeerId, now: float) -> None:
        """Somebody who lives did not get through to us over the relay `peer`."""
        relay = self._relays.get(peer)
        if relay is not None:
            recent = tuple(at for at in relay.strikes if now - at < STRIKES_S)
            relay.strikes = (*recent, now)[-MAX_STRIKES:]

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
        rests = [*map(self._resting.until, self._candidates), *self._distrusted.values()]
        return min((at for at in (*slow, *rests) if at > now), default=math.inf)

    @property
    def _asking(self) -> int:
        return sum(relay.held_at is None for relay in self._relays.values())

    def _is_short(self, now: float) -> bool:
        counted = [
            relay
            for relay in self._relays.values()
            if (relay.held_at is not None or now - relay.asked_at < SLOW_S) and not self._is_unreliable(relay, now)
        ]
        if len(counted) < WANTED:
            return True
        # Two of one operator may go down together: a third of another one is worth asking.
        operators = {relay.candidate.operator for relay in counted}
        best = self._choose(now)
        return len(counted) == WANTED and len(operators) == 1 and best is not None and best.operator not in operators

    def _choose(self, now: float) -> Candidate | None:
        """Whom to ask next: of an operator that we lack, without failures, near; else by chance, so choices differ."""
        used = {relay.candidate.operator for relay in self._relays.values()}
        free = [
            candidate
            for peer, candidate in self._candidates.items()
            if peer not in self._relays and now >= self._resting.until(peer)
        ]
        trusted = [candidate for candidate in free if now >= self._distrusted.get(candidate.peer, now)]
        return min(
            trusted if trusted or self._relays else free,
            key=lambda candidate: self._preference(candidate, used),
            default=None,
        )

    def _preference(self, candidate: Candidate, used: set[str]) -> tuple[bool, int, float, bytes]:
        nearness = math.floor(candidate.round_trip_s / 0.05) if candidate.round_trip_s < math.inf else math.inf
        chance = hashlib.sha256(f"{self._ours} {candidate.peer}".encode()).digest()
        return candidate.operator in used, self._resting.failures(candidate.peer), nearness, chance

    def _drop_surplus(self) -> list[Command]:
        """Keep the longest held, but one of each operator before a second of any."""
        kept: list[Candidate] = []
        second: list[Candidate] = []
        for candidate in self.held:
            is_first = all(candidate.operator != other.operator for other in kept)
            (kept if is_first else second).append(candidate)
        return [self._release(candidate.peer, "enough others are held") for candidate in (kept + second)[WANTED:]]

    def _drop_unreliable(self, now: float) -> list[Command]:
        """Leave relays over which peers do not get through, once there is another place."""
        commands: list[Command] = []
        for candidate in self.held:
            if self._is_unreliable(self._relays[candidate.peer], now) and len(self.held) > 1:
                reason = f"{MAX_STRIKES} circuits over it broke within {STRIKES_S:.0f} s"
                commands.append(self._release(candidate.peer, reason))
                self._resting.failed(candidate.peer, reason, now)
                still = {peer: until for peer, until in self._distrusted.items() if until > now}
                self._distrusted = still | {candidate.peer: now + DISTRUST_S}
        return commands

    def _is_unreliable(self, relay: _Relay, now: float) -> bool:
        return sum(now - at < STRIKES_S for at in relay.strikes) >= MAX_STRIKES

    def _release(self, peer: PeerId, reason: str) -> Release:
        del self._relays[peer]
        return Release(peer, reason)
