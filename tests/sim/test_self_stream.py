"""A stream to oneself behaves as one to another peer does: bounded, ended in order, reset at once."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from shardp2p.errors import PeerUnavailableError
from shardp2p.host.self_stream import WINDOW_BYTES, open_pair
from shardp2p.vocabulary import PeerId

ME = PeerId("me")


async def test_a_sender_waits_while_the_window_is_full(autojump_clock: MockClock) -> None:
    one, other = open_pair(ME)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.send_all, bytes(WINDOW_BYTES + 1))
        await wait_all_tasks_blocked()
        assert len(nursery.child_tasks) == 1
        assert len(await other.receive_some(10)) == 10
        await wait_all_tasks_blocked()
        assert len(nursery.child_tasks) == 0


async def test_what_was_sent_before_a_close_still_arrives(autojump_clock: MockClock) -> None:
    one, other = open_pair(ME)
    await one.send_all(b"last words")
    await one.close()
    assert await other.receive_some(4) == b"last"
    assert await other.receive_some(100) == b" words"
    assert await other.receive_some(100) == b""
    with pytest.raises(PeerUnavailableError, match="closed"):
        await other.send_all(b"too late")
    with pytest.raises(PeerUnavailableError, match="we closed"):
        await one.receive_some(1)


@pytest.mark.parametrize("resetter", [0, 1])
async def test_a_reset_drops_what_is_under_way_and_wakes_both_sides(resetter: int, autojump_clock: MockClock) -> None:
    ends = open_pair(ME)
    await ends[0].send_all(b"lost")
    failures = 0

    async def expect_failure(number: int) -> None:
        nonlocal failures
        with pytest.raises(PeerUnavailableError):
            await ends[number].send_all(bytes(3 * WINDOW_BYTES))
        failures += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(expect_failure, 0)
        nursery.start_soon(expect_failure, 1)
        await wait_all_tasks_blocked()
        await ends[resetter].reset()
    assert failures == 2
    for end in ends:
        with pytest.raises(PeerUnavailableError):
            await end.receive_some(1)
