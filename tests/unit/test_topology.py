"""Delays that were measured and those that were not, and what a ring costs."""

import pytest

from shardp2p.errors import LocalProtocolError
from shardp2p.scheduler.plan import Stage
from shardp2p.scheduler.topology import UNKNOWN_DELAY_S, Machine, Topology
from shardp2p.vocabulary import LayerRange, PeerId

A, B, C, D = (PeerId(name) for name in "ABCD")


def machines(*regions: str) -> list[Machine]:
    return [Machine(peer, 8, 0.01, region) for peer, region in zip((A, B, C, D), regions, strict=False)]


def test_a_missing_direction_is_the_other_one() -> None:
    topology = Topology(machines("x", "x"), {(A, B): 0.03})
    assert topology.delay_s(A, B) == topology.delay_s(B, A) == 0.03


def test_directions_may_differ() -> None:
    topology = Topology(machines("x", "x"), {(A, B): 0.03, (B, A): 0.05})
    assert (topology.delay_s(A, B), topology.delay_s(B, A)) == (0.03, 0.05)


def test_an_unmeasured_pair_takes_the_median_between_its_regions() -> None:
    measured = {(A, C): 0.08, (B, C): 0.09, (A, B): 0.001, (A, D): 0.1}
    topology = Topology(machines("x", "x", "y", "y"), measured)
    assert topology.delay_s(D, B) == 0.09


def test_regions_that_nobody_measured_take_the_median_of_everything() -> None:
    topology = Topology(machines("x", "x", "x", "z"), {(A, B): 0.001, (A, C): 0.003, (B, C): 0.002})
    assert topology.delay_s(D, A) == 0.002


def test_nothing_measured_is_far_and_any_peer_has_an_answer() -> None:
    topology = Topology(machines("x"))
    assert topology.delay_s(A, PeerId("stranger")) == UNKNOWN_DELAY_S
    assert topology.delay_s(A, A) == 0.0


def test_a_round_trip_is_halved_and_two_accounts_are_averaged() -> None:
    topology = Topology.from_round_trips(machines("x", "x"), [(A, B, 0.04), (B, A, 0.06)])
    assert topology.delay_s(A, B) == pytest.approx(0.025)


def test_a_lap_counts_hops_both_ways_to_the_driver_and_every_layer() -> None:
    topology = Topology(machines("x", "x"), {(A, B): 0.03, (B, A): 0.05, (C, A): 0.1, (B, C): 0.2})
    stages = (Stage(A, LayerRange(0, 3)), Stage(B, LayerRange(3, 4)))
    assert topology.lap_s(stages, A) == pytest.approx(0.03 + 0.05 + 4 * 0.01)
    assert topology.lap_s(stages, C) == pytest.approx(0.1 + 0.03 + 0.2 + 4 * 0.01)
    assert topology.slowest_stage_s(stages) == pytest.approx(0.03)


def test_a_full_pipeline_runs_at_its_slowest_stage() -> None:
    topology = Topology(machines("x", "x"), {(A, B): 0.03, (B, A): 0.05})
    stages = (Stage(A, LayerRange(0, 3)), Stage(B, LayerRange(3, 4)))
    assert topology.rate(stages, A, in_flight=1, accepted=2.0) == pytest.approx(2 / 0.12)
    assert topology.rate(stages, A, in_flight=2) == pytest.approx(1 / 0.06)
    assert topology.rate(stages, A, in_flight=100) == pytest.approx(1 / 0.03)


@pytest.mark.parametrize("layer_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_machine_of_absurd_speed_is_refused(layer_s: float) -> None:
    with pytest.raises(LocalProtocolError, match="check records first"):
        Machine(A, 3, layer_s)


def test_two_machines_of_one_peer_are_refused() -> None:
    with pytest.raises(LocalProtocolError, match="two machines"):
        Topology([Machine(A, 3, 0.1), Machine(A, 4, 0.1)])


def test_a_stage_on_a_stranger_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="no machine"):
        Topology(machines("x")).lap_s([Stage(B, LayerRange(0, 1))], A)
