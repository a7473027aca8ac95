"""Emulated waits end on time: what waking takes is learned."""

from __future__ import annotations

import pytest

from shardp2p.lab.emulation.waiting import LATE_AT_MOST_S, Lateness


def after(*late_s: float) -> float:
    lateness = Lateness()
    for one in late_s:
        lateness.note(one - lateness.seconds)
    return lateness.seconds


def test_a_steady_lateness_is_learned() -> None:
    assert after(*[0.0004] * 200) == pytest.approx(0.0004, rel=0.01)


def test_a_long_halt_says_little() -> None:
    assert after(*[0.0004] * 200, 0.5) < 0.0006


def test_no_wait_gets_longer_nor_much_shorter() -> None:
    assert after(*[-0.01] * 50) == 0.0
    assert after(*[0.1] * 500) == LATE_AT_MOST_S
