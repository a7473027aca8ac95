"""The moments at which loops look around."""

from __future__ import annotations

import pytest

from shardp2p.host.beat import next_beat


def test_loops_that_began_apart_wake_together() -> None:
    assert {next_beat(now, 2.0) for now in (10.0, 10.4, 11.999)} == {12.0}


@pytest.mark.parametrize("period_s", [0.1, 0.25, 0.3, 0.5, 1.0, 2.0])
def test_a_beat_is_always_later_and_never_by_more_than_a_period(period_s: float) -> None:
    now = 123_456.7
    for _ in range(1000):
        beat = next_beat(now, period_s)
        assert now < beat <= now + period_s * (1 + 1e-9)
        now = beat
