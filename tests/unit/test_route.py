"""The ring through the peers that are known, or an error that says which layers or peers stand in the way."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardp2p.errors import ConfigError, PeerUnavailableError, RemoteProtocolError
from shardp2p.scheduler.route import Member, recognise, route
from shardp2p.vocabulary import LayerRange, ModelId, PeerId
from shardp2p.wire.messages import MemberInfo

MODEL = ModelId("tiny")
LAYERS = 6


def member(name: str, layers: str | None, **changes: object) -> Member:
    held = LayerRange.parse(layers) if layers else None
    info = MemberInfo(
        PeerId(name), "1", 1, 1, MODEL if held else "", "ab" * 32, LAYERS, held, "float32", context_tokens=100
    )
    return Member(replace(info, **changes), (f"/memory/{name}",))  # type: ignore[arg-type]


def ring(*members: Member) -> list[str]:
    return [stage.peer_id for stage in route(MODEL, members).stages]


def test_the_stages_come_in_ring_order_with_their_addresses() -> None:
    members = [member("a", "0:2"), member("b", "2:4"), member("c", "4:6")]
    for order in permutations(members):
        plan = route(MODEL, order)
        assert [(s.peer_id, str(s.layers), s.addresses) for s in plan.stages] == [
            ("a", "0:2", ("/memory/a",)),
            ("b", "2:4", ("/memory/b",)),
            ("c", "4:6", ("/memory/c",)),
        ]
        assert (plan.model, plan.model_digest, plan.dtype) == (MODEL, "ab" * 32, "float32")


def test_the_ring_with_the_fewest_stages_is_taken() -> None:
    assert ring(member("a", "0:2"), member("b", "2:4"), member("c", "4:6"), member("d", "2:6")) == ["a", "d"]
    assert ring(member("a", "0:3"), member("b", "3:6"), member("c", "0:6")) == ["c"]


def test_overlapping_ranges_are_cut() -> None:
    plan = route(MODEL, [member("a", "0:4"), member("c", "2:6")])
    (first, second) = plan.stages
    assert (first.peer_id, second.peer_id) == ("a", "c")
    assert 2 <= first.layers.stop <= 4


def test_a_range_within_another_adds_no_stage() -> None:
    assert ring(member("a", "0:4"), member("b", "1:3"), member("c", "4:6")) == ["a", "c"]


def test_the_shortest_context_bounds_the_ring() -> None:
    assert route(MODEL, [member("a", "0:3", context_tokens=50), member("b", "3:6")]).context_tokens == 50


def test_peers_without_the_model_are_left_out() -> None:
    assert ring(member("x", None), member("y", "0:3", model="other"), member("a", "0:6")) == ["a"]


def test_a_model_that_nobody_serves_is_said_with_what_they_serve() -> None:
    with pytest.raises(PeerUnavailableError, match="none of the 2 peers serves tiny: they serve other"):
        route(MODEL, [member("x", None), member("y", "0:3", model="other")])
    with pytest.raises(PeerUnavailableError, match="they serve no model"):
        route(MODEL, [member("x", None)])


@pytest.mark.parametrize(
    ("held", "missing"),
    [
        (("0:2",), "start a peer that holds 2:6"),
        (("2:4",), "start a peer that holds 0:2 and 4:6"),
        (("0:2", "3:6"), "start a peer that holds 2:3"),
        (("1:6",), "start a peer that holds 0:1"),
    ],
)
def test_missing_layers_are_named(held: tuple[str, ...], missing: str) -> None:
    with pytest.raises(PeerUnavailableError, match=missing) as caught:
        ring(*(member(f"p{n}", layers) for n, layers in enumerate(held)))
    assert f"hold {', '.join(held)}" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"model_digest": "cd" * 32}, "weights of tiny"),
        ({"dtype": "bfloat16"}, "dtype"),
        ({"model_layers": 7}, "number of layers of tiny"),
    ],
)
def test_peers_that_serve_different_things_are_both_named(change: dict[str, object], what: str) -> None:
    with pytest.raises(ConfigError, match=f"do not serve the same {what}: a has .*, b has "):
        ring(member("a", "0:3"), member("b", "3:6", **change))


def test_a_claim_of_countless_layers_costs_nothing() -> None:
    countless = 2**32 - 1
    with pytest.raises(PeerUnavailableError, match=f"start a peer that holds 6:{countless}"):
        ring(member("a", "0:6", model_layers=countless))
    whole = replace(member("a", "0:6").info, layers=LayerRange(0, countless), model_layers=countless)
    assert ring(Member(whole, ())) == ["a"]


def recognised(*members: Member) -> list[str]:
    return [member.info.model for member in recognise(MODEL, "ab" * 32, LAYERS, members)]


def test_a_model_is_recognised_by_its_digest_and_called_by_our_name() -> None:
    members = [
        member("a", "0:3", model="theirs"),
        member("x", None, model_digest=""),
        member("y", "0:2", model_digest="cd" * 32),
    ]
    assert recognised(*members[:2]) == [MODEL, ""]
    assert recognised(member("z", "0:2", model="other", model_digest="cd" * 32)) == ["other"]
    with pytest.raises(ConfigError, match="peer y serves other weights as tiny"):
        recognised(*members)


@pytest.mark.parametrize("layers", [LAYERS + 1, LAYERS - 1, 2**32 - 1])
@pytest.mark.parametrize("model", [MODEL, "theirs"])
def test_a_peer_that_counts_our_models_layers_wrong_is_named(layers: int, model: str) -> None:
    with pytest.raises(RemoteProtocolError, match=f"peer b says that tiny has {layers} layers; it has 6") as caught:
        recognised(member("a", "0:3"), member("b", "3:5", model=model, model_layers=layers))
    assert caught.value.peer == "b"


RANGES = st.tuples(st.integers(0, LAYERS - 1), st.integers(1, LAYERS)).map(lambda r: (min(r), max(r[1], min(r) + 1)))


@given(st.lists(RANGES, min_size=1, max_size=7))
def test_a_ring_is_found_whenever_one_exists_and_none_is_shorter(ranges: list[tuple[int, int]]) -> None:
    members = [member(f"p{n}", f"{a}:{b}") for n, (a, b) in enumerate(ranges)]
    reached, steps = {0}, 0
    while LAYERS not in reached and steps < LAYERS:
        reached |= {layer for a, b in ranges if any(a <= at < b for at in reached) for layer in range(a, b + 1)}
        steps += 1
    if LAYERS in reached:
        assert len(ring(*members)) == steps
    else:
        with pytest.raises(PeerUnavailableError):
            ring(*members)
