"""One attempt to punch a hole: what to send over the relay, whom to dial when, and when to give up. Pure.

DCUtR: the side that was dialled over the relay starts. It asks for the other's addresses (CONNECT, CONNECT), so
measuring the round trip, says SYNC, and dials half a round trip later, when the other side has heard it and dials too.
Both SYNs cross, each opens its own router for the other, and one connection comes of both. A router that answers a
premature SYN with RST, or one that drops it, only costs another dial, at a moment that chance shifts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from shardp2p.host.addresses import Endpoint

ROUND_S: Final = 8.0
"""How long both sides go on dialling: a SYN that is lost is sent again after 1 s and 3 s."""
ROUNDS: Final = 2
"""A round that failed begins anew with fresh addresses; what two do not bring, no third does."""
EXCHANGE_S: Final = 10.0
"""For an answer over the relay."""
TRY_S: Final = 3.5
"""For one dial: time for two retransmissions, then a fresh SYN."""
EAGER_TRIES: Final = 20
EAGER_S: Final = 0.1
PATIENT_S: Final = 0.4
"""The longest pause before another dial, for the first tries and for all later ones."""
PLAIN_AFTER_S: Final = 0.3
"""When the starter also dials from a fresh port, as a client does: for who is public, though its router is not known
to be. By then a hole that can be punched is, as a rule."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Open a stream over the relay, in place of the one before, and send CONNECT with these addresses."""

    addresses: tuple[Endpoint, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """Send CONNECT with these addresses."""

    addresses: tuple[Endpoint, ...]


@dataclass(frozen=True, slots=True)
class SaySync:
    """Send SYNC."""


@dataclass(frozen=True, slots=True)
class Dial:
    """Dial: from the port we listen on and in the handshake role of our side; `is_plain` from any port, as dialler."""

    remote: Endpoint
    is_plain: bool = False


@dataclass(frozen=True, slots=True)
class StopDials:
    """The round is over: drop every dial."""


@dataclass(frozen=True, slots=True)
class End:
    """The attempt is over, without a connection. `reason` says why, in words."""

    reason: str


Action = Ask | Answer | SaySync | Dial | StopDials | End
State = Literal["new", "asking", "asked", "syncing", "waiting", "dialling", "ended"]


class Attempt:
    """One side of an attempt. The starter has all rounds; who answers has one, and the next comes with a new stream.

    `own` gives the addresses to tell, `choose` those to dial of the ones that the other side tells; `chance` gives
    numbers in [0, 1).
    """

    def __init__(
        self,
        *,
        is_starter: bool,
        own: Callable[[], tuple[Endpoint, ...]],
        choose: Callable[[Sequence[Endpoint]], tuple[Endpoint, ...]],
        chance: Callable[[], float],
    ) -> None:
        self.is_starter = is_starter
        self.state: State = "new"
        self.round = 0
        self.wake_at = math.inf
        """When `advance` is due."""
        self._own = own
        self._choose = choose
        self._chance = chance
        self._asked_at = 0.0
        self._round_trip_s = 0.0
        self._round_ends_at = math.inf
        self._remotes: tuple[Endpoint, ...] = ()
        self._due: dict[Dial, float] = {}
        self._tries: dict[Dial, int] = {}
        self._failures: dict[Endpoint, str] = {}

    @property
    def is_ended(self) -> bool:
        """Whether nothing more will come."""
        return self.state == "ended"

    @property
    def remotes(self) -> tuple[Endpoint, ...]:
        """The addresses of the other side that this round dials: what comes from them belongs to this attempt."""
        return self._remotes

    def begin(self, now: float) -> tuple[Action, ...]:
        """The first actions."""
        if self.is_starter:
            return self._ask(now)
        self.state = "asked"
        self.wake_at = now + EXCHANGE_S
        return ()

    def note_asked(self, now: float) -> None:
        """Our CONNECT has just left: the round trip counts from now."""
        if self.state == "asking":
            self._asked_at = now
            self.wake_at = now + EXCHANGE_S

    def receive_connect(self, addresses: Sequence[Endpoint], now: float) -> tuple[Action, ...]:
        """The other side told its addresses."""
        self._remotes = self._choose(addresses)
        if self.state == "asked":
            self.state = "syncing"
            self.wake_at = now + EXCHANGE_S
            return (Answer(self._own()),)
        if self.state != "asking":
            return self._end("the other side broke the rules of punching")
        if not self._remotes:
            return self._end("the other side knows no address at which it could be dialled")
        self.state = "waiting"
        self._round_trip_s = now - self._asked_at
        self.wake_at = now + self._round_trip_s / 2
        return (SaySync(),)

    def receive_sync(self, now: float) -> tuple[Action, ...]:
        """The other side says that it dials half a round trip from now, thus when we do."""
        if self.state != "syncing":
            return self._end("the other side broke the rules of punching")
        if not self._remotes:
            return self._end("the other side knows no address at which it could be dialled")
        return self._dial_all(now)

    def fail_talk(self, reason: str, now: float) -> tuple[Action, ...]:
        """The talk over the relay ended. Once both sides dial that changes nothing."""
        return () if self.state in ("dialling", "ended") else self._end(reason)

    def fail_dial(self, dial: Dial, reason: str, now: float) -> tuple[Action, ...]:
        """A dial came to nothing, or to a connection that did."""
        if self.state == "dialling" and dial.remote in self._remotes:
            self._failures[dial.remote] = reason
            if not dial.is_plain:
                tries = self._tries[dial]
                self._due[dial] = now + self._chance() * (EAGER_S if tries < EAGER_TRIES else PATIENT_S)
            self._set_alarm()
        return ()

    def advance(self, now: float) -> tuple[Action, ...]:
        """What is due by now."""
        if now < self.wake_at or self.is_ended:
            return ()
        if self.state == "waiting":
            return self._dial_all(now)
        if self.state != "dialling":
            return self._end(f"no word of the other side within {EXCHANGE_S:.0f} s")
        if now >= self._round_ends_at:
            if self.is_starter and self.round < ROUNDS:
                return (StopDials(), *self._ask(now))
            return self._end(self._why_not())
        return self._dial_due(now)

    def finish(self) -> None:
        """A connection stands."""
        self.state = "ended"
        self.wake_at = math.inf

    def _ask(self, now: float) -> tuple[Action, ...]:
        self.round += 1
        self.state = "asking"
        self._asked_at = now
        self._remotes = ()
        self.wake_at = now + EXCHANGE_S
        return (Ask(self._own()),)

    def _dial_all(self, now: float) -> tuple[Action, ...]:
        self.state = "dialling"
        self._round_ends_at = now + ROUND_S
        self._due = {Dial(remote): now for remote in self._remotes}
        self._tries = dict.fromkeys(self._due, 0)
        if self.is_starter:
            self._due |= {Dial(remote, is_plain=True): now + PLAIN_AFTER_S for remote in self._remotes}
        return self._dial_due(now)

    def _dial_due(self, now: float) -> tuple[Dial, ...]:
        due = tuple(dial for dial, at in self._due.items() if at <= now)
        for dial in due:
            del self._due[dial]
            self._tries[dial] = self._tries.get(dial, 0) + 1
        self._set_alarm()
        return due

    def _set_alarm(self) -> None:
        self.wake_at = min(self._round_ends_at, *self._due.values()) if self._due else self._round_ends_at

    def _why_not(self) -> str:
        tried = "; ".join(
            f"{host}:{port}: {self._failures.get((host, port), 'no answer')}" for host, port in self._remotes
        )
        return f"no hole came about within {self.round or 1} rounds of {ROUND_S:.0f} s ({tried})"

    def _end(self, reason: str) -> tuple[Action, ...]:
        self.finish()
        return (StopDials(), End(reason))
