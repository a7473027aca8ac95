"""Two ledgers over paths that die, moves that cross and messages that are lost: every frame arrives once, in order.

Each schedule is a seeded walk over what a peer or a network can do next; the ledgers are the real ones, and the sides
around them do what host/link.py and host/carry/carrier.py do, a step at a time.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import pytest

from shardp2p.host.carry.ledger import Ledger

SCHEDULES = 3000
STEPS = 120


@dataclass
class Way:
    """Two queues between the sides, one each way. What a lost path holds is gone."""

    is_alive: bool = True
    queues: tuple[deque[tuple[object, ...]], deque[tuple[object, ...]]] = field(
        default_factory=lambda: (deque(), deque())
    )

    def put(self, to: int, item: tuple[object, ...]) -> None:
        if self.is_alive:
            self.queues[to].append(item)

    def die(self) -> None:
        self.is_alive = False
        for queue in self.queues:
            queue.clear()


@dataclass
class Attempt:
    way: Way
    turn: int


class Side:
    """One end of the connection that moves."""

    def __init__(self, number: int, way: Way) -> None:
        self.number = number
        self.ledger = Ledger(has_dialled=number == 0)
        self.wire: Way | None = way
        self.attempt: Attempt | None = None
        self.outbox: deque[bytes | int] = deque()  # frames, and counts that acknowledge
        self.again: deque[bytes] = deque()
        self.sent: list[bytes] = []
        self.delivered: list[bytes] = []

    @property
    def other(self) -> int:
        return 1 - self.number

    def speak(self) -> None:
        frame = b"%d:%d" % (self.number, len(self.sent))
        self.sent.append(frame)
        self.outbox.append(frame)

    def write(self) -> None:
        if self.wire is None or not (self.again or self.outbox):
            return
        if self.again:
            self.wire.put(self.other, ("frame", self.again.popleft()))
            return
        item = self.outbox.popleft()
        if isinstance(item, bytes):
            self.ledger.send(item)
            self.wire.put(self.other, ("frame", item))
        else:
            self.wire.put(self.other, ("acknowledge", item))

    def acknowledge(self) -> None:
        self.outbox.append(self.ledger.make_acknowledgement())

    def ask(self, way: Way) -> None:
        if self.attempt is None:
            self.attempt = Attempt(way, self.ledger.ask())
            way.put(self.other, ("resume", self.attempt.turn, self.ledger.received))

    def give_up(self) -> None:
        if self.attempt is not None:
            self.ledger.give_up(self.attempt.turn)
            self.attempt.way.put(self.other, ("end",))
            self.attempt = None

    def switch(self, way: Way, received: int) -> None:
        self.again = self.ledger.resume(received)
        if self.wire is not None:
            self.wire.put(self.other, ("end",))
        self.wire = way

    def take(self, way: Way) -> None:
        """Take the next thing that arrives over `way`, unless it is held back."""
        queue = way.queues[self.number]
        if not queue:
            return
        item = queue[0]
        if self._take_of_move(way, item) or way is not self.wire or self._take_of_wire(item):
            queue.popleft()

    def _take_of_wire(self, item: tuple[object, ...]) -> bool:
        """Whether it was taken: nothing is delivered while an attempt of ours is under way."""
        match item:
            case ("frame", bytes(frame)) if self.attempt is None:
                self.ledger.receive(len(frame))
                self.delivered.append(frame)
            case ("acknowledge", int(count)) if self.attempt is None:
                self.ledger.acknowledge(count)
            case ("end",):
                self.wire = None
            case _:
                return False
        return True

    def _take_of_move(self, way: Way, item: tuple[object, ...]) -> bool:
        """Whether it was about a move."""
        match item:
            case ("resume", int(turn), int(received)):
                if self.ledger.take_turn(turn):
                    self.attempt = None
                    way.put(self.other, ("resumed", turn, self.ledger.received))
                    self.switch(way, received)
                else:
                    way.put(self.other, ("refused", turn))
            case ("resumed", int(turn), int(received)):
                if self.attempt is not None and self.attempt.turn == turn and self.ledger.is_current(turn):
                    self.attempt = None
                    self.switch(way, received)
            case ("refused", int(turn)):
                if self.attempt is not None and self.attempt.turn == turn:
                    self.give_up()
            case _:
                return False
        return True

    def lose(self, way: Way) -> None:
        if self.wire is way:
            self.wire = None
        if self.attempt is not None and self.attempt.way is way:
            self.give_up()


class Schedule:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.ways = [Way()]
        self.sides = (Side(0, self.ways[0]), Side(1, self.ways[0]))

    def step(self) -> None:
        side = self.chance.choice(self.sides)
        match self.chance.choices(
            ["speak", "write", "take", "acknowledge", "ask", "time out", "die"], [6, 8, 14, 1, 1.5, 0.5, 0.5]
        )[0]:
            case "speak":
                side.speak()
            case "write":
                side.write()
            case "take":
                side.take(self.chance.choice(self.ways[-4:]))
            case "acknowledge":
                side.acknowledge()
            case "ask":
                self.ways.append(Way())
                side.ask(self.ways[-1])
            case "time out":
                side.give_up()
            case _:
                self.kill(self.chance.choice(self.ways[-4:]))

    def kill(self, way: Way) -> None:
        way.die()
        for side in self.sides:
            side.lose(way)

    def finish(self) -> None:
        """Let one last path live, and everything arrive."""
        for way in self.ways:
            self.kill(way)
        last = Way()
        self.ways = [last]
        dialler = self.sides[0]
        while not all(side.wire is last for side in self.sides):
            dialler.ask(last)  # again, while the other side has seen later turns
            for side in self.sides:
                side.take(last)
        while any(side.outbox or side.again or last.queues[side.number] for side in self.sides):
            for side in self.sides:
                side.write()
                side.take(last)


@pytest.mark.parametrize("block", range(6))
def test_every_frame_arrives_once_and_in_order(block: int) -> None:
    moves = 0
    for seed in range(block * SCHEDULES // 6, (block + 1) * SCHEDULES // 6):
        schedule = Schedule(seed)
        for _ in range(STEPS):
            schedule.step()
        before = [side.wire for side in schedule.sides]
        schedule.finish()
        one, other = schedule.sides
        assert one.delivered == other.sent, f"seed {seed}"
        assert other.delivered == one.sent, f"seed {seed}"
        moves += before[0] is not None and before[0] is before[1] and before[0] is not schedule.ways[0]
    assert moves > SCHEDULES // 60, "the schedules move too little to show anything"
