"""The bench of placement on a small sample: no socket, but more computing than a unit test may take."""

import pytest

from shardp2p.lab.placement.comparison import compare


def test_plans_of_generated_worlds_keep_every_promise() -> None:
    pytest.importorskip("scipy")
    report = compare(40, seed=7).report()
    assert report["topologies"] == 40
    assert report["oracle_ratio_max"] <= 1 + 1e-9
    assert report["held_karp_ratio_max"] <= 1.03
    assert report["hundred_ratio_max"] <= 1.10
    assert report["moves_under_noise"] == 0
    assert all(ratio > 1 for ratio in report["baselines"].values())
