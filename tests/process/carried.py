"""Two hosts with connections between them whose path a test can cut, and traffic that compares every byte."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import trio
from libp2p.network.connection.raw_connection import RawConnection

from shardp2p.host.host import Host, open_host
from shardp2p.host.muxer import Muxer
from shardp2p.host.path import Path, relayed
from shardp2p.host.tcp import BufferedTcpStream
from shardp2p.identity.keys import Identity
from shardp2p.vocabulary import PeerId
from shardp2p.wire.stream import Stream

RELAYED = relayed(PeerId("12D3KooWrelay"))
ECHO = "/test/echo/1"


@dataclass
class Way:
    """A way from one host to another, through a proxy of ours."""

    path: Path
    is_swallowing: bool = False
    sockets: list[trio.SocketStream] = field(default_factory=list)

    def swallow(self) -> None:
        """From now on bytes vanish, and nobody is told."""
        self.is_swallowing = True

    async def cut(self) -> None:
        """Close both sockets, with whatever they hold."""
        for stream in self.sockets:
            await trio.aclose_forcefully(stream)

    async def pump(self, source: trio.SocketStream, sink: trio.SocketStream) -> None:
        """Pass bytes on until either end closes, and is heard to."""
        try:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                while data := await source.receive_some(65536):
                    if not self.is_swallowing:
                        await sink.send_all(data)
            if self.is_swallowing:  # the end of one side, too, is told to nobody
                await trio.sleep_forever()
        finally:
            for stream in self.sockets:
                stream.socket.close()


class Pair:
    """Two hosts: `near` dials, `far` accepts."""

    def __init__(self, near: Host, far: Host, nursery: trio.Nursery) -> None:
        self.near, self.far = near, far
        self._nursery = nursery

    async def connect(self, path: Path = RELAYED) -> tuple[Muxer, Muxer, Way]:
        """A new connection, as both sides have it, and its way."""
        way = Way(path)
        before = set(self.far.connections(self.near.peer_id))
        outer, inner = await _socket_pair(), await _socket_pair()
        way.sockets += [outer[1], inner[0]]
        self._nursery.start_soon(way.pump, outer[1], inner[0])
        self._nursery.start_soon(way.pump, inner[0], outer[1])
        self._nursery.start_soon(self._accept, inner[1], way)
        raw = RawConnection(BufferedTcpStream(outer[0]), initiator=True)
        near = await self.near.adopt_dialled(raw, self.far.peer_id, path)
        while not (new := set(self.far.connections(self.near.peer_id)) - before):
            await trio.sleep(0.001)
        return near, new.pop(), way

    async def _accept(self, stream: trio.SocketStream, way: Way) -> None:
        muxer = await self.far.adopt_accepted(RawConnection(BufferedTcpStream(stream), initiator=False), way.path)
        assert muxer is not None
        await muxer.event_closed.wait()


async def _socket_pair() -> tuple[trio.SocketStream, trio.SocketStream]:
    """Two ends of a TCP connection on loopback."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        near = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
        return near, await listener.accept()


@asynccontextmanager
async def pair() -> AsyncIterator[Pair]:
    """Two hosts that echo, and are not yet connected."""
    seeds = bytes(32), bytes(range(32))
    async with trio.open_nursery() as nursery:
        async with open_host(Identity.from_seed(seeds[0])) as near, open_host(Identity.from_seed(seeds[1])) as far:
            far.serve(ECHO, _echo)
            near.serve(ECHO, _echo)
            yield Pair(near, far, nursery)
        nursery.cancel_scope.cancel()


async def _echo(stream: Stream) -> None:
    while data := await stream.receive_some(65536):
        await stream.send_all(data)


async def wait_movable(*muxers: Muxer) -> None:
    """Wait until both sides have agreed that these can move."""
    with trio.fail_after(30):
        while not all(muxer.link.is_movable for muxer in muxers):
            await trio.sleep(0.005)


async def exchange(stream: Stream, total: int, seed: int, *, most: int = 200_000) -> None:
    """Send `total` random bytes in pieces of random sizes to an echo, and compare what comes back."""
    sent = random.Random(seed).randbytes(total)
    sizes = random.Random(seed + 1)

    async def write() -> None:
        start = 0
        while start < total:
            size = sizes.randint(1, most)
            await stream.send_all(sent[start : start + size])
            start += size

    received = bytearray()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        while len(received) < total:
            data = await stream.receive_some(65536)
            assert data, "the stream ended early"
            received += data
    assert bytes(received) == sent
