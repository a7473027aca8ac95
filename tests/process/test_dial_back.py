"""Dial-backs between real hosts on loopback: open, something else, refused, and no answer."""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
import trio

from shardp2p.errors import PeerUnavailableError, RemoteProtocolError
from shardp2p.host import dial_back as dialling_back
from shardp2p.host.host import Host, open_host
from shardp2p.identity.keys import Identity
from shardp2p.identity.membership import Membership
from shardp2p.node import Node
from shardp2p.swarm.dial_backs import ASKS_AT_ONCE, ask_dial_back
from shardp2p.wire.channel import open_channel
from shardp2p.wire.dialling_back import AskDialBack, DialBackResult
from shardp2p.wire.protocols import SWARM
from shardp2p.wire.stream import Stream
from tests.support.members import membership

LOOPBACK = ["/ip4/127.0.0.1/tcp/0"]
NONCE = bytes(16)


@asynccontextmanager
async def asked_and_asker(listen: list[str] = LOOPBACK) -> AsyncIterator[tuple[Host, Host]]:
    """A peer that dials back, and one that may ask it."""
    async with open_host(Identity.generate(), LOOPBACK) as asked, open_host(Identity.generate(), listen) as asker:
        Node(asked)
        yield asked, asker


def port_of(host: Host) -> int:
    return host.listen_endpoints()[0][1]


@contextmanager
def silent_port() -> Iterator[int]:
    """A port that answers nothing, as behind a firewall that drops: its queue of connections is full."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        waiting = [socket.socket() for _ in range(2)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(listening.getsockname())
        try:
            yield int(listening.getsockname()[1])
        finally:
            for one in waiting:
                one.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_each_port_is_reported_as_it_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialling_back, "CONNECT_S", 0.5)

    async def hang_up(stream: trio.SocketStream) -> None:
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with asked_and_asker() as (asked, asker), trio.open_nursery() as nursery:
        (page,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, hang_up, [page])
        with silent_port() as silent:
            ports = (port_of(asker), page.socket.getsockname()[1], free_port(), silent)
            report = await ask_dial_back(asker, asked.peer_id, asked.addresses(), ports)
        assert report.outcomes == tuple(zip(ports, ("open", "other", "refused", "timeout"), strict=True))
        assert (report.host, report.observer_host) == ("127.0.0.1", "127.0.0.1")
        assert report.port == report.local_port  # no router between us
        nursery.cancel_scope.cancel()


async def test_a_dial_back_leaves_no_connection_behind() -> None:
    async with asked_and_asker() as (asked, asker):
        for _ in range(ASKS_AT_ONCE):
            report = await ask_dial_back(asker, asked.peer_id, asked.addresses(), (port_of(asker),))
            assert report.outcomes == ((port_of(asker), "open"),)
        assert len(asker.connections(asked.peer_id)) == len(asked.connections(asker.peer_id)) == 1


async def test_another_peer_at_that_port_does_not_count() -> None:
    async with asked_and_asker() as (asked, asker), open_host(Identity.generate(), LOOPBACK) as other:
        report = await ask_dial_back(asker, asked.peer_id, asked.addresses(), (port_of(other),))
        assert report.outcomes == ((port_of(other), "other"),)


async def test_members_of_a_private_swarm_dial_back() -> None:
    async with (
        open_host(Identity.from_seed((1).to_bytes(32, "big")), LOOPBACK, membership=now_member(1)) as asked,
        open_host(Identity.from_seed((2).to_bytes(32, "big")), LOOPBACK, membership=now_member(2)) as asker,
    ):
        Node(asked)
        report = await ask_dial_back(asker, asked.peer_id, asked.addresses(), (port_of(asker),))
        assert report.outcomes == ((port_of(asker), "open"),)


def now_member(number: int) -> Membership:
    return membership(number, now_s=time.time())


async def test_who_asks_too_often_is_declined() -> None:
    async with asked_and_asker() as (asked, asker):
        for _ in range(ASKS_AT_ONCE):
            await ask_dial_back(asker, asked.peer_id, asked.addresses(), (free_port(),))
        with pytest.raises(PeerUnavailableError, match="reset the stream"):
            await ask_dial_back(asker, asked.peer_id, asked.addresses(), (free_port(),))


async def test_an_answer_to_something_else_is_refused() -> None:
    async def answer(stream: Stream) -> None:
        async with open_channel(stream, SWARM) as channel:
            ask = await channel.receive()
            assert isinstance(ask, AskDialBack)
            await channel.send(DialBackResult(NONCE, "127.0.0.1", 1, ("open",)))

    async with open_host(Identity.generate(), LOOPBACK) as liar, open_host(Identity.generate(), LOOPBACK) as asker:
        liar.serve(SWARM, answer)
        with pytest.raises(RemoteProtocolError, match="something else"):
            await ask_dial_back(asker, liar.peer_id, liar.addresses(), (port_of(asker),))
