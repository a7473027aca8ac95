"""Peers that start at the same moment come apart by themselves, whatever they hear late."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from shardp2p.scheduler.holders import Holder, HolderState, counts
from shardp2p.scheduler.options import SPARED
from shardp2p.scheduler.placement import place
from shardp2p.scheduler.reseating import next_move, target_of
from shardp2p.scheduler.settling import must_move, resolve_conflict
from shardp2p.scheduler.topology import Machine, ModelShape, Topology
from shardp2p.vocabulary import LayerRange, ModelId, PeerId

ENDS = (("low", "0:3"), ("high", "3:6"))


def shape(layers: int) -> ModelShape:
    return ModelShape(ModelId("tiny"), "ab" * 32, layers, layer_bytes=1000, hidden_bytes=100)


def holder(name: str, layers: str, state: HolderState = "serving") -> Holder:
    return Holder(PeerId(name), LayerRange.parse(layers), 0.01, state)


@dataclass
class Joiner:
    """A peer that starts, claims, gives way and settles. `seen` is what it knows of others: (news, holders)."""

    machine: Machine
    ranges: tuple[LayerRange, ...] = ()
    state: HolderState = "placing"
    news: int = 0
    heard_at: float = 0.0
    moves: int = 0
    seen: dict[PeerId, tuple[int, tuple[Holder, ...]]] = field(default_factory=dict)

    def holders(self) -> tuple[Holder, ...]:
        peer = self.machine.peer_id
        return tuple(Holder(peer, layers, 0.01, self.state) for layers in self.ranges)

    def view(self) -> list[Holder]:
        return [*self.holders(), *(holder for _, held in self.seen.values() for holder in held)]


class Start:
    """Joiners whose news of one another take up to `delay_s`, each its own time, so that they arrive in any order."""

    def __init__(self, seed: int, layers: int, fits: Sequence[int], spread_s: float, delay_s: float) -> None:
        self.random = random.Random(seed)
        self.shape = shape(layers)
        machines = [Machine(PeerId(f"{self.random.getrandbits(40):x}"), room, 0.01) for room in fits]
        self.topology = Topology(machines)
        self.delay_s = delay_s
        self.joiners = {machine.peer_id: Joiner(machine) for machine in machines}
        self.events: list[tuple[float, int, str, PeerId, tuple[PeerId, int, tuple[Holder, ...]] | None]] = []
        for peer in self.joiners:
            self.later(self.random.uniform(0, spread_s), "start", peer)

    def later(
        self, at: float, what: str, peer: PeerId, news: tuple[PeerId, int, tuple[Holder, ...]] | None = None
    ) -> None:
        heapq.heappush(self.events, (at, self.random.getrandbits(60), what, peer, news))

    def announce(self, now: float, joiner: Joiner) -> None:
        joiner.news += 1
        for peer in self.joiners:
            if peer != joiner.machine.peer_id:
                news = joiner.machine.peer_id, joiner.news, joiner.holders()
                self.later(now + self.random.uniform(0, self.delay_s), "hear", peer, news)

    def claim(self, now: float, joiner: Joiner, ranges: tuple[LayerRange, ...], state: HolderState) -> None:
        joiner.ranges, joiner.state, joiner.heard_at = ranges, state, now
        self.announce(now, joiner)
        if state == "placing":
            self.later(now + 1.1 * self.delay_s, "check", joiner.machine.peer_id)

    def run(self) -> None:
        while self.events:
            now, _, what, peer, news = heapq.heappop(self.events)
            joiner = self.joiners[peer]
            if what == "start":
                placement = place(self.shape, joiner.machine, joiner.view(), self.topology)
                self.claim(now, joiner, placement.ranges, "placing")
            elif what == "hear" and news is not None:
                sender, number, held = news
                known = joiner.seen.get(sender, (0, ()))
                if number > known[0]:
                    joiner.seen[sender] = (number, held)
                    if [one.layers for one in held] != [one.layers for one in known[1]]:
                        joiner.heard_at = now
            elif what == "check" and joiner.state == "placing":
                self.check(now, joiner)

    def check(self, now: float, joiner: Joiner) -> None:
        if now - joiner.heard_at < self.delay_s:
            self.later(joiner.heard_at + 1.1 * self.delay_s, "check", joiner.machine.peer_id)
            return
        better = resolve_conflict(self.shape, joiner.machine.peer_id, joiner.view())
        if better is None:
            self.claim(now, joiner, joiner.ranges, "loading")
        else:
            joiner.moves += 1
            self.claim(now, joiner, better.ranges, "placing" if joiner.moves < 2 else "loading")


def settled(seed: int) -> tuple[Start, list[int]]:
    """Eight peers that started together, once they have settled; and how much each holds."""
    draw = random.Random(seed)
    layers = draw.choice((6, 12, 24, 30))
    fits = [draw.randint(1, layers // 2) for _ in range(8)]
    fits[0] += max(0, layers - sum(fits))
    start = Start(seed, layers, fits, spread_s=draw.choice((0.0, 1.0, 10.0)), delay_s=draw.choice((0.5, 3.0, 6.0)))
    start.run()
    return start, fits


@pytest.mark.parametrize("seed", range(40))
def test_peers_that_start_together_hold_every_layer_as_often_as_their_memory_allows(seed: int) -> None:
    start, fits = settled(seed)
    layers = start.shape.layers
    ranges = [layers for joiner in start.joiners.values() for layers in joiner.ranges]
    assert min(counts(layers, ranges)) >= min(sum(fits) // layers, SPARED)
    assert min(counts(layers, ranges)) >= sum(fits) // layers - 1
    for joiner in start.joiners.values():
        assert joiner.moves <= 2
        assert sum(map(len, joiner.ranges)) == joiner.machine.fits_layers
        assert joiner.state == "loading"


@pytest.mark.parametrize("seed", range(40))
def test_moves_for_speed_end_where_every_layer_is_on_as_many_peers_as_before(seed: int) -> None:
    start, fits = settled(seed)
    layers = start.shape.layers
    holders = [Holder(peer, part, 0.01) for peer, joiner in start.joiners.items() for part in joiner.ranges]
    target = target_of(start.shape, holders, start.topology)
    assert target is not None
    for _ in range(3 * len(fits)):
        move = next_move(start.shape, holders, start.topology, target, may_slow=True)
        if move is None:
            break
        holders = [one for one in holders if one.peer_id != move.peer_id]
        assert min(counts(layers, [one.layers for one in holders])) > 0
        holders += [Holder(move.peer_id, part, 0.01) for part in move.placement.ranges]
    else:
        pytest.fail("the peers never came to rest")
    assert min(counts(layers, [one.layers for one in holders])) >= min(sum(fits) // layers, SPARED)


def test_of_two_equal_claims_one_gives_way_and_both_agree_which() -> None:
    claims = [holder("a", "0:3", "placing"), holder("b", "0:3", "placing")]
    answers = {peer: resolve_conflict(shape(6), PeerId(peer), claims) for peer in "ab"}
    (mover,) = [peer for peer, answer in answers.items() if answer is not None]
    moved = answers[mover]
    assert moved is not None
    assert moved.ranges == (LayerRange(3, 6),)
    assert "others chose the layers 0:3" in moved.reasons[0]
    assert resolve_conflict(shape(6), PeerId(mover), list(reversed(claims))) == moved


def test_a_claim_gives_way_to_layers_that_are_loading_and_never_the_other_way() -> None:
    claims = [holder("a", "0:3", "loading"), holder("b", "0:3", "placing")]
    assert resolve_conflict(shape(6), PeerId("a"), claims) is None
    moved = resolve_conflict(shape(6), PeerId("b"), claims)
    assert moved is not None
    assert moved.ranges == (LayerRange(3, 6),)


def test_claims_that_do_not_collide_stay() -> None:
    claims = [holder("a", "0:3", "placing"), holder("b", "3:6", "placing")]
    assert [resolve_conflict(shape(6), PeerId(peer), claims) for peer in "ab"] == [None, None]
    assert resolve_conflict(shape(6), PeerId("stranger"), claims) is None


@pytest.mark.parametrize(("holders", "gives_way"), [(2, True), (3, True), (4, True), (20, False)])
def test_a_claim_gives_way_for_one_holder_less_only_where_that_is_much(holders: int, gives_way: bool) -> None:
    others = [holder(f"{end}{number}", layers) for number in range(holders) for end, layers in ENDS]
    del others[-2:]
    held = [*others, holder("twin", "0:3"), holder("a", "0:3", "placing")]
    assert (resolve_conflict(shape(6), PeerId("a"), held) is not None) == gives_way


def test_a_peer_that_runs_stays_while_nothing_is_missing() -> None:
    held = [holder("a", "0:6"), holder("b", "0:6"), holder("c", "0:6")]
    assert not any(must_move(shape(6), PeerId(peer), held) for peer in "abc")


def test_when_layers_are_lost_only_peers_that_nobody_needs_move_and_no_more_than_it_takes() -> None:
    held = [*(holder(name, "0:3") for name in "abcd"), holder("e", "3:4")]
    movers = [peer for peer in "abcde" if must_move(shape(6), PeerId(peer), held)]
    assert len(movers) == 1
    assert movers[0] in "abcd"
    assert not any(must_move(shape(6), PeerId(peer), [holder("a", "0:3"), holder("e", "3:4")]) for peer in "ae")


def test_layers_that_are_coming_are_not_missing_and_those_that_leave_are() -> None:
    held = [holder("a", "0:3"), holder("b", "0:3"), holder("c", "3:6", "loading")]
    assert not any(must_move(shape(6), PeerId(peer), held) for peer in "ab")
    held[2] = holder("c", "3:6", "draining")
    assert sum(must_move(shape(6), PeerId(peer), held) for peer in "abc") == 1
