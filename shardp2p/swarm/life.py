"""The life of a serving peer, from joining to leaving: what it does next, and what it waits for, in words. Pure.

    joining -> placing -> loading -> serving -> draining -> left
                  ^__________|__________|   only where layers are missing, or loading failed

Driven by the calls of whoever owns it (`keeper/keeper.py`), with `now` in seconds; it answers with commands.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, Literal

from shardp2p.errors import LocalProtocolError
from shardp2p.vocabulary import LayerRange, ModelId

LifeState = Literal["joining", "placing", "loading", "serving", "draining", "left"]

SYNC_S: Final = 1.0
"""From the first neighbour until the view is thought whole."""
SETTLE_S: Final = 1.5
"""How long a choice is open to objection: claims of peers that start at the same moment cross within it."""
MAX_MOVES: Final = 2
"""How often a peer gives way before it loads all the same: it must not circle."""
RETRY_S: Final = 5.0
MAX_RETRY_S: Final = 300.0
"""Loading that failed, and a place that was not found, are tried again after so long, doubling up to the second."""
REVIEW_S: Final = 10.0
"""How often a serving peer looks whether layers are missing that it could hold."""
DRAIN_S: Final = 60.0
"""How long requests that run may take to finish once the peer is to leave."""


@dataclass(frozen=True, slots=True, order=True)
class Seat:
    """Layers of one model that a peer holds or means to hold."""

    model: ModelId
    digest: str
    layers: LayerRange

    def __str__(self) -> str:
        return f"{self.layers} of {self.model}"


Seats = tuple[Seat, ...]


@dataclass(frozen=True, slots=True)
class Choose:
    """Say where to sit, by `chosen`. A review may answer with the seats that are held already."""

    is_review: bool = False


@dataclass(frozen=True, slots=True)
class Load:
    """Hold exactly these seats: load what is new, release what is not among them; then `loaded` or `failed`."""

    seats: Seats


@dataclass(frozen=True, slots=True)
class Drain:
    """Take no new request, let those that run finish, then `drained`."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Say goodbye and end."""


Command = Choose | Load | Drain | Leave


class Life:
    """One peer's. `state`, `seats` and `waits_for` are what it publishes and shows."""

    def __init__(self, now: float, *, is_founder: bool = False) -> None:
        """A founder knows nobody to join, and waits for nobody."""
        self.state: LifeState = "joining"
        self.seats: Seats = ()
        self.waits_for = "nobody to join was named" if is_founder else "no peer of the swarm has answered yet"
        self.trouble = ""
        """What is in the way, in words that change only when the reason does; empty while all goes well."""
        self.has_no_place = False
        """Whether it looked last time for a place and nothing that it offers fits anywhere."""
        self.due_at = now if is_founder else float("inf")
        self._commands: deque[Command] = deque()
        self._is_choosing = False
        self._has_served = False
        self._moves = 0
        self._retry_s = RETRY_S

    def next_command(self) -> Command | None:
        """What is to be done, in order; None when there is nothing."""
        return self._commands.popleft() if self._commands else None

    # What happens.

    def connected(self, now: float) -> None:
        """A first neighbour answered: its view is on the way."""
        if self.state == "joining" and self.due_at > now + SYNC_S:
            self.due_at = now + SYNC_S
            self.trouble = ""
            self.waits_for = "the swarm's coverage is on its way"

    def not_joined(self, reason: str) -> None:
        """Nobody could be reached so far, for this reason; whoever dials goes on trying."""
        if self.state == "joining":
            self.waits_for = self.trouble = reason

    def tick(self, now: float) -> None:
        """Let time pass; worth calling at `due_at`."""
        if now < self.due_at:
            return
        self.due_at = float("inf")
        if self.state == "joining":
            self._place()
        elif self.state == "placing":
            self._ask()
        elif self.state == "serving":
            self._ask(is_review=True)
        elif self.state == "draining":
            self._leave()

    def chosen(self, seats: Seats, reason: str, now: float) -> None:
        """The answer to Choose: the seats to take, none when there is no place; and why, in words.

        Raises: LocalProtocolError when nothing was asked.
        """
        if not self._is_choosing:
            raise LocalProtocolError("a place was chosen that nobody asked for")
        self._is_choosing = False
        if self.state == "serving":
            self._reviewed(seats, reason, now)
        elif self.state == "placing" and not seats:
            self.seats = ()
            self.trouble, self.has_no_place = f"no place: {reason}", True
            self.waits_for = f"{self.trouble}; looking again in {self._retry_s:.0f} s"
            self._retry_later(now)
        elif self.state == "placing" and (seats == self.seats or self._moves >= MAX_MOVES):
            self._load(seats, reason)
        elif self.state == "placing":
            self._moves += bool(self.seats)
            self.seats = seats
            self.trouble, self.has_no_place = "", False
            self.waits_for = f"chose {named(seats)} ({reason}); waiting whether another peer takes them"
            self.due_at = now + SETTLE_S

    def progress(self, done_bytes: int, total_bytes: int) -> None:
        """So much of the layers is in memory."""
        if self.state == "loading" and total_bytes:
            self.waits_for = f"loading {named(self.seats)}: {done_bytes / total_bytes:.0%}"

    def loaded(self, now: float) -> None:
        """What was to be loaded serves."""
        if self.state == "loading":
            self.state = "serving"
            self._has_served = True
            self.waits_for = ""
            self._retry_s = RETRY_S
            self.due_at = now + REVIEW_S

    def failed(self, reason: str, now: float) -> None:
        """Loading did not work, for this reason: the place is given up and looked for again later."""
        if self.state == "loading":
            self.state, self.seats = "placing", ()
            self.trouble = f"loading failed: {reason}"
            self.waits_for = f"{self.trouble}; trying again in {self._retry_s:.0f} s"
            self._retry_later(now)

    def drain(self, now: float) -> None:
        """The peer is to leave, as soon as what it serves is done; a second call leaves at once."""
        if self.state == "draining":
            self._leave()
        elif self.state in ("serving", "loading") or (self.state == "placing" and self._has_served):
            # A peer that is about to move serves what it holds until then.
            self.state = "draining"
            self.waits_for = f"finishing the requests that run, at most {DRAIN_S:.0f} s"
            self.due_at = now + DRAIN_S
            self._commands.append(Drain())
        elif self.state != "left":
            self._leave()

    def drained(self) -> None:
        """Nothing runs any more."""
        if self.state == "draining":
            self._leave()

    # What follows.

    def _place(self) -> None:
        self.state = "placing"
        self._moves = 0
        self.waits_for = "looking where layers are needed"
        self._ask()

    def _ask(self, *, is_review: bool = False) -> None:
        if not self._is_choosing:
            self._is_choosing = True
            self._commands.append(Choose(is_review))

    def _load(self, seats: Seats, reason: str) -> None:
        self.state, self.seats = "loading", seats
        self.waits_for = f"loading {named(seats)}: {reason}"
        self._commands.append(Load(seats))

    def _reviewed(self, seats: Seats, reason: str, now: float) -> None:
        if seats == self.seats or not seats:
            self.due_at = now + REVIEW_S
            return
        self.state, self._moves, self.seats = "placing", 0, seats
        self.waits_for = f"moving to {named(seats)} ({reason}); waiting whether another peer takes them"
        self.due_at = now + SETTLE_S

    def _retry_later(self, now: float) -> None:
        self.due_at = now + self._retry_s
        self._retry_s = min(2 * self._retry_s, MAX_RETRY_S)
        self._moves = 0

    def _leave(self) -> None:
        self.state, self.due_at = "left", float("inf")
        self.waits_for = ""
        self._commands.append(Leave())


def named(seats: Seats) -> str:
    """Seats as a sentence has them: `layers 0:4 of llama and 10:12 of llama`."""
    return "layers " + " and ".join(map(str, seats)) if seats else "no layers"
