"""What each side of an attempt sends and dials, and when, in thousands of seeded schedules between two machines."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from shardp2p.host.addresses import Endpoint
from shardp2p.host.punch.attempt import (
    EAGER_S,
    EAGER_TRIES,
    EXCHANGE_S,
    PATIENT_S,
    PLAIN_AFTER_S,
    ROUND_S,
    ROUNDS,
    TRY_S,
    Action,
    Answer,
    Ask,
    Attempt,
    Dial,
    End,
    SaySync,
    StopDials,
)

OURS: Endpoint = ("45.45.0.1", 4001)
THEIRS: Endpoint = ("45.45.0.2", 4001)
THEIR_GUESS: Endpoint = ("45.45.0.2", 50000)


def make(
    *, is_starter: bool, own: tuple[Endpoint, ...] = (OURS,), chance: Callable[[], float] = lambda: 0.5
) -> Attempt:
    return Attempt(is_starter=is_starter, own=lambda: own, choose=tuple, chance=chance)


def dialling_starter(now: float = 0.0) -> Attempt:
    attempt = make(is_starter=True)
    attempt.begin(now)
    attempt.receive_connect((THEIRS,), now)
    attempt.advance(now)
    assert attempt.state == "dialling"
    return attempt


def test_the_starter_dials_half_a_round_trip_after_sync() -> None:
    attempt = make(is_starter=True)
    assert attempt.begin(0.0) == (Ask((OURS,)),)
    attempt.note_asked(1.0)
    assert attempt.receive_connect((THEIRS,), 1.4) == (SaySync(),)
    assert attempt.wake_at == pytest.approx(1.6)
    assert attempt.advance(1.59) == ()
    assert attempt.advance(1.61) == (Dial(THEIRS),)


def test_who_answers_dials_when_sync_comes() -> None:
    attempt = make(is_starter=False)
    assert attempt.begin(0.0) == ()
    assert attempt.receive_connect((THEIRS, THEIR_GUESS), 0.1) == (Answer((OURS,)),)
    assert attempt.receive_sync(0.2) == (Dial(THEIRS), Dial(THEIR_GUESS))


def test_the_starter_alone_dials_from_a_fresh_port_too_and_once_a_round() -> None:
    starter = dialling_starter()
    plain = Dial(THEIRS, is_plain=True)
    assert plain in starter.advance(PLAIN_AFTER_S)
    starter.fail_dial(plain, "refused", PLAIN_AFTER_S + 0.1)
    now, again = PLAIN_AFTER_S, []
    while now < ROUND_S:
        now += 0.1
        again += starter.advance(now)
    assert plain not in again
    answering = make(is_starter=False)
    answering.begin(0.0)
    answering.receive_connect((THEIRS,), 0.0)
    answering.receive_sync(0.0)
    assert answering.wake_at == ROUND_S


def test_a_dial_that_failed_is_repeated_after_a_pause_that_chance_chooses() -> None:
    for chosen in (0.0, 0.5, 0.99):
        attempt = make(is_starter=False, chance=lambda chosen=chosen: chosen)  # type: ignore[misc]
        attempt.begin(0.0)
        attempt.receive_connect((THEIRS,), 0.0)
        attempt.receive_sync(0.0)
        for tries in range(1, 30):
            now = float(tries) / 5
            attempt.fail_dial(Dial(THEIRS), "refused", now)
            pause_s = chosen * (EAGER_S if tries < EAGER_TRIES else PATIENT_S)
            assert attempt.wake_at == pytest.approx(now + pause_s)
            assert attempt.advance(now + pause_s) == (Dial(THEIRS),)


def test_rounds_end_and_say_what_was_tried() -> None:
    attempt = dialling_starter()
    began_at = 0.0
    for round_number in range(1, ROUNDS + 1):
        assert attempt.round == round_number
        attempt.fail_dial(Dial(THEIRS), "refused", began_at + 1.0)
        while attempt.wake_at < began_at + ROUND_S:
            assert all(isinstance(action, Dial) for action in attempt.advance(attempt.wake_at))
        began_at = attempt.wake_at
        actions = attempt.advance(began_at)
        assert actions[0] == StopDials()
        if round_number < ROUNDS:
            assert actions[1:] == (Ask((OURS,)),)
            attempt.receive_connect((THEIRS, THEIR_GUESS), began_at)
            attempt.advance(began_at)
    (end,) = actions[1:]
    assert isinstance(end, End)
    assert "45.45.0.2:4001: refused" in end.reason
    assert "45.45.0.2:50000: no answer" in end.reason
    assert attempt.is_ended
    assert attempt.wake_at == math.inf
    assert attempt.advance(1e9) == ()


def test_silence_ends_it() -> None:
    for is_starter in (True, False):
        attempt = make(is_starter=is_starter)
        attempt.begin(0.0)
        assert attempt.advance(EXCHANGE_S - 0.1) == ()
        assert isinstance(attempt.advance(EXCHANGE_S)[-1], End)


def test_the_talk_may_end_once_both_dial_and_not_before() -> None:
    starter = dialling_starter()
    assert starter.fail_talk("the peer ended the stream", 0.1) == ()
    early = make(is_starter=True)
    early.begin(0.0)
    assert early.fail_talk("the peer ended the stream", 0.1) == (StopDials(), End("the peer ended the stream"))


@pytest.mark.parametrize("is_starter", [True, False])
def test_who_has_no_address_is_not_waited_for(is_starter: bool) -> None:
    attempt = make(is_starter=is_starter)
    attempt.begin(0.0)
    actions = attempt.receive_connect((), 0.1)
    if not is_starter:
        assert actions == (Answer((OURS,)),)  # the other side may still dial us
        actions = attempt.receive_sync(0.2)
    assert "no address" in actions[-1].reason  # type: ignore[union-attr]


def test_messages_out_of_turn_end_it() -> None:
    before_connect = make(is_starter=False)
    before_connect.begin(0.0)
    assert isinstance(before_connect.receive_sync(0.1)[-1], End)
    twice = make(is_starter=True)
    twice.begin(0.0)
    twice.receive_connect((THEIRS,), 0.1)
    assert isinstance(twice.receive_connect((THEIRS,), 0.1)[-1], End)
    assert isinstance(dialling_starter().receive_sync(0.1)[-1], End)


# Two machines, two routers, a relay and an Internet, all in one queue of events.


@dataclass
class Router:
    """Passes in what a session began; a premature SYN is dropped, or answered with RST."""

    answers_rst: bool
    is_open: bool = False


@dataclass
class Side:
    attempt: Attempt
    router: Router
    dialling_since: float | None = None
    dials: list[tuple[float, Dial]] = field(default_factory=list)
    is_connected: bool = False


class World:
    """Both ends of an attempt. A dial in flight is a SYN that arrives one way later, lost or not, and may be repeated.

    They connect when a SYN arrives where the other side has a dial under way: a simultaneous open.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.one_way_s = self.random.uniform(0.001, 0.15)
        self.jitter_s = self.random.choice([0.0, 0.02])
        self.loss = self.random.choice([0.0, 0.03])
        self.queue: list[tuple[float, int, Callable[[float], None]]] = []
        self.order = itertools.count()
        self.sides = [
            Side(
                Attempt(is_starter=is_starter, own=lambda: (OURS,), choose=tuple, chance=self.random.random),
                Router(self.random.random() < 0.5),
            )
            for is_starter in (True, False)
        ]
        self.messages = 0
        self.dials = 0

    def way_s(self) -> float:
        return self.one_way_s + self.random.random() * self.jitter_s

    def later(self, at: float, what: Callable[[float], None]) -> None:
        heapq.heappush(self.queue, (at, next(self.order), what))

    def do(self, index: int, actions: tuple[Action, ...], now: float) -> None:
        side = self.sides[index]
        for action in actions:
            if isinstance(action, Ask | Answer | SaySync):
                self.messages += 1
                if isinstance(action, Ask):
                    self.sides[1 - index].attempt.finish()
                    self.sides[1 - index].attempt = Attempt(
                        is_starter=False, own=lambda: (OURS,), choose=tuple, chance=self.random.random
                    )
                    self.sides[1 - index].dialling_since = None
                    self.do(1 - index, self.sides[1 - index].attempt.begin(now), now)
                # Over the relay: reliable, in order, two ways long.
                self.later(now + 2 * self.one_way_s, lambda at, a=action: self.hear(1 - index, a, at))  # type: ignore[misc]
            elif isinstance(action, Dial) and not action.is_plain:
                self.dials += 1
                side.router.is_open = True
                side.dialling_since = now
                self.syn(index, action, now, 1.0)
            elif isinstance(action, StopDials):
                side.dialling_since = None
        self.later(side.attempt.wake_at, lambda at: self.wake(index, at)) if side.attempt.wake_at < math.inf else None

    def hear(self, index: int, action: Action, now: float) -> None:
        attempt = self.sides[index].attempt
        if attempt.is_ended:
            return
        if isinstance(action, SaySync):
            self.do(index, attempt.receive_sync(now), now)
        else:
            assert isinstance(action, Ask | Answer)
            self.do(index, attempt.receive_connect(action.addresses, now), now)

    def syn(self, index: int, dial: Dial, began_at: float, again_s: float) -> None:
        now = began_at + (again_s - 1.0)
        if now - began_at > TRY_S:
            self.later(now, lambda at: self.fail(index, dial, began_at, at))
            return
        if self.random.random() >= self.loss:
            self.later(now + self.way_s(), lambda at: self.arrive(1 - index, dial, began_at, at))
        self.later(now + again_s, lambda at: self.repeat(index, dial, began_at, 2 * again_s))

    def repeat(self, index: int, dial: Dial, began_at: float, again_s: float) -> None:
        if self.sides[index].dialling_since == began_at and not self.sides[index].is_connected:
            self.syn(index, dial, began_at, again_s)

    def arrive(self, index: int, dial: Dial, began_at: float, now: float) -> None:
        side = self.sides[index]
        if side.router.is_open:
            if side.dialling_since is not None and not side.is_connected:
                for both in self.sides:
                    both.is_connected = True
                    both.attempt.finish()
        elif side.router.answers_rst:
            self.later(now + self.way_s(), lambda at: self.fail(1 - index, dial, began_at, at))

    def fail(self, index: int, dial: Dial, began_at: float, now: float) -> None:
        side = self.sides[index]
        if side.dialling_since == began_at and not side.attempt.is_ended:
            side.dialling_since = None
            self.do(index, side.attempt.fail_dial(dial, "refused", now), now)

    def wake(self, index: int, now: float) -> None:
        attempt = self.sides[index].attempt
        if now >= attempt.wake_at:
            self.do(index, attempt.advance(now), now)

    def run(self) -> float:
        self.do(0, self.sides[0].attempt.begin(0.0), 0.0)
        now = 0.0
        while self.queue and not all(side.is_connected for side in self.sides):
            now, _, what = heapq.heappop(self.queue)
            assert now < 100.0
            what(now)
        return now


@pytest.mark.parametrize("block", range(10))
def test_holes_come_about_whatever_the_routers_answer(block: int) -> None:
    rounds = []
    for seed in range(block * 300, block * 300 + 300):
        world = World(seed)
        took_s = world.run()
        assert all(side.is_connected for side in world.sides), seed
        assert world.dials <= 2 * ROUNDS * (ROUND_S / EAGER_S)
        rounds.append(world.sides[0].attempt.round)
        if world.sides[0].attempt.round == 1 and not world.loss and not any(s.router.answers_rst for s in world.sides):
            # CONNECT, CONNECT and SYNC, each two ways long, then a SYN, or the one that is sent again after a second.
            assert took_s <= 8 * world.one_way_s + 1.1
    assert rounds.count(1) >= 295
