"""The ring for a request: fast, with room, through peers that the user trusts; or an error that says why not."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

from shardp2p.errors import OverloadedError, PeerUnavailableError
from shardp2p.scheduler.holders import Holder
from shardp2p.scheduler.request_route import MAX_NAMED, RequestNeeds, Route, route_request
from shardp2p.scheduler.topology import Machine, ModelShape, Topology
from shardp2p.vocabulary import LayerRange, ModelId, PeerId

SHAPE = ModelShape(ModelId("tiny"), "ab" * 32, layers=6, layer_bytes=1000, hidden_bytes=100)
NOBODY = Topology([])


def holder(name: str, layers: str, **changes: object) -> Holder:
    held = Holder(
        PeerId(name), LayerRange.parse(layers), 0.01, "serving", cache_rows=100, free_cache_rows=100,
        context_tokens=100, addresses=(f"/memory/{name}",),
    )  # fmt: skip
    return replace(held, **changes)  # type: ignore[arg-type]


def links(**delays_ms: float) -> Topology:
    """`ab=5`: from a to b and back it takes 5 ms each way; other pairs 50 ms."""
    names = sorted({name for pair in delays_ms for name in pair})
    measured = {(PeerId(one), PeerId(other)): 0.05 for one in names for other in names if one != other}
    for pair, delay_ms in delays_ms.items():
        measured[PeerId(pair[0]), PeerId(pair[1])] = measured[PeerId(pair[1]), PeerId(pair[0])] = delay_ms / 1000
    return Topology([Machine(PeerId(name), 6, 0.01) for name in names], measured)


def ring(route: Route) -> list[tuple[str, str]]:
    return [(stage.peer_id, str(stage.layers)) for stage in route.plan.stages]


def reason(route: Route, peer: str) -> str:
    (choice,) = [choice for choice in route.choices if choice.peer_id == peer]
    return choice.reason


def test_the_ring_with_the_shortest_lap_is_taken_and_explained() -> None:
    held = [holder("a", "0:3"), holder("b", "3:6"), holder("c", "3:6")]
    for order in permutations(held):
        route = route_request(SHAPE, RequestNeeds(), order, links(ab=40, ac=5))
        assert ring(route) == [("a", "0:3"), ("c", "3:6")]
        assert route.driver == "a"
        assert route.lap_s == pytest.approx(0.07)
        assert reason(route, "a") == "drives, and runs layers 0:3 in 30.0 ms, 5.0 ms to the next stage"
        assert reason(route, "c") == "runs layers 3:6 in 30.0 ms, 5.0 ms to the driver"
        assert reason(route, "b") == "a lap through it takes at least 100.0 ms, 43% more"
    assert route.plan.stages[0].addresses == ("/memory/a",)
    assert (route.plan.model, route.plan.model_digest) == (SHAPE.model, SHAPE.digest)


def test_a_slow_peer_runs_as_few_of_its_layers_as_overlaps_allow() -> None:
    held = [holder("a", "0:5", layer_s=0.09), holder("b", "2:6")]
    assert ring(route_request(SHAPE, RequestNeeds(), held, links(ab=5))) == [("a", "0:2"), ("b", "2:6")]


def test_a_pinned_driver_pays_the_hops_from_and_to_itself() -> None:
    held = [holder("a", "0:6"), holder("b", "0:6")]
    route = route_request(SHAPE, RequestNeeds(driver=PeerId("x")), held, links(ax=30, bx=4))
    assert (ring(route), route.driver) == ([("b", "0:6")], "x")
    assert route.lap_s == pytest.approx(0.068)


def test_local_layers_are_run_by_the_driver_alone() -> None:
    held = [holder("a", "0:6"), holder("me", "0:2"), holder("b", "0:1")]
    needs = RequestNeeds(driver=PeerId("me"), local_layers=2)
    route = route_request(SHAPE, needs, held, NOBODY)
    assert ring(route) == [("me", "0:2"), ("a", "2:6")]
    assert reason(route, "b") == "holds only layers that the driver runs itself"
    with pytest.raises(PeerUnavailableError, match=r"layers 2:3 of tiny are missing: nobody holds them"):
        route_request(SHAPE, needs, [holder("a", "3:6"), holder("me", "0:2")], NOBODY)


@pytest.mark.parametrize(
    ("needs", "change", "why"),
    [
        (RequestNeeds(blocked=frozenset({PeerId("b")})), {}, "is blocked by you"),
        (RequestNeeds(allowed=frozenset({PeerId("a"), PeerId("c")})), {}, "is not among those you allow"),
        (RequestNeeds(avoid={PeerId("b"): "claims layers that it does not serve"}), {}, "claims layers that it does"),
        (RequestNeeds(), {"state": "loading"}, "still loads its layers"),
        (RequestNeeds(), {"state": "placing"}, "still loads its layers"),
        (RequestNeeds(), {"state": "draining"}, "takes no new request: it is leaving"),
        (RequestNeeds(), {"reachability": "unreachable"}, "cannot be reached from outside its network"),
        (RequestNeeds(cache_rows=50), {"free_cache_rows": 49}, "is full: 49 of 50 cache rows are free"),
    ],
)
def test_a_peer_that_must_not_serve_is_passed_over_with_the_reason(
    needs: RequestNeeds, change: dict[str, object], why: str
) -> None:
    held = [holder("a", "0:3"), holder("b", "3:6", **change), holder("c", "3:6")]
    route = route_request(SHAPE, needs, held, links(ab=1, ac=40))
    assert ring(route) == [("a", "0:3"), ("c", "3:6")]
    assert why in reason(route, "b")
    if "full" not in why:
        with pytest.raises(PeerUnavailableError) as caught:
            route_request(SHAPE, needs, held[:2], NOBODY)
        assert str(caught.value).startswith("layers 3:6 of tiny are missing: b (3:6) ")
        assert why in str(caught.value)


def test_a_swarm_without_room_is_busy_and_not_broken() -> None:
    held = [holder("a", "0:4", free_cache_rows=10), holder("b", "2:6")]
    busy = (
        r"tiny is busy: layers 0:2 have 10 of 100 cache rows free, and the request takes 20; "
        r"wait some seconds until others are done, or ask for 10 tokens less, as by a smaller --max-tokens"
    )
    with pytest.raises(OverloadedError, match=busy):
        route_request(SHAPE, RequestNeeds(cache_rows=20), held, NOBODY)
    with pytest.raises(PeerUnavailableError, match="layers 0:2 and 4:6"):
        route_request(SHAPE, RequestNeeds(cache_rows=20), [held[0], holder("b", "2:4")], NOBODY)


def test_a_request_for_which_waiting_is_no_use_is_told_so() -> None:
    held = [holder("a", "0:4", free_cache_rows=10), holder("b", "2:6")]
    too_long = (
        r"no room for so long a request: layers 0:6 have 10 of 100 cache rows free, and the request takes 120; "
        r"ask for 20 tokens less, as by a smaller --max-tokens$"
    )
    with pytest.raises(OverloadedError, match=too_long):
        route_request(SHAPE, RequestNeeds(cache_rows=120), held, NOBODY)


def test_layers_that_nobody_holds_are_named_with_what_to_do() -> None:
    with pytest.raises(PeerUnavailableError, match="nobody holds them; start one more peer"):
        route_request(SHAPE, RequestNeeds(), [holder("a", "0:2"), holder("b", "4:5")], NOBODY)
    with pytest.raises(PeerUnavailableError, match="layers 0:6 of tiny are missing: nobody holds them"):
        route_request(SHAPE, RequestNeeds(), [], NOBODY)


def test_an_error_names_a_bounded_number_of_peers() -> None:
    held = [holder(f"p{number:03}", "0:6", state="loading") for number in range(MAX_NAMED + 90)]
    with pytest.raises(PeerUnavailableError, match=r"; and 90 more$"):
        route_request(SHAPE, RequestNeeds(), held, NOBODY)


def test_peers_of_different_dtypes_never_share_a_ring() -> None:
    held = [holder("a", "0:3"), holder("b", "3:6", dtype="bfloat16"), holder("c", "3:6", layer_s=0.5)]
    route = route_request(SHAPE, RequestNeeds(), held, NOBODY)
    assert (ring(route), route.plan.dtype) == ([("a", "0:3"), ("c", "3:6")], "float32")
    assert reason(route, "b") == "computes in another dtype than the ring"
    with pytest.raises(PeerUnavailableError, match="different dtypes"):
        route_request(SHAPE, RequestNeeds(), held[:2], NOBODY)


def test_the_shortest_context_bounds_the_ring() -> None:
    held = [holder("a", "0:3", context_tokens=50), holder("b", "3:6")]
    assert route_request(SHAPE, RequestNeeds(), held, NOBODY).plan.context_tokens == 50


def test_a_peer_may_hold_two_ranges_and_be_two_stages() -> None:
    held = [holder("a", "0:2"), holder("a", "4:6"), holder("b", "2:4")]
    route = route_request(SHAPE, RequestNeeds(), held, links(ab=5))
    assert ring(route) == [("a", "0:2"), ("b", "2:4"), ("a", "4:6")]
    assert route.lap_s == pytest.approx(0.07)
    assert [choice.is_used for choice in route.choices] == [True, True, True]
