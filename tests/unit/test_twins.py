"""Another process with our identity is told from what an earlier run has left behind."""

from __future__ import annotations

import pytest

from shardp2p.swarm.twins import TOLD_S, TWIN_RECORDS, TWIN_S, Twins, TwinSeen


def hear(twins: Twins, *times: float, their_start_s: float = 10.0) -> list[TwinSeen]:
    return [seen for now in times for seen in twins.hear(their_start_s, 20.0, now)]


def test_what_an_earlier_run_has_left_behind_is_no_twin() -> None:
    assert hear(Twins(), *range(TWIN_RECORDS - 1)) == []


def test_records_that_come_long_after_one_another_are_no_twin() -> None:
    assert hear(Twins(), *(number * TWIN_S for number in range(20))) == []


@pytest.mark.parametrize(("their_start_s", "is_older"), [(10.0, True), (20.0, True), (20.001, False)])
def test_the_one_that_started_first_is_the_older(their_start_s: float, is_older: bool) -> None:
    assert hear(Twins(), 1.0, 2.0, 3.0, their_start_s=their_start_s) == [TwinSeen(is_older)]


def test_what_goes_on_is_told_again_only_after_a_while() -> None:
    twins = Twins()
    assert len(hear(twins, *(float(now) for now in range(int(TOLD_S))))) == 1
    assert len(hear(twins, *(TOLD_S + now for now in range(10)))) == 1
