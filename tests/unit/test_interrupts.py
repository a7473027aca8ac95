"""A terminal that closes: an orderly end, unless the user wanted the process to survive it."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
import trio

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


def test_what_stands_around_the_scope_that_ends_may_still_say_goodbye() -> None:
    interrupts = Interrupts()
    interrupts.install()
    said: list[str] = []

    async def main() -> None:
        with trio.CancelScope() as scope, interrupts.ending(scope):
            signal.raise_signal(signal.SIGTERM)
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        said.append("goodbye")

    with pytest.raises(Interrupted):
        interrupts.run(main)
    assert said == ["goodbye"]
    assert interrupts.exit_code == 128 + signal.SIGTERM
