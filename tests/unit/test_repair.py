"""A ring without a peer that died: the others keep their layers, the lost ones go where that costs least."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

from shardp2p.errors import LocalProtocolError, PeerUnavailableError
from shardp2p.scheduler.holders import Holder
from shardp2p.scheduler.plan import Plan, Stage
from shardp2p.scheduler.repair import Repair, repair
from shardp2p.scheduler.topology import Topology
from shardp2p.vocabulary import LayerRange, ModelId, PeerId


def holder(name: str, layers: str, **changes: object) -> Holder:
    held = Holder(PeerId(name), LayerRange.parse(layers), 0.01, cache_rows=9, free_cache_rows=9, context_tokens=100)
    return replace(held, **changes)  # type: ignore[arg-type]


def ring(*stages: str) -> Plan:
    """`a=0:3` is a stage."""
    parts = [stage.partition("=") for stage in stages]
    made = tuple(Stage(PeerId(name), LayerRange.parse(layers)) for name, _, layers in parts)
    return Plan(ModelId("tiny"), "ab" * 32, "float32", 100, made)


def links(**delays_ms: float) -> Topology:
    measured = {(PeerId(one), PeerId(other)): 0.05 for one, other in permutations("abcdexyz", 2)}
    for pair, delay_ms in delays_ms.items():
        measured[PeerId(pair[0]), PeerId(pair[1])] = measured[PeerId(pair[1]), PeerId(pair[0])] = delay_ms / 1000
    return Topology([], measured)


def mended(plan: Plan, dead: str, *holders: Holder, topology: Topology | None = None, **options: object) -> Repair:
    answers = [
        repair(plan, PeerId(dead), order, topology or links(), driver=plan.stages[0].peer_id, **options)  # type: ignore[arg-type]
        for order in (holders, tuple(reversed(holders)))
    ]
    assert answers[0] == answers[1]
    return answers[0]


def told(stages: tuple[Stage, ...]) -> list[str]:
    return [f"{stage.peer_id}={stage.layers}" for stage in stages]


RING = ring("a=0:2", "b=2:4", "c=4:6")


def test_a_spare_takes_the_lost_layers_and_the_others_keep_theirs() -> None:
    answer = mended(RING, "b", holder("a", "0:2"), holder("c", "4:6"), holder("x", "0:6"))
    assert told(answer.plan.stages) == ["a=0:2", "x=2:4", "c=4:6"]
    assert told(answer.new_stages) == ["x=2:4"]
    assert answer.reasons == ("x takes the layers 2:4 of b: it is a spare",)


def test_the_spare_nearest_to_the_neighbours_is_taken() -> None:
    spares = [holder("x", "2:4"), holder("y", "2:4"), holder("z", "2:4", layer_s=0.001)]
    answer = mended(RING, "b", *spares, topology=links(ay=5, yc=5))
    assert told(answer.new_stages) == ["y=2:4"]


def test_a_neighbour_that_holds_the_lost_layers_is_cheaper_than_a_stranger() -> None:
    answer = mended(RING, "b", holder("a", "0:4"), holder("c", "4:6"), holder("x", "2:4", layer_s=0.009))
    assert told(answer.plan.stages) == ["a=0:2", "a=2:4", "c=4:6"]
    assert answer.reasons == ("a takes the layers 2:4 of b: it is in the ring already and holds them too",)


def test_several_peers_share_what_no_one_holds_alone() -> None:
    answer = mended(RING, "b", holder("x", "2:3"), holder("y", "3:6"))
    assert told(answer.new_stages) == ["x=2:3", "y=3:4"]


def test_the_first_and_the_last_stage_can_be_replaced() -> None:
    assert told(mended(RING, "a", holder("x", "0:6")).plan.stages) == ["x=0:2", "b=2:4", "c=4:6"]
    assert told(mended(RING, "c", holder("x", "0:6")).plan.stages) == ["a=0:2", "b=2:4", "x=4:6"]


def test_a_peer_that_was_two_stages_is_replaced_in_both() -> None:
    answer = mended(ring("b=0:2", "a=2:4", "b=4:6"), "b", holder("a", "2:4"), holder("x", "0:2"), holder("y", "3:6"))
    assert told(answer.plan.stages) == ["x=0:2", "a=2:4", "y=4:6"]


@pytest.mark.parametrize(
    "change",
    [
        {"state": "loading"},
        {"state": "draining"},
        {"dtype": "bfloat16"},
        {"reachability": "unreachable"},
        {"free_cache_rows": 4},
        {"context_tokens": 50},
        {"peer_id": PeerId("failed")},
        {"peer_id": PeerId("b")},
        {"layers": LayerRange(0, 3)},
    ],
)
def test_layers_that_nobody_can_take_are_named(change: dict[str, object]) -> None:
    missing = "3:4" if "layers" in change else "2:4"
    with pytest.raises(PeerUnavailableError, match=f"b is gone and nobody else can run the layers {missing} of tiny"):
        mended(
            RING, "b", replace(holder("x", "2:4"), **change), cache_rows=5, avoid={PeerId("failed"): "failed before"}
        )


def test_when_the_driver_died_whoever_takes_the_first_layers_drives() -> None:
    spares = [holder("x", "0:2"), holder("y", "0:2")]
    assert told(mended(RING, "a", *spares, topology=links(xb=5, cx=5)).new_stages) == ["x=0:2"]
    assert told(mended(RING, "a", *spares, topology=links(yb=5, cy=5)).new_stages) == ["y=0:2"]
    assert told(mended(ring("a=0:6"), "a", *spares, holder("z", "2:6")).new_stages) == ["x=0:2", "z=2:6"]


def test_a_repair_for_a_peer_outside_the_ring_is_our_bug() -> None:
    with pytest.raises(LocalProtocolError):
        mended(RING, "x", holder("y", "0:6"))
