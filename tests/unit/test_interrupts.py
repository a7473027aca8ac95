"""A terminal that closes: an orderly end, unless the user wanted the process to survive it."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from shardp2p.cli.interrupts import Interrupted, Interrupts


@pytest.fixture(autouse=True)
def handlers_as_before() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
    before = [signal.getsignal(number) for number in numbers]
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def test_terminal_that_closes_ends_the_process_in_order_however_often_that_is_told() -> None:
    interrupts = Interrupts()
    interrupts.install()
    with pytest.raises(Interrupted):
        signal.raise_signal(signal.SIGHUP)
    signal.raise_signal(signal.SIGHUP)
    assert interrupts.exit_code == 128 + signal.SIGHUP


def test_process_that_is_to_survive_its_terminal_does() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    interrupts = Interrupts()
    interrupts.install()
    signal.raise_signal(signal.SIGHUP)
    assert interrupts.exit_code is None
