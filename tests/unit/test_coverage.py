from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from shardp2p.errors import ConfigError, PeerUnavailableError
from shardp2p.scheduler.capacity import machines_of, shape_of
from shardp2p.scheduler.coverage import Seen, SeenModel, chosen_parts, coverage_of, find_model, models_of
from shardp2p.scheduler.holders import UNMEASURED_LAYER_S, counts
from shardp2p.vocabulary import LayerRange, ModelId
from shardp2p.wire.records import CoverageRecord, HeldLayers
from tests.support.gossip_parts import HELD, record_of

MODEL = SeenModel("ab" * 32, 30, (ModelId("smollm2"),))


def held(start: int, stop: int, **changes: Any) -> HeldLayers:
    return replace(HELD, layers=LayerRange(start, stop), **changes)


def record(number: int, *parts: HeldLayers, **changes: Any) -> CoverageRecord:
    return replace(record_of(number), held=parts, **changes)


def test_model_is_complete_when_every_layer_is_served() -> None:
    seen = [Seen(record(1, held(0, 15))), Seen(record(2, held(15, 30))), Seen(record(3, held(10, 20)))]
    coverage = coverage_of(MODEL, seen)
    assert coverage.is_complete
    assert coverage.missing == ()
    assert coverage.min_holders == 1
    assert coverage.serving == (1,) * 10 + (2,) * 10 + (1,) * 10


def test_layers_that_load_or_drain_or_only_stand_in_the_directory_are_missing() -> None:
    seen = [
        Seen(record(1, held(0, 10))),
        Seen(record(2, held(10, 15, state="loading"))),
        Seen(record(3, held(15, 20, state="draining"))),
        Seen(record(4, held(20, 30)), is_live=False),
    ]
    coverage = coverage_of(MODEL, seen)
    assert not coverage.is_complete
    assert coverage.missing == (LayerRange(10, 30),)
    assert coverage.loading == (0,) * 10 + (1,) * 5 + (0,) * 15
    assert coverage.draining == (0,) * 15 + (1,) * 5 + (0,) * 10
    assert [part.is_serving for part in coverage.parts] == [True, False, False, False]


def test_a_leaving_peer_serves_nothing_more() -> None:
    coverage = coverage_of(MODEL, [Seen(record(1, held(0, 30), state="draining"))])
    assert coverage.missing == (LayerRange(0, 30),)
    assert coverage.parts[0].state == "draining"
    gone = coverage_of(MODEL, [Seen(record(1, held(0, 30), state="draining", lifetime_s=0.0))])
    assert gone.parts == ()


def test_other_models_and_other_counts_of_layers_are_left_out() -> None:
    seen = [
        Seen(record(1, held(0, 30))),
        Seen(record(2, held(0, 30, model_digest="cd" * 32))),
        Seen(record(3, held(0, 40, model_layers=40))),
    ]
    assert [part.seen.record.peer_id for part in coverage_of(MODEL, seen).parts] == [record(1).peer_id]


def test_model_is_found_by_name_and_by_the_start_of_its_digest() -> None:
    records = [
        record(1, held(0, 5, model=ModelId("mine"))),
        record(2, held(0, 5)),
        record(3, held(0, 5), held(0, 9, model=ModelId("other"), model_digest="cd" * 32, model_layers=40)),
    ]
    models = models_of(records)
    assert [(model.name, model.layers) for model in models] == [("other", 40), ("smollm2", 30)]
    for asked in ("smollm2", "mine", "ababab", "ABABABAB", "ab" * 32):
        assert find_model(asked, models).digest == "ab" * 32
    with pytest.raises(PeerUnavailableError, match="nobody serves a model called 'abab'; served are: other, smollm2"):
        find_model("abab", models)


def test_one_lie_about_a_models_layers_does_not_count() -> None:
    liar = record(1, held(0, 5, model_layers=7))
    (model,) = models_of([liar, record(2, held(0, 5)), record(3, held(5, 9))])
    assert model.layers == 30


def test_unknown_model_names_some_of_many() -> None:
    records = [record(n, held(0, 5, model=ModelId(f"m{n}"), model_digest=f"{n:064x}")) for n in range(1, 12)]
    with pytest.raises(PeerUnavailableError, match=r"served are: m1, .* and 3 more$"):
        find_model("x", models_of(records))
    with pytest.raises(PeerUnavailableError, match="or any other model: start a peer"):
        find_model("x", ())


def test_name_of_two_models_asks_for_a_digest() -> None:
    models = models_of([record(1, held(0, 5)), record(2, held(0, 5, model_digest="cd" * 32))])
    with pytest.raises(ConfigError, match=r"2 models are called 'smollm2'.*abababababab, cdcdcdcdcdcd"):
        find_model("smollm2", models)


def test_of_many_parts_those_are_shown_that_cover_the_most() -> None:
    rng = Random(7)
    seen = []
    for number in range(1, 200):
        start = rng.randrange(29)
        speed_s = rng.uniform(0.001, 0.1)
        seen.append(Seen(record(number, held(start, rng.randint(start + 1, 30), decode_layer_s=speed_s))))
    coverage = coverage_of(MODEL, seen)
    assert coverage.is_complete
    chosen = chosen_parts(coverage, 40)
    assert len(chosen) == 40
    assert min(counts(30, [part.held.layers for part in chosen])) > 0
    assert list(chosen) == sorted(chosen, key=lambda part: (part.held.layers, part.seen.record.peer_id))
    assert chosen_parts(coverage, 500) == coverage.parts


def test_room_for_layers_is_read_from_how_full_holders_are() -> None:
    # 600 bytes, of which 120 stay free: 10 layers take 400, and there is room for 2 more.
    full = record(1, held(0, 10, layer_bytes=300), memory_bytes=600, free_memory_bytes=80)
    empty = record(2, memory_bytes=600, free_memory_bytes=199)
    client = record(3, memory_bytes=0, free_memory_bytes=0)
    records = [full, empty, client]
    assert shape_of(MODEL, records).layer_bytes == 30
    assert [machine.fits_layers for machine in machines_of(MODEL, records, 0.2)] == [12, 4, 0]


def test_room_is_the_weights_alone_where_nobody_tells_more() -> None:
    shared = record(1, held(0, 10, layer_bytes=300), held(0, 5, model_digest="cd" * 32), free_memory_bytes=10**8)
    machines = machines_of(MODEL, [shared, record(2, memory_bytes=100, free_memory_bytes=65)], 0.2)
    assert [machine.fits_layers for machine in machines] == [30, 2]


def test_peer_that_measured_nothing_counts_as_the_median() -> None:
    fast, slow = held(0, 10, decode_layer_s=0.001), held(10, 20, decode_layer_s=0.003)
    machines = machines_of(MODEL, [record(1, fast), record(2, slow), record(3)], 0.2)
    assert [machine.layer_s for machine in machines] == [0.001, 0.003, 0.002]
    assert machines_of(MODEL, [record(1)], 0.2)[0].layer_s == UNMEASURED_LAYER_S
