"""A median that forgets: equal to the ordinary one, deaf to outliers, quick to believe a lasting change."""

from __future__ import annotations

import random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardp2p.errors import LocalProtocolError
from shardp2p.swarm.decaying import DecayingMedian, Spread, weighted_median

VALUES = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=40)


@given(VALUES)
def test_with_equal_weights_it_is_the_ordinary_median(values: list[float]) -> None:
    assert weighted_median((value, 0.25) for value in values) == pytest.approx(median(values), rel=1e-12)


@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(0.01, 10.0)), min_size=1, max_size=30))
def test_at_most_half_of_the_weight_lies_on_either_side(weighted: list[tuple[float, float]]) -> None:
    middle = weighted_median(weighted)
    half = sum(weight for _, weight in weighted) / 2
    assert sum(weight for value, weight in weighted if value < middle) <= half * (1 + 1e-9)
    assert sum(weight for value, weight in weighted if value > middle) <= half * (1 + 1e-9)


def test_four_outliers_in_ten_change_nothing_but_the_spread() -> None:
    rng = random.Random(5)
    estimate = DecayingMedian(50, 100.0)
    for number in range(50):
        estimate.observe(9.0 if number % 5 in (0, 2) else rng.gauss(0.040, 0.001), now=number * 0.1)
    found = estimate.at(5.0)
    assert found is not None
    assert found.median == pytest.approx(0.041, abs=0.002)
    assert found.spread < 0.01


def test_the_spread_is_the_median_absolute_deviation() -> None:
    rng = random.Random(6)
    estimate = DecayingMedian(2_000, 1e6)
    for _ in range(2_000):
        estimate.observe(rng.gauss(1.0, 0.1), now=0.0)
    found = estimate.at(0.0)
    assert found is not None
    assert found.median == pytest.approx(1.0, abs=0.01)
    assert found.spread == pytest.approx(0.1 * 0.6745, rel=0.1)  # of a normal distribution


def test_a_lasting_change_is_believed_after_about_a_half_life_though_the_window_is_full_of_the_old() -> None:
    estimate = DecayingMedian(1_000, 60.0)
    for second in range(600):
        estimate.observe(0.020, now=float(second))
    for second in range(600, 620):
        estimate.observe(0.080, now=float(second))
    assert estimate.at(620.0) == Spread(0.020, 0.0)
    for second in range(620, 661):
        estimate.observe(0.080, now=float(second))
    assert estimate.at(661.0) == Spread(0.080, 0.0)


def test_what_is_ten_half_lives_old_is_forgotten() -> None:
    estimate = DecayingMedian(5, 10.0)
    estimate.observe(1.0, now=0.0)
    assert estimate.at(100.0) == Spread(1.0, 0.0)
    assert estimate.count(100.0) == 1
    assert estimate.at(100.1) is None
    assert estimate.count(100.1) == 0


def test_the_window_is_bounded() -> None:
    estimate = DecayingMedian(3, 10.0)
    for value in (1.0, 1.0, 1.0, 5.0, 5.0):
        estimate.observe(value, now=0.0)
    assert estimate.count(0.0) == 3
    assert estimate.at(0.0) == Spread(5.0, 0.0)


def test_a_prior_holds_without_measurements_and_yields_to_fresh_ones() -> None:
    estimate = DecayingMedian(9, 10.0, prior=1.0, prior_weight=2.0)
    assert estimate.at(0.0) == Spread(1.0, 0.0)
    estimate.observe(3.0, now=0.0)
    assert estimate.at(0.0) == Spread(1.0, 0.0)
    for _ in range(4):
        estimate.observe(3.0, now=0.0)
    assert estimate.at(0.0) == Spread(3.0, 0.0)
    assert estimate.at(20.0) == Spread(1.0, 0.0)


@pytest.mark.parametrize(("window", "half_life_s", "weight"), [(0, 1.0, 1.0), (1, 0.0, 1.0), (1, 1.0, 0.0)])
def test_a_median_of_nothing_is_our_bug(window: int, half_life_s: float, weight: float) -> None:
    with pytest.raises(LocalProtocolError):
        DecayingMedian(window, half_life_s, prior_weight=weight)
    with pytest.raises(LocalProtocolError, match="of nothing"):
        weighted_median([])
