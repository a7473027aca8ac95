"""The in-memory network keeps the contract of wire.stream, so that what is tested on it holds on libp2p."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from shardp2p.errors import ConfigError, LocalProtocolError, PeerUnavailableError, RemoteProtocolError
from shardp2p.vocabulary import PeerId
from shardp2p.wire.stream import Network, Stream
from tests.support.memory_network import MemorySwarm

ECHO = "/echo/1"
A, B = PeerId("peer-a"), PeerId("peer-b")


async def read_exactly(stream: Stream, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = await stream.receive_some(count - len(data))
        assert piece, "the stream ended early"
        data += piece
    return data


async def echo(stream: Stream) -> None:
    while data := await stream.receive_some(1000):
        await stream.send_all(data)


async def hold(_stream: Stream) -> None:
    await trio.sleep_forever()


def connected(nursery: trio.Nursery, **options: int) -> tuple[MemorySwarm, Network, Network]:
    swarm = MemorySwarm(nursery, **options)
    return swarm, swarm.network(A), swarm.network(B)


async def test_bytes_come_back_in_order_and_the_end_is_read_as_nothing(nursery: trio.Nursery) -> None:
    swarm, a, b = connected(nursery)
    served: list[PeerId] = []

    async def handler(stream: Stream) -> None:
        served.append(stream.peer)
        await echo(stream)

    b.serve(ECHO, handler)
    stream = await a.open_stream(B, ECHO, ["/memory/b"])
    await stream.send_all(b"one")
    await stream.send_all(memoryview(b"two"))
    assert await read_exactly(stream, 6) == b"onetwo"
    assert (stream.peer, served) == (B, [A])
    await stream.close()
    await stream.close()
    await trio.testing.wait_all_tasks_blocked()
    assert swarm.open_streams == 0


async def test_data_sent_before_a_close_still_arrives(nursery: trio.Nursery) -> None:
    _, a, b = connected(nursery)

    async def handler(stream: Stream) -> None:
        await stream.send_all(b"last words")

    b.serve(ECHO, handler)
    stream = await a.open_stream(B, ECHO)
    await trio.testing.wait_all_tasks_blocked()
    assert await read_exactly(stream, 10) == b"last words"
    assert await stream.receive_some(10) == b""


async def test_a_sender_waits_while_the_window_is_full(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    _, a, b = connected(nursery, window_bytes=100)
    received = bytearray()
    go = trio.Event()

    async def handler(stream: Stream) -> None:
        await go.wait()
        while data := await stream.receive_some(7):
            received.extend(data)

    b.serve(ECHO, handler)
    stream = await a.open_stream(B, ECHO)
    with trio.move_on_after(60) as scope:
        await stream.send_all(bytes(101))
    assert scope.cancelled_caught
    with pytest.raises(PeerUnavailableError, match="torn by a cancelled send"):
        await stream.send_all(b"more")
    fresh = await a.open_stream(B, ECHO)
    go.set()
    await fresh.send_all(bytes(range(250)))
    await fresh.close()
    await trio.testing.wait_all_tasks_blocked()
    assert bytes(received) == bytes(range(250))


async def test_two_senders_at_once_are_reported(nursery: trio.Nursery) -> None:
    _, a, b = connected(nursery, window_bytes=10)
    b.serve(ECHO, hold)
    stream = await a.open_stream(B, ECHO)
    nursery.start_soon(stream.send_all, bytes(20))
    await trio.testing.wait_all_tasks_blocked()
    with pytest.raises(LocalProtocolError, match="two tasks"):
        await stream.send_all(b"x")
    nursery.cancel_scope.cancel()


async def test_a_handler_that_fails_resets_its_stream(nursery: trio.Nursery) -> None:
    swarm, a, b = connected(nursery)

    async def handler(_stream: Stream) -> None:
        raise RemoteProtocolError("garbage")

    b.serve(ECHO, handler)
    stream = await a.open_stream(B, ECHO)
    with pytest.raises(PeerUnavailableError, match="peer-b reset"):
        await stream.receive_some(10)
    assert [str(error) for error in swarm.network(B).failures] == ["garbage"]


async def test_a_bug_in_a_handler_is_not_swallowed() -> None:
    async def handler(_stream: Stream) -> None:
        raise LocalProtocolError("our bug")

    with pytest.RaisesGroup(LocalProtocolError):
        async with trio.open_nursery() as nursery:
            _, a, b = connected(nursery)
            b.serve(ECHO, handler)
            await a.open_stream(B, ECHO)


@pytest.mark.parametrize("reads_as_end", [True, False])
async def test_a_killed_peer_reads_as_an_end_or_an_error_and_takes_nothing(
    nursery: trio.Nursery, *, reads_as_end: bool
) -> None:
    swarm, a, b = connected(nursery)
    ended = trio.Event()

    async def handler(stream: Stream) -> None:
        try:
            await echo(stream)
        finally:
            ended.set()

    b.serve(ECHO, handler)
    stream = await a.open_stream(B, ECHO)
    await trio.testing.wait_all_tasks_blocked()
    swarm.kill(B, reads_as_end=reads_as_end)
    await ended.wait()
    if reads_as_end:
        assert await stream.receive_some(10) == b""
    else:
        with pytest.raises(PeerUnavailableError, match="peer-b was killed"):
            await stream.receive_some(10)
    with pytest.raises(PeerUnavailableError, match="peer-b was killed"):
        await stream.send_all(b"x")
    with pytest.raises(PeerUnavailableError, match="cannot be reached"):
        await a.open_stream(B, ECHO)
    await stream.close()
    assert swarm.open_streams == 0


async def test_a_peer_can_come_back_after_it_was_killed(nursery: trio.Nursery) -> None:
    swarm, a, _ = connected(nursery)
    swarm.kill(B)
    swarm.network(B).serve(ECHO, echo)
    stream = await a.open_stream(B, ECHO)
    await stream.send_all(b"again")
    assert await read_exactly(stream, 5) == b"again"
    await stream.close()


async def test_delay_holds_each_direction_and_keeps_order(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    swarm, a, b = connected(nursery)
    b.serve(ECHO, echo)
    swarm.delay(A, B, 0.05)
    began = trio.current_time()
    stream = await a.open_stream(B, ECHO)
    assert trio.current_time() - began == pytest.approx(0.2)
    began = trio.current_time()
    await stream.send_all(b"first")
    swarm.delay(A, B, 0.0)
    await stream.send_all(b"second")
    assert await read_exactly(stream, 11) == b"firstsecond"
    assert trio.current_time() - began == pytest.approx(0.05)
    await stream.close()


async def test_a_cut_link_is_silent_until_it_is_noticed(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    swarm, a, b = connected(nursery)
    b.serve(ECHO, echo)
    stream = await a.open_stream(B, ECHO)
    swarm.cut(A, B, noticed_after_s=4.0)
    await stream.send_all(b"into the void")
    began = trio.current_time()
    with pytest.raises(PeerUnavailableError, match="connection between peer-a and peer-b was lost"):
        await stream.receive_some(10)
    assert trio.current_time() - began == pytest.approx(4.0)
    with pytest.raises(PeerUnavailableError, match="cannot be reached"):
        await a.open_stream(B, ECHO)
    swarm.mend(A, B)
    fresh = await a.open_stream(B, ECHO)
    await fresh.send_all(b"hello")
    assert await read_exactly(fresh, 5) == b"hello"
    await fresh.close()


async def test_what_cannot_be_opened_says_why(nursery: trio.Nursery) -> None:
    swarm, a, _ = connected(nursery)
    with pytest.raises(PeerUnavailableError, match="nobody cannot be reached"):
        await a.open_stream(PeerId("nobody"), ECHO)
    with pytest.raises(PeerUnavailableError, match="does not speak /echo/1"):
        await a.open_stream(B, ECHO)
    with pytest.raises(ConfigError, match="no multiaddr"):
        await a.open_stream(B, ECHO, ["127.0.0.1:4001"])
    assert swarm.open_streams == 0
