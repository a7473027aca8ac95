"""Which relays a peer keeps places at: choice, replacement, back-off, and thousands of steps of misfortune."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from dataclasses import dataclass, field

import pytest

from shardp2p.host.circuit.candidates import Candidate
from shardp2p.host.circuit.keeping import (
    DISTRUST_S,
    MAX_ASKING,
    MAX_STRIKES,
    SLOW_S,
    WANTED,
    Ask,
    Keeping,
    Release,
    renewal_s,
)
from shardp2p.host.circuit.resting import GIVEN_UP_S, MAX_FAILURES
from shardp2p.identity.keys import Identity
from shardp2p.vocabulary import PeerId

OURS = Identity.from_seed(bytes(32)).peer_id
PEERS = [Identity.from_seed(bytes([number]) * 32).peer_id for number in range(1, 13)]


def candidate(number: int, network: int | None = None, round_trip_s: float = math.inf) -> Candidate:
    place = number if network is None else network
    return Candidate(PEERS[number], (f"/ip4/198.51.{place}.{number + 1}/tcp/4001",), round_trip_s=round_trip_s)


def keeping(*candidates: Candidate) -> Keeping:
    made = Keeping(OURS)
    made.set_candidates(candidates)
    made.want(True)
    return made


def asked(made: Keeping, now: float) -> list[PeerId]:
    commands = made.step(now)
    assert all(isinstance(command, Ask) for command in commands)
    return [command.candidate.peer for command in commands if isinstance(command, Ask)]


def hold_all(made: Keeping, now: float) -> list[PeerId]:
    peers = asked(made, now)
    for peer in peers:
        made.reserved(peer, now)
    return peers


def test_nothing_is_asked_before_a_relay_is_needed() -> None:
    made = Keeping(OURS)
    made.set_candidates([candidate(0)])
    assert made.step(0) == []
    assert made.next_at(0) == math.inf


def test_two_are_asked_of_different_operators() -> None:
    made = keeping(*(candidate(number, network=number // 3) for number in range(6)))
    first, second = hold_all(made, 0)
    assert PEERS.index(first) // 3 != PEERS.index(second) // 3
    assert made.step(1) == []
    assert made.next_at(1) == math.inf


def test_two_of_one_operator_are_better_than_one() -> None:
    made = keeping(candidate(0, network=7), candidate(1, network=7))
    assert len(hold_all(made, 0)) == 2


def test_second_of_one_operator_is_given_up_for_one_of_another() -> None:
    made = keeping(candidate(0, network=7), candidate(1, network=7))
    hold_all(made, 0)
    made.set_candidates([candidate(0, network=7), candidate(1, network=7), candidate(2, network=8)])
    assert asked(made, 5) == [PEERS[2]]
    made.reserved(PEERS[2], 5)
    assert [type(command) for command in made.step(5)] == [Release]
    assert {held.operator for held in made.held} == {"198.51.7.0/24", "198.51.8.0/24"}
    assert made.step(6) == []


def test_near_relays_are_preferred_and_equal_ones_differ_from_peer_to_peer() -> None:
    near_first = keeping(*(candidate(number, round_trip_s=0.3 if number < 8 else 0.01) for number in range(10)))
    assert set(asked(near_first, 0)) == {PEERS[8], PEERS[9]}
    choices = set()
    for ours in PEERS:
        one = Keeping(ours)
        one.set_candidates(candidate(number) for number in range(12))
        one.want(True)
        choices.add(tuple(asked(one, 0)))
    assert len(choices) > 6


def test_lost_relay_is_replaced_at_once() -> None:
    made = keeping(*map(candidate, range(3)))
    first, second = hold_all(made, 0)
    made.failed(first, "gone", 100)
    [third] = asked(made, 100)
    assert third not in (first, second)


def test_only_relay_that_is_lost_is_asked_again_after_a_second() -> None:
    made = keeping(candidate(0))
    hold_all(made, 0)
    made.failed(PEERS[0], "gone", 100)
    assert made.step(100.5) == []
    assert made.next_at(100.5) == pytest.approx(101)
    assert asked(made, 101) == [PEERS[0]]


def test_relay_that_does_not_answer_is_not_waited_for() -> None:
    made = keeping(*map(candidate, range(5)))
    slow = asked(made, 0)
    assert len(slow) == 2
    assert made.step(1) == []
    assert made.next_at(1) == SLOW_S
    assert len(asked(made, SLOW_S)) == 2
    assert asked(made, 2 * SLOW_S) == []  # MAX_ASKING are asked


def test_slow_relay_that_answers_after_others_is_given_up() -> None:
    made = keeping(*map(candidate, range(4)))
    slow = asked(made, 0)
    hold_all(made, SLOW_S)
    made.reserved(slow[0], SLOW_S + 1)
    assert made.step(SLOW_S + 1) == [Release(slow[0], "enough others are held")]


def test_tries_of_a_dead_relay_become_rare() -> None:
    made = keeping(candidate(0))
    now, tries = 0.0, []
    while now < 1000:
        if asked(made, now):
            tries.append(now)
            made.failed(PEERS[0], "refused", now)
        now = made.next_at(now)
    pauses = [later - earlier for earlier, later in itertools.pairwise(tries)]
    assert pauses[:5] == [1, 2, 4, 8, 16]
    assert pauses[MAX_FAILURES - 1] == GIVEN_UP_S
    assert made.troubles == {PEERS[0]: "refused"}


def test_relay_that_was_dead_for_long_is_asked_soon_after_it_comes_back() -> None:
    made, now = keeping(candidate(0)), 0.0
    for _ in range(MAX_FAILURES):
        assert asked(made, now) == [PEERS[0]]
        made.failed(PEERS[0], "no answer", now)
        now = made.next_at(now)
    assert now - GIVEN_UP_S > 0
    back_at = now - GIVEN_UP_S + 100
    assert asked(made, back_at) == []
    made.came_back(PEERS[0], back_at)
    assert asked(made, back_at) == []
    assert asked(made, made.next_at(back_at)) == [PEERS[0]]
    assert made.next_at(back_at) - back_at <= 2


def test_relay_over_which_living_peers_do_not_get_through_is_replaced() -> None:
    made = keeping(*map(candidate, range(3)))
    liar, other = hold_all(made, 0)
    for second in range(MAX_STRIKES):
        assert made.step(second) == []
        made.broke(liar, PEERS[9], second)
        made.came(PEERS[9], second + 0.5)
    commands = made.step(MAX_STRIKES)
    assert commands[0] == Release(liar, "3 circuits over it broke within 60 s")
    assert isinstance(commands[1], Ask)
    assert commands[1].candidate.peer not in (liar, other)


def test_relay_that_was_replaced_for_lying_is_asked_again_only_when_there_is_no_other() -> None:
    made = keeping(candidate(0), candidate(1))
    hold_all(made, 0)
    for _ in range(MAX_STRIKES):
        made.distrust(PEERS[0], 1)
    assert [type(command) for command in made.step(1)] == [Release]
    assert made.step(DISTRUST_S) == []
    assert made.next_at(DISTRUST_S) == DISTRUST_S + 1
    made.failed(PEERS[1], "gone", 500)
    assert asked(made, 500) == [PEERS[0]]
    assert asked(made, 501) == [PEERS[1]]


def test_peers_that_die_are_not_the_fault_of_the_relay() -> None:
    made = keeping(*map(candidate, range(3)))
    held = hold_all(made, 0)
    for number in range(3, 12):
        made.broke(held[0], PEERS[number], 1)
    assert made.step(2) == []


def test_unreliable_relay_is_kept_while_there_is_no_other() -> None:
    made = keeping(candidate(0))
    hold_all(made, 0)
    for _ in range(5):
        made.distrust(PEERS[0], 1)
    assert made.step(1) == []
    made.set_candidates([candidate(0), candidate(1)])
    assert asked(made, 2) == [PEERS[1]]
    assert made.step(3) == []
    made.reserved(PEERS[1], 3)
    [left] = made.step(3)
    assert isinstance(left, Release)
    assert left.peer == PEERS[0]


def test_relay_that_is_itself_behind_a_relay_or_is_us_is_no_candidate() -> None:
    behind = Candidate(PEERS[0], (f"/ip4/192.0.2.1/tcp/1/p2p/{PEERS[1]}/p2p-circuit/p2p/{PEERS[0]}",))
    another = Candidate(PEERS[2], (f"/ip4/192.0.2.1/tcp/1/p2p/{PEERS[3]}", "nonsense", "/ip4/192.0.2.1/tcp/0"))
    ourselves = Candidate(OURS, ("/ip4/192.0.2.1/tcp/1",))
    assert keeping(behind, another, ourselves).step(0) == []


def test_addresses_are_those_of_the_places_that_we_have() -> None:
    made = keeping(candidate(0))
    assert asked(made, 0) == [PEERS[0]]
    assert not made.addresses
    made.reserved(PEERS[0], 0)
    assert made.addresses == (f"/ip4/198.51.0.1/tcp/4001/p2p/{PEERS[0]}/p2p-circuit/p2p/{OURS}",)
    made.want(False)
    assert made.step(1) == [Release(PEERS[0], "relays are not needed any more")]
    assert not made.addresses


@pytest.mark.parametrize(("said_s", "renewed_s"), [(3600, 2700), (20, 15), (0, 7.5), (-7200, 7.5), (10**9, 2700)])
def test_renewal_neither_spins_nor_waits_too_long_whatever_the_relay_says(said_s: float, renewed_s: float) -> None:
    assert renewal_s(said_s) == renewed_s


@dataclass
class World:
    """Relays that live, die, fall silent and refuse, under one `Keeping`."""

    random: random.Random
    keeping: Keeping
    working: set[PeerId]
    now: float = 0.0
    answers: list[tuple[float, int, PeerId, bool]] = field(default_factory=list)
    open: dict[PeerId, int] = field(default_factory=dict)
    asks: int = 0
    number: int = 0

    def step(self) -> None:
        for command in self.keeping.step(self.now):
            if isinstance(command, Ask):
                self.ask(command.candidate.peer)
            else:
                del self.open[command.peer]
        assert sum(peer not in {held.peer for held in self.keeping.held} for peer in self.open) <= MAX_ASKING
        assert len(self.keeping.held) <= WANTED

    def ask(self, peer: PeerId) -> None:
        assert peer not in self.open, "asked twice"
        self.asks += 1
        self.number += 1
        self.open[peer] = self.number
        works = peer in self.working
        delay_s = self.random.uniform(0.05, 1.0) if works else self.random.choice([0.01, 8.0])
        heapq.heappush(self.answers, (self.now + delay_s, self.number, peer, works))

    def run_until(self, end: float) -> None:
        while True:
            next_answer = self.answers[0][0] if self.answers else math.inf
            at = min(next_answer, self.keeping.next_at(self.now))
            if at > end:
                break
            self.now = at
            while self.answers and self.answers[0][0] <= self.now:
                _, number, peer, works = heapq.heappop(self.answers)
                if self.open.get(peer) != number:
                    continue
                if works and peer in self.working:
                    self.keeping.reserved(peer, self.now)
                else:
                    del self.open[peer]
                    self.keeping.failed(peer, "no answer", self.now)
            self.step()
        self.now = end

    def kill(self, peer: PeerId) -> None:
        self.working.discard(peer)
        if peer in {held.peer for held in self.keeping.held}:
            self.run_until(self.now + self.random.uniform(0, 5))  # the connection's own heartbeat
            if self.open.pop(peer, None):
                self.keeping.failed(peer, "the relay has been silent", self.now)
                self.step()


@pytest.mark.parametrize("seed", range(20))
def test_two_are_held_again_ten_seconds_after_any_loss(seed: int) -> None:
    chance = random.Random(seed)
    made = keeping(*(candidate(number, network=number % 4) for number in range(8)))
    world = World(chance, made, set(PEERS[:8]))
    world.step()
    for _ in range(40):
        world.run_until(world.now + chance.uniform(1, 300))
        # One other relay is down whenever one that we hold dies.
        world.working = set(PEERS[:8]) - {chance.choice([peer for peer in PEERS[:8] if not made.is_ours(peer)])}
        world.kill(chance.choice(made.held).peer)
        world.run_until(world.now + 10)
        assert len(made.held) == 2, made.troubles
        assert {held.peer for held in made.held} <= world.working
    world.working = set(PEERS[:8])
    world.run_until(world.now + GIVEN_UP_S + 10)
    assert len({held.operator for held in made.held}) == 2
    assert world.asks < 40 * 4


@pytest.mark.parametrize("seed", range(5))
def test_asks_stay_rare_while_no_relay_works(seed: int) -> None:
    world = World(random.Random(seed), keeping(*map(candidate, range(4))), set())
    world.step()
    world.run_until(3600)
    assert world.asks <= 4 * (MAX_FAILURES + math.ceil(3600 / GIVEN_UP_S))
    world.working |= set(PEERS[:4])
    world.run_until(world.now + GIVEN_UP_S + 10)
    assert len(world.keeping.held) == 2
