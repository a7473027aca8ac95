"""A swarm whose peers come and go keeps every layer, moves little, and is the same for the same seed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardp2p.lab.churn import MOVES_AT_MOST, Churn, ChurnSettings
from shardp2p.lab.churn_traffic import measure_traffic

SMALL = ChurnSettings(
    peers=40, duration_s=900.0, layers=16, fits=(2, 3, 4, 6, 8), stay_s=900.0, start_within_s=60.0, layer_bytes=2**27
)


@pytest.mark.parametrize("seed", range(3))
def test_no_layer_is_lost_while_memory_suffices(seed: int) -> None:
    report = Churn(replace(SMALL, seed=seed)).run()
    assert report.ready_s is not None
    assert report.crashed > 0
    assert report.left > 0
    assert report.joined > SMALL.peers
    assert (report.lost_s, report.short_s) == (0.0, 0.0)
    assert report.fewest_holders >= 2
    assert report.most_moves <= MOVES_AT_MOST
    assert report.moves_of_serving == 0
    assert 15 * report.moves_of_claims <= report.joined


def test_the_same_seed_gives_the_same_hour() -> None:
    assert Churn(SMALL).run().figures() == Churn(SMALL).run().figures()


def test_too_little_memory_is_told_from_lost_layers() -> None:
    few = replace(SMALL, peers=6, stay_s=200.0, crash_share=1.0)
    report = Churn(few).run()
    assert report.short_s > 0
    assert report.figures()["coverage_lost"] is (report.lost_s > 0)


def test_gossip_under_churn_costs_little_and_forgets_the_dead() -> None:
    small = ChurnSettings(peers=12, stay_s=300.0)
    traffic = measure_traffic(small, calm_s=10.0, measured_s=20.0)
    assert 0 < traffic.bytes_s < 20_000
    assert 0 < traffic.forgotten_s <= 15
    assert measure_traffic(small, calm_s=10.0, measured_s=20.0) == traffic
