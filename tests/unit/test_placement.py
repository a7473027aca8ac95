"""Where a joiner sits: scarce layers first, then the best ring, then the fewest holders, then its own bytes."""

from __future__ import annotations

import random
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardp2p.scheduler.holders import Holder, HolderState, counts
from shardp2p.scheduler.joining import best_by_start, laps_with
from shardp2p.scheduler.options import MAX_RANGES, SPARED
from shardp2p.scheduler.placement import place
from shardp2p.scheduler.ring_search import cheapest_ring
from shardp2p.scheduler.topology import Machine, ModelShape, Topology
from shardp2p.vocabulary import LayerRange, ModelId, PeerId


def shape(layers: int) -> ModelShape:
    return ModelShape(ModelId("tiny"), "ab" * 32, layers, layer_bytes=2**20, hidden_bytes=100)


def holder(name: str, layers: str, state: HolderState = "serving", layer_s: float = 0.01) -> Holder:
    return Holder(PeerId(name), LayerRange.parse(layers), layer_s, state)


def joiner(fits: int, layer_s: float = 0.01) -> Machine:
    return Machine(PeerId("joiner"), fits, layer_s)


NOWHERE = Topology([])


def placed(fits: int, *coverage: Holder, layers: int = 6, stored: tuple[LayerRange, ...] = ()) -> list[str]:
    return [str(part) for part in place(shape(layers), joiner(fits), coverage, NOWHERE, stored=stored).ranges]


def test_the_first_peer_takes_what_fits() -> None:
    assert placed(2) == ["0:2"]
    assert placed(6) == ["0:6"]
    assert placed(60) == ["0:6"]


def test_a_peer_without_room_holds_nothing_and_says_why() -> None:
    placement = place(shape(6), joiner(0), [], NOWHERE)
    assert (placement.ranges, placement.aim) == ((), "nothing")
    assert placement.reasons == ("no room for one layer of 1 MiB",)


def test_a_gap_is_filled_before_anything_else() -> None:
    held = [holder("a", "0:2"), holder("b", "4:6")]
    placement = place(shape(6), joiner(2), held, NOWHERE)
    assert (placement.ranges, placement.aim) == ((LayerRange(2, 4),), "coverage")
    assert "nobody holds the layers 2:4; it takes 2 of these 2" in placement.reasons


def test_loading_layers_count_and_draining_ones_and_the_joiners_own_past_do_not() -> None:
    assert placed(3, holder("a", "0:3", "loading")) == ["3:6"]
    assert placed(3, holder("a", "0:3", "placing")) == ["3:6"]
    assert placed(3, holder("a", "0:3", "draining"), holder("b", "3:6")) == ["0:3"]
    assert placed(3, holder("joiner", "0:3"), holder("b", "3:6")) == ["0:3"]


def test_gaps_that_lie_apart_are_filled_with_several_ranges() -> None:
    assert placed(2, holder("a", "0:2"), holder("b", "3:5")) == ["2:3", "5:6"]
    assert len(placed(8, *(holder(f"p{n}", f"{n}:{n + 1}") for n in range(1, 30, 2)), layers=30)) <= MAX_RANGES


def test_a_layer_on_one_peer_comes_before_a_faster_ring() -> None:
    held = [holder("a", "0:3"), holder("b", "0:3"), holder("c", "3:6")]
    assert placed(3, *held) == ["3:6"]


def test_the_place_that_makes_the_best_ring_clearly_faster_is_taken() -> None:
    held = [holder(f"{name}{copy}", part) for copy in range(2) for name, part in (("a", "0:3"), ("b", "3:6"))]
    held.append(holder("c", "0:3"))
    far = {(PeerId(one), PeerId(other)): 0.1 for one in ("a0", "a1", "c", "joiner") for other in ("b0", "b1")}
    near = {(PeerId(one), PeerId("joiner")): 0.001 for one in ("a0", "a1", "c")}
    topology = Topology([], far | near)
    placement = place(shape(6), joiner(3), held, topology)
    assert placement.ranges == (LayerRange(3, 6),)
    held.append(holder("d", "3:6"))
    held.append(holder("e", "3:6"))
    placement = place(shape(6), joiner(3), held, topology)
    assert (placement.ranges, placement.aim) == ((LayerRange(3, 6),), "speed")
    assert any("faster" in reason for reason in placement.reasons)


def test_where_no_place_is_faster_the_fewest_holders_decide() -> None:
    held = [holder(f"{name}{copy}", part) for copy in range(SPARED) for name, part in (("a", "0:3"), ("b", "3:6"))]
    placement = place(shape(6), joiner(3), [*held, holder("c", "0:3")], NOWHERE)
    assert (placement.ranges, placement.aim) == ((LayerRange(3, 6),), "redundancy")


def test_bytes_on_the_disk_decide_between_equal_places_only() -> None:
    assert placed(2, stored=(LayerRange(3, 5),)) == ["3:5"]
    assert placed(2, holder("a", "2:6"), stored=(LayerRange(3, 5),)) == ["0:2"]


@pytest.mark.parametrize("seed", range(30))
def test_joiners_one_by_one_hold_every_layer_as_often_as_their_memory_allows(seed: int) -> None:
    draw = random.Random(seed)
    layers = draw.choice((6, 12, 24))
    held: list[Holder] = []
    capacity = 0
    for number in range(draw.randint(3, 14)):
        fits = draw.randint(1, layers)
        capacity += fits
        placement = place(shape(layers), Machine(PeerId(f"p{number}"), fits, 0.01), held, NOWHERE)
        assert sum(map(len, placement.ranges)) == fits
        assert len(placement.ranges) <= MAX_RANGES
        held += [holder(f"p{number}", str(part)) for part in placement.ranges]
        assert min(counts(layers, [one.layers for one in held])) >= capacity // layers


@given(st.permutations(range(5)))
def test_the_order_of_records_is_none_of_its_business(order: list[int]) -> None:
    held = [holder("a", "0:2"), holder("b", "0:4"), holder("c", "1:3"), holder("d", "2:6"), holder("e", "3:5")]
    assert placed(3, *(held[at] for at in order)) == placed(3, *held)


@pytest.mark.parametrize("seed", range(25))
def test_laps_with_a_newcomer_are_those_of_the_ring_search(seed: int) -> None:
    draw, layers, me = random.Random(seed), 5, PeerId("joiner")
    held = []
    for number in range(6):
        start = draw.randrange(layers)
        held.append(
            holder(f"p{number}", f"{start}:{draw.randint(start + 1, layers)}", layer_s=draw.uniform(0.001, 0.02))
        )
    delays = {(a, b): draw.uniform(0.001, 0.05) for a, b in permutations([me, *(one.peer_id for one in held)], 2)}
    topology = Topology([], delays)
    without = cheapest_ring(layers, held, topology.delay_s)
    for width in range(1, layers + 1):
        laps = best_by_start(laps_with(layers, me, 0.005, held, topology.delay_s), width)
        for start, lap_s in enumerate(laps):
            parts = [f"{start}:{start + width}"]
            if start + width > layers:
                parts = [f"{start}:{layers}", f"0:{start + width - layers}"]
            ring = cheapest_ring(
                layers, [*held, *(holder(me, part, layer_s=0.005) for part in parts)], topology.delay_s
            )
            expected = ring.lap_s if ring is not None else float("inf")
            assert min(lap_s, without.lap_s if without is not None else float("inf")) == pytest.approx(expected)
