"""A channel carries whole messages over a stream, in order, and fails with the right blame."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from shardp2p.errors import LocalProtocolError, PeerUnavailableError, RemoteProtocolError
from shardp2p.vocabulary import LayerRange, PeerId, SessionId, Slot
from shardp2p.wire.channel import FLUSH_S, MessageChannel, open_channel
from shardp2p.wire.codec import encode
from shardp2p.wire.messages import Close, Closed, Commit, Hello, Message, Opened, Tokens
from shardp2p.wire.protocols import CONTROL
from shardp2p.wire.stream import Stream
from tests.support.memory_network import MemorySwarm

A, B = PeerId("peer-a"), PeerId("peer-b")
OPENED = Opened(LayerRange(0, 4), 128)


def tokens(count: int, first_slot: int = 0) -> Tokens:
    return Tokens(0, Slot(first_slot), tuple(range(count)))


@asynccontextmanager
async def pair(swarm: MemorySwarm) -> AsyncIterator[tuple[Stream, Stream]]:
    """Both ends of a stream from A to B."""
    accepted: list[Stream] = []
    done = trio.Event()

    async def handler(stream: Stream) -> None:
        accepted.append(stream)
        await done.wait()

    swarm.network(B).serve(CONTROL, handler)
    ours = await swarm.network(A).open_stream(B, CONTROL)
    await wait_all_tasks_blocked()
    try:
        yield ours, accepted[0]
    finally:
        done.set()


async def receive_all(channel: MessageChannel) -> list[Message]:
    received = []
    try:
        while True:
            received.append(await channel.receive())
    except PeerUnavailableError:
        return received


async def test_messages_arrive_whole_and_in_order_through_a_small_window(nursery: trio.Nursery) -> None:
    sent: list[Message] = [OPENED, tokens(500), Commit(0, Slot(3), Slot(2)), Close(), tokens(1, 500)]
    received: list[Message] = []

    async def collect(stream: Stream) -> None:
        received.extend(await receive_all(MessageChannel(stream, CONTROL)))

    async with pair(MemorySwarm(nursery, window_bytes=11)) as (ours, theirs):
        nursery.start_soon(collect, theirs)
        async with open_channel(ours, CONTROL) as channel:
            assert channel.peer == B
            for message in sent:
                await channel.send(message)
        await wait_all_tasks_blocked()
    assert received == sent


async def test_messages_that_arrive_together_are_received_one_by_one(nursery: trio.Nursery) -> None:
    sent = [tokens(3, slot) for slot in range(50)]
    async with pair(MemorySwarm(nursery)) as (ours, theirs):
        await ours.send_all(b"".join(encode(CONTROL, message) for message in sent))
        await ours.close()
        assert await receive_all(MessageChannel(theirs, CONTROL)) == sent


async def test_concurrent_senders_never_mix_their_frames(nursery: trio.Nursery) -> None:
    received: list[Message] = []

    async def collect(stream: Stream) -> None:
        received.extend(await receive_all(MessageChannel(stream, CONTROL)))

    async with pair(MemorySwarm(nursery, window_bytes=64)) as (ours, theirs):
        nursery.start_soon(collect, theirs)
        async with open_channel(ours, CONTROL) as channel, trio.open_nursery() as senders:
            for number in range(20):
                senders.start_soon(channel.send, tokens(100, number))
        await wait_all_tasks_blocked()
    assert sorted(message.first_slot for message in received if isinstance(message, Tokens)) == list(range(20))


async def test_leaving_waits_for_sends_of_other_tasks(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    received: list[Message] = []

    async def collect_later(stream: Stream) -> None:
        await trio.sleep(FLUSH_S / 2)
        received.extend(await receive_all(MessageChannel(stream, CONTROL)))

    async with pair(MemorySwarm(nursery, window_bytes=64)) as (ours, theirs):
        nursery.start_soon(collect_later, theirs)
        async with open_channel(ours, CONTROL) as channel:
            nursery.start_soon(channel.send, tokens(200))
            await wait_all_tasks_blocked()
        await wait_all_tasks_blocked()
    assert received == [tokens(200)]


async def test_leaving_does_not_wait_for_ever(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    failures: list[str] = []

    async def send(channel: MessageChannel) -> None:
        try:
            await channel.send(tokens(200))
        except PeerUnavailableError as error:
            failures.append(str(error))

    async with pair(MemorySwarm(nursery, window_bytes=64)) as (ours, theirs):
        began = trio.current_time()
        async with open_channel(ours, CONTROL) as channel:
            nursery.start_soon(send, channel)
            await wait_all_tasks_blocked()
        assert trio.current_time() - began == pytest.approx(FLUSH_S)
        with pytest.raises(PeerUnavailableError, match="peer-a reset"):
            await theirs.receive_some(1)
        await wait_all_tasks_blocked()
    assert failures == ["peer-a reset the stream"]


async def test_leaving_by_an_exception_resets_the_stream(nursery: trio.Nursery) -> None:
    async with pair(MemorySwarm(nursery)) as (ours, theirs):
        with pytest.raises(KeyError):
            async with open_channel(ours, CONTROL):
                raise KeyError("anything")
        with pytest.raises(PeerUnavailableError, match="peer-a reset"):
            await theirs.receive_some(1)


async def test_a_stream_that_ends_is_a_peer_that_is_gone(nursery: trio.Nursery) -> None:
    frame = encode(CONTROL, OPENED)
    async with pair(MemorySwarm(nursery)) as (ours, theirs):
        await theirs.send_all(frame + frame[:-1])
        await theirs.close()
        channel = MessageChannel(ours, CONTROL)
        assert await channel.receive() == OPENED
        with pytest.raises(PeerUnavailableError, match="peer-b closed the stream before it was finished") as caught:
            await channel.receive()
        assert caught.value.peer == B


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"\xff\x00\x00\x00\x00", "kind 255 is unknown"),
        (b"\x04\xff\xff\xff\xff", "at most 1048576 are allowed"),
        (b"\x03\x00\x00\x00\x00", "Commit is malformed"),
    ],
)
async def test_bytes_that_are_no_message_are_the_peers_fault(nursery: trio.Nursery, sent: bytes, why: str) -> None:
    async with pair(MemorySwarm(nursery)) as (ours, theirs):
        await theirs.send_all(sent)
        with pytest.raises(RemoteProtocolError, match=f"peer-b broke {CONTROL}: .*{why}") as caught:
            await MessageChannel(ours, CONTROL).receive()
        assert caught.value.peer == B


async def test_a_message_of_another_protocol_is_our_bug_and_leaves_the_channel_whole(nursery: trio.Nursery) -> None:
    async with pair(MemorySwarm(nursery)) as (ours, theirs):
        channel = MessageChannel(ours, CONTROL)
        with pytest.raises(LocalProtocolError, match="Hello is no message of"):
            await channel.send(Hello(SessionId("ab" * 16), 0))
        await channel.send(Close())
        assert await MessageChannel(theirs, CONTROL).receive() == Close()


async def test_a_send_to_a_dead_peer_fails_and_so_does_every_later_one(nursery: trio.Nursery) -> None:
    swarm = MemorySwarm(nursery)
    async with pair(swarm) as (ours, _):
        channel = MessageChannel(ours, CONTROL)
        swarm.kill(B)
        for _attempt in range(2):
            with pytest.raises(PeerUnavailableError, match="peer-b was killed") as caught:
                await channel.send(Close())
            assert caught.value.peer == B


async def test_a_send_cancelled_before_its_turn_harms_nothing(nursery: trio.Nursery) -> None:
    async with pair(MemorySwarm(nursery, window_bytes=64)) as (ours, theirs):
        channel, other = MessageChannel(ours, CONTROL), MessageChannel(theirs, CONTROL)
        nursery.start_soon(channel.send, tokens(200))
        await wait_all_tasks_blocked()
        waiting = trio.CancelScope()

        async def send_in_vain() -> None:
            with waiting:
                await channel.send(Commit(0, Slot(9), Slot(8)))

        nursery.start_soon(send_in_vain)
        await wait_all_tasks_blocked()
        waiting.cancel()
        assert await other.receive() == tokens(200)
        await channel.send(Close())
        assert await other.receive() == Close()


async def test_a_send_cancelled_in_the_middle_breaks_the_channel(nursery: trio.Nursery) -> None:
    async with pair(MemorySwarm(nursery, window_bytes=64)) as (ours, _):
        channel = MessageChannel(ours, CONTROL)
        with trio.CancelScope() as scope:
            nursery.start_soon(cancel_when_blocked, scope)
            await channel.send(tokens(200))
        assert scope.cancelled_caught
        with pytest.raises(PeerUnavailableError, match="abandoned in the middle of a message"):
            await channel.send(Close())


async def test_a_cancelled_receive_loses_nothing(nursery: trio.Nursery) -> None:
    frame = encode(CONTROL, Closed(1, 2, 3, 4.0, 5.0))
    async with pair(MemorySwarm(nursery)) as (ours, theirs):
        channel = MessageChannel(ours, CONTROL)
        for part in (frame[:3], frame[3:9]):
            await theirs.send_all(part)
            with trio.CancelScope() as scope:
                nursery.start_soon(cancel_when_blocked, scope)
                await channel.receive()
            assert scope.cancelled_caught
        await theirs.send_all(frame[9:])
        assert await channel.receive() == Closed(1, 2, 3, 4.0, 5.0)


async def test_two_receivers_at_once_are_our_bug(nursery: trio.Nursery) -> None:
    async with pair(MemorySwarm(nursery)) as (ours, _):
        channel = MessageChannel(ours, CONTROL)
        nursery.start_soon(ignore_loss, channel.receive)
        await wait_all_tasks_blocked()
        with pytest.raises(LocalProtocolError, match="two tasks receive"):
            await channel.receive()


async def test_a_closed_channel_sends_no_more(nursery: trio.Nursery) -> None:
    async with pair(MemorySwarm(nursery)) as (ours, _):
        async with open_channel(ours, CONTROL) as channel:
            pass
        with pytest.raises(PeerUnavailableError, match="closed"):
            await channel.send(Close())


async def cancel_when_blocked(scope: trio.CancelScope) -> None:
    await wait_all_tasks_blocked()
    scope.cancel()


async def ignore_loss(action: Callable[[], Awaitable[object]]) -> None:
    try:
        await action()
    except PeerUnavailableError:
        return
