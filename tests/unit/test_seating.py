"""Which layers one peer should hold, within its memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from shardp2p.errors import LocalProtocolError
from shardp2p.runtime.budget import Budget
from shardp2p.scheduler.occasion import FRESH_S
from shardp2p.scheduler.topology import Topology
from shardp2p.seating import Offered, Seating
from shardp2p.seating.copies import copies
from shardp2p.seating.room import Room
from shardp2p.swarm.life import Choose, Seat
from shardp2p.vocabulary import LayerRange, ModelId, PeerId, SwarmId
from shardp2p.weights.footprint import Footprint
from shardp2p.weights.store import StoredModel
from shardp2p.wire.records import CoverageRecord, HeldLayers, NodeState

MODEL, OTHER = ModelId("smollm2"), ModelId("other")
LAYERS, LAYER_BYTES, ROW_BYTES, END_BYTES, ROWS = 30, 1000, 1, 5000, 100
ROOM_BYTES = LAYER_BYTES + ROWS * ROW_BYTES
NOWHERE = Topology(())
ME = PeerId("me")


@dataclass(frozen=True)
class FakeManifest:
    """As much of a manifest as seating looks at."""

    digest: str
    layers: int = LAYERS
    hidden_size: int = 64


def offered(name: ModelId = MODEL, digest: str = "ab" * 32) -> Offered:
    footprint = Footprint(
        name, digest, "float32", (LAYER_BYTES,) * LAYERS, (ROW_BYTES,) * LAYERS, END_BYTES, END_BYTES, END_BYTES
    )
    stored = StoredModel(name, Path("nowhere"), FakeManifest(digest))  # type: ignore[arg-type]
    return Offered(stored, footprint)


def seating(layers: float, *models: Offered, pinned: LayerRange | None = None) -> Seating:
    """That of a peer with memory for so many layers beside the head-room."""
    memory = int(layers * ROOM_BYTES / 0.8) + 2
    return Seating(ME, models or (offered(),), Budget(memory, ROWS), pinned)


def record(peer: str, layers: str, state: NodeState = "serving", digest: str = "ab" * 32) -> CoverageRecord:
    speed = 0.001 if state == "serving" else 0.0
    held = HeldLayers(
        MODEL, digest, LAYERS, LayerRange.parse(layers), "loading" if state == "placing" else state, "float32", 2048,
        LAYER_BYTES, ROWS, ROWS, speed, speed,
    )  # fmt: skip
    return CoverageRecord(SwarmId("swarm"), PeerId(peer), 1, 0.0, 10.0, state, held=(held,))


def seat(layers: str, name: ModelId = MODEL, digest: str = "ab" * 32) -> Seat:
    return Seat(name, digest, LayerRange.parse(layers))


def test_first_peer_takes_what_fits() -> None:
    seats, reason = seating(12).choose((), NOWHERE)
    assert seats == (seat("0:7"),)
    assert "nobody holds" in reason


def test_whole_model_is_held_where_it_fits() -> None:
    seats, _ = seating(LAYERS + 5).choose((), NOWHERE)
    assert seats == (seat("0:30"),)


def test_missing_layers_come_first() -> None:
    seats, _ = seating(8).choose([record("a", "0:12"), record("b", "20:30")], NOWHERE)
    assert seats == (seat("12:20"),)


@pytest.mark.parametrize("layers", [1, 2, 3, 5, 8, 13, 21, 29])
def test_seats_always_fit_with_embeddings(layers: int) -> None:
    place = seating(layers + 0.5)
    seats, _ = place.choose((), NOWHERE)
    assert seats
    assert sum(map(place.need_bytes, seats)) <= (layers + 0.5) * ROOM_BYTES + 2


def test_small_peer_holds_inner_layers_though_the_ends_do_not_fit() -> None:
    seats, _ = seating(2).choose([record("a", "0:10"), record("b", "12:30")], NOWHERE)
    assert seats == (seat("10:12"),)


def test_peer_that_could_hold_an_end_takes_a_missing_one_first() -> None:
    seats, _ = seating(12).choose([record("a", "0:10")], NOWHERE)
    assert seats == (seat("23:30"),)


def test_peer_with_room_for_inner_layers_alone_leaves_the_ends_to_others() -> None:
    seats, _ = seating(4).choose((), NOWHERE)
    assert sum(len(one.layers) for one in seats) == 4
    assert all(one.layers.start > 0 and one.layers.stop < LAYERS for one in seats)


def test_nothing_fits_and_says_what_is_missing() -> None:
    seats, reason = seating(0.5).choose((), NOWHERE)
    assert seats == ()
    assert "not even one layer of smollm2 fits" in reason


def test_without_a_model_it_says_how_to_get_one() -> None:
    seats, reason = Seating(ME, (), Budget(1000, 1)).choose((), NOWHERE)
    assert seats == ()
    assert "shardp2p model import" in reason


def test_a_peer_that_lies_about_how_many_layers_there_are_is_left_out() -> None:
    held = HeldLayers(
        MODEL, "ab" * 32, 1000, LayerRange(194, 865), "loading", "float32", 2048, LAYER_BYTES, ROWS, ROWS, 0.0, 0.0
    )
    liar = CoverageRecord(SwarmId("swarm"), PeerId("liar"), 1, 0.0, 10.0, "placing", held=(held,))
    place = seating(LAYERS + 10)
    chosen, _ = place.choose([liar], NOWHERE)
    assert chosen == (seat("0:30"),)
    assert place.settle(chosen, [liar], NOWHERE)[0] == chosen


def test_claim_stays_where_nobody_else_chose_it() -> None:
    place = seating(15)
    assert place.settle((seat("8:20"),), [record("a", "0:8"), record("b", "20:30")], NOWHERE)[0] == (seat("8:20"),)


@pytest.mark.parametrize(
    ("others", "why"),
    [
        (("0:8", "20:30"), "nobody else took them"),
        (("0:30",), "a second copy"),
        (("0:30", "8:20"), "one more copy beside 2"),
        (("0:12",), "nobody else took 12:20; a second copy of 8:12"),
    ],
)
def test_a_claim_that_stays_says_who_else_holds_its_layers(others: tuple[str, ...], why: str) -> None:
    held = [record(str(number), layers) for number, layers in enumerate(others)]
    assert copies(Room((offered(),), Budget(1, ROWS)), (seat("8:20"),), held) == why


def test_of_two_that_chose_the_same_exactly_one_gives_way() -> None:
    claims = {PeerId("one"): seat("4:16"), PeerId("two"): seat("4:16")}
    memory = Budget(int(12 * ROOM_BYTES / 0.8) + 2, ROWS)
    settled = {}
    for me, claim in claims.items():
        others = [record(peer, str(other.layers), "placing") for peer, other in claims.items() if peer != me]
        settled[me] = Seating(me, (offered(),), memory).settle((claim,), [record("end", "0:4"), *others], NOWHERE)[0]
    moved = [peer for peer in claims if settled[peer] != (claims[peer],)]
    assert len(moved) == 1
    assert all(not (part.layers.start < 16 and part.layers.stop > 4) for part in settled[moved[0]])


def test_serving_peer_stays_while_its_layers_are_needed() -> None:
    held = (seat("8:20"),)
    live = [record("a", "0:8"), record(ME, "8:20")]
    assert seating(12).review(held, live, NOWHERE, 0.0)[0] == held


def test_redundant_peer_moves_where_layers_are_missing() -> None:
    held = (seat("8:20"),)
    live = [record("a", "0:20"), record(ME, "8:20")]
    assert seating(18).review(held, live, NOWHERE, 0.0)[0] == (seat("17:30"),)


def test_peer_may_leave_only_layers_that_others_serve() -> None:
    held, wanted = (seat("8:20"),), (seat("17:30"),)
    place = seating(18)
    assert place.may_leave(held, wanted, [record("a", "0:20"), record(ME, "8:20")])
    assert not place.may_leave(held, wanted, [record("a", "0:19"), record(ME, "8:20")])
    assert place.may_leave(held, held, [record(ME, "8:20")])


def test_pinned_layers_are_taken_whatever_others_hold() -> None:
    place = seating(12, pinned=LayerRange(10, 20))
    assert place.choose([record("a", "10:20")], NOWHERE)[0] == (seat("10:20"),)
    assert place.settle((seat("10:20"),), [record("a", "10:20", "placing")], NOWHERE)[0] == (seat("10:20"),)
    assert place.review((seat("10:20"),), [], NOWHERE, 0.0)[0] == (seat("10:20"),)


def test_pinned_layers_that_do_not_fit_are_refused_with_the_bytes() -> None:
    seats, reason = seating(5, pinned=LayerRange(10, 20)).choose((), NOWHERE)
    assert seats == ()
    assert "do not fit" in reason


def test_memory_is_shared_among_models() -> None:
    second = offered(OTHER, "cd" * 32)
    seats, _ = seating(2 * LAYERS + 20, offered(), second).choose((), NOWHERE)
    assert seats == (seat("0:30", OTHER, "cd" * 32), seat("0:30"))


def test_unknown_digest_is_a_bug() -> None:
    with pytest.raises(LocalProtocolError):
        seating(5).offered("ef" * 32)


def test_measuring_anew_moves_nobody() -> None:
    near = Topology((), {(PeerId(one), PeerId(other)): 0.001 for one in ("me", "b", "c") for other in ("me", "b", "c")})
    far = {(PeerId("a"), PeerId(other)): 1.0 for other in ("me", "b", "c")}
    topology = Topology((), {**{(PeerId(o), PeerId(p)): 0.001 for o in "bc" for p in ("b", "c", "me")}, **far})
    held = (seat("15:30"),)
    live = [record("a", "0:15"), record("b", "15:30"), record("c", "15:30"), record(ME, "15:30")]
    place = seating(21)
    place.review(held, live, NOWHERE, 0.0)
    for at, known in enumerate((near, topology, NOWHERE)):
        assert place.review(held, live, known, FRESH_S + at)[0] == held


def moving() -> tuple[tuple[Seat, ...], list[CoverageRecord]]:
    """What a peer holds that sits among too many, and what all hold."""
    live = [record("a", "0:15"), *(record(peer, "15:30") for peer in ("b", "c", "d", ME))]
    return (seat("15:30"),), live


def test_of_peers_that_nobody_needs_one_goes_where_layers_are_on_few_and_only_while_that_is_new() -> None:
    held, live = moving()
    memory = Budget(int(21 * ROOM_BYTES / 0.8) + 2, ROWS)
    places = {PeerId(peer): Seating(PeerId(peer), (offered(),), memory) for peer in ("b", "c", "d", ME)}
    claims = {peer: place.review(held, live, NOWHERE, 5.0)[0] for peer, place in places.items()}
    movers = [peer for peer, claimed in claims.items() if claimed != held]
    assert len(movers) > 1
    for at, one in enumerate(live):
        if one.peer_id in movers:
            claim = record(one.peer_id, str(claims[one.peer_id][0].layers), "placing").held
            live[at] = replace(one, state="placing", held=(*one.held, *claim))
    answers = {peer: places[peer].answer(Choose(), claims[peer], held, live, NOWHERE, 6.0)[0] for peer in movers}
    assert len([peer for peer, seats in answers.items() if seats != held]) == 1
    assert all(place.review(held, moving()[1], NOWHERE, 7.0 + FRESH_S)[0] == held for place in places.values())


def test_a_mover_goes_as_it_chose_unless_its_old_layers_are_needed_meanwhile() -> None:
    held, live = moving()
    place, claimed = seating(21), (seat("0:15"),)
    claim = replace(record(ME, "15:30"), state="placing", held=(*record(ME, "15:30").held, *record(ME, "0:15").held))
    claims = [record("new", "0:15", "placing"), claim]
    assert place.answer(Choose(), claimed, held, [*live[:-1], *claims], NOWHERE, 0.0)[0] == claimed
    assert place.answer(Choose(), claimed, held, [live[0], *claims], NOWHERE, 0.0)[0] == held


def test_a_model_is_whole_once_all_its_layers_are_served() -> None:
    claimed = (seat("15:30"),)
    live = [record(peer, "0:15") for peer in "ab"] + [record("c", "0:15"), record("c", "15:30", "placing")]
    assert not seating(21).is_whole(claimed, live)
    assert seating(21).is_whole(claimed, [*live, record("d", "15:30")])
