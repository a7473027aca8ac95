"""Speed under load: the speed at rest until real chunks say otherwise, and again some minutes after they end."""

from __future__ import annotations

import random

import pytest

from shardp2p.errors import LocalProtocolError
from shardp2p.swarm.speed import HALF_LIFE_S, SpeedEstimate
from shardp2p.vocabulary import LayerSpeed
from shardp2p.wire.records import MAX_LAYER_S

IDLE = LayerSpeed(0.004, 0.0005)


def chunk_s(rows: int, layers: int, factor: float) -> float:
    return factor * layers * (IDLE.decode_layer_s + (rows - 1) * IDLE.prefill_layer_s)


def near(speed: LayerSpeed, decode_factor: float, prefill_factor: float, rel: float = 1e-6) -> bool:
    wanted = (IDLE.decode_layer_s * decode_factor, IDLE.prefill_layer_s * prefill_factor)
    return (speed.decode_layer_s, speed.prefill_layer_s) == pytest.approx(wanted, rel=rel)


def test_without_load_it_is_the_speed_at_rest() -> None:
    assert near(SpeedEstimate(IDLE).at(1e6), 1.0, 1.0)


def test_load_slows_what_it_is_seen_on() -> None:
    rng = random.Random(2)
    estimate = SpeedEstimate(IDLE)
    for number in range(60):
        rows = rng.choice((1, 4, 8, 16, 31))
        estimate.observe(rows, 5, chunk_s(rows, 5, rng.gauss(3.0, 0.2)), now=number * 0.1)
    assert near(estimate.at(6.0), 3.0, 1.0, rel=0.05)
    for number in range(20):
        estimate.observe(512, 2, chunk_s(512, 2, rng.gauss(1.5, 0.1)), now=6.0 + number)
    assert near(estimate.at(26.0), 3.0, 1.5, rel=0.06)


def test_a_load_that_ended_is_forgotten() -> None:
    estimate = SpeedEstimate(IDLE)
    for number in range(40):
        estimate.observe(1, 3, chunk_s(1, 3, 4.0), now=number * 0.1)
    assert near(estimate.at(4.0), 4.0, 1.0)
    assert near(estimate.at(4.0 + 4 * HALF_LIFE_S), 1.0, 1.0)


def test_a_few_hiccups_change_nothing() -> None:
    estimate = SpeedEstimate(IDLE)
    for _ in range(3):
        estimate.observe(1, 3, 30.0, now=0.0)
    assert near(estimate.at(0.0), 1.0, 1.0)
    for number in range(40):
        estimate.observe(1, 3, 30.0 if number % 3 == 0 else chunk_s(1, 3, 1.1), now=number * 0.1)
    assert near(estimate.at(4.0), 1.1, 1.0)


def test_absurd_times_stay_within_what_a_record_may_say() -> None:
    estimate = SpeedEstimate(LayerSpeed(500.0, 1e-12))
    for rows in (1, 1000):
        for _ in range(64):
            estimate.observe(rows, 1, 1e12 if rows == 1 else 0.0, now=0.0)
    speed = estimate.at(0.0)
    assert speed.decode_layer_s == MAX_LAYER_S
    assert speed.prefill_layer_s > 0


def test_skipped_chunks_do_not_count() -> None:
    estimate = SpeedEstimate(IDLE)
    for _ in range(64):
        estimate.observe(0, 3, 99.0, now=0.0)
    assert near(estimate.at(0.0), 1.0, 1.0)


@pytest.mark.parametrize("wrong", [(0.0, 1.0), (1.0, 0.0), (float("inf"), 1.0), (1.0, float("nan")), (-1.0, 1.0)])
def test_impossible_speeds_at_rest_are_our_bug(wrong: tuple[float, float]) -> None:
    with pytest.raises(LocalProtocolError):
        SpeedEstimate(LayerSpeed(*wrong))
