"""How a peer's memory is shared among the models of a swarm."""

from __future__ import annotations

from shardp2p.scheduler.holders import Holder
from shardp2p.scheduler.sharing import Offer, share
from shardp2p.scheduler.topology import ModelShape, Topology
from shardp2p.vocabulary import LayerRange, ModelId, PeerId

ME = PeerId("me")
NOWHERE = Topology([])


def offer(name: str, *held: str, layers: int = 6, room_bytes: int = 10, demand: float = 1.0) -> Offer:
    shape = ModelShape(ModelId(name), name * 64, layers, room_bytes, 10)
    coverage = tuple(Holder(PeerId(f"p{at}"), LayerRange.parse(part), 0.01) for at, part in enumerate(held))
    return Offer(shape, room_bytes, 0.01, coverage, demand=demand)


def shared(memory_bytes: int, *offers: Offer) -> dict[str, list[str]]:
    answers = [share(ME, memory_bytes, order, NOWHERE) for order in (offers, offers[::-1])]
    assert answers[0] == answers[1]
    return {one.shape.model: [str(part) for part in one.placement.ranges] for one in answers[0]}


def test_missing_layers_of_any_model_come_first() -> None:
    assert shared(20, offer("a", "0:6"), offer("b", "0:4")) == {"b": ["4:6"]}
    assert shared(40, offer("a", "0:3", "4:6"), offer("b", "0:3")) == {"a": ["3:4"], "b": ["3:6"]}


def test_the_model_that_is_soonest_whole_gets_the_memory() -> None:
    assert shared(20, offer("a"), offer("b", "0:4")) == {"b": ["4:6"]}


def test_what_is_left_after_gaps_spares_layers_that_one_peer_has() -> None:
    assert shared(40, offer("a", "0:6", "0:6"), offer("b", "0:4", "0:4")) == {"b": ["2:6"]}
    assert shared(50, offer("a", "0:6", "0:4"), offer("b", "0:6", "0:3")) == {"a": ["4:6"], "b": ["3:6"]}


def test_a_peer_with_much_memory_holds_several_models_whole() -> None:
    assert shared(1000, offer("a"), offer("b", "0:6")) == {"a": ["0:6"], "b": ["0:6"]}


def test_demand_decides_between_models_that_nobody_has() -> None:
    assert list(shared(30, offer("a"), offer("b", demand=3.0))) == ["b"]
    assert list(shared(30, offer("a", demand=3.0), offer("b"))) == ["a"]


def test_too_little_memory_for_one_layer_holds_nothing() -> None:
    assert shared(9, offer("a")) == {}


def test_layers_of_different_size_fill_the_memory() -> None:
    assert shared(25, offer("a", "1:6", room_bytes=20), offer("b", "0:5", room_bytes=5)) == {
        "a": ["0:1"],
        "b": ["5:6"],
    }
