"""Figures of sessions that share a ring, from the times of their tokens."""

from __future__ import annotations

import pytest

from shardp2p.lab.session_figures import Prefill, Queue, jain, together
from shardp2p.wire.messages import Closed


def test_fairness_is_1_for_equals_and_a_share_for_one_who_has_all() -> None:
    assert jain([3.0, 3.0, 3.0]) == pytest.approx(1.0)
    assert jain([5.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
    assert jain([0.0, 0.0]) == 0.0


def test_sessions_at_once_are_compared_with_one_alone() -> None:
    alone = [[0.0, 1.0, 2.0, 3.0], [10.0, 11.0, 12.0, 13.0]]
    at_once = [[0.0, 1.5, 3.0, 4.5], [0.5, 2.0, 3.5, 5.0]]
    figures = together(alone, at_once, is_identical=True)
    assert figures.alone_tok_s == pytest.approx(1.0)
    assert figures.together_tok_s == pytest.approx(6 / 5)
    assert figures.ratio == pytest.approx(1.2)
    assert figures.fairness == pytest.approx(1.0)


def test_gaps_beside_a_prompt_are_those_that_it_touches() -> None:
    times = [0.0, 5.0, 6.0, 7.0, 8.0, 9.0, 11.0, 14.0, 15.0]
    accounts = [Closed(4, 100, 0, 8.0, 0.0), Closed(4, 100, 0, 12.0, 0.0), Closed(2, 100, 0, 1.0, 0.0)]
    figures = Prefill.of(times, began=8.5, ended=11.5, ttft_s=16.0, ttft_beside_s=20.0, accounts=accounts, lap_s=0.5)
    assert figures.usual_gap_s == pytest.approx(1.0)
    assert figures.longest_gap_s == pytest.approx(3.0)
    assert figures.gap_ratio == pytest.approx(3.0)
    assert figures.median_gap_s == pytest.approx(2.0)
    assert figures.bound_s == pytest.approx(12.0 + 0.5 + 2.0 + 0.5)
    assert figures.ttft_ratio == pytest.approx(16 / 15)


def test_a_queue_is_judged_by_what_each_client_has() -> None:
    report = Queue((4, 4, 4, 2), 7.0, 2.0).report()
    assert report["queue_fairness"] == pytest.approx(14**2 / (4 * 52), abs=1e-4)
    assert (report["queue_least_tokens"], report["queue_tok_s"]) == (2, 7.0)
