"""Dialling from the port that a host listens on, over real TCP on loopback."""

from __future__ import annotations

import socket

import pytest
import trio

from shardp2p.errors import ConfigError
from shardp2p.host.addresses import parse_listen_address
from shardp2p.host.host import Host, open_host
from shardp2p.host.muxer import Muxer
from shardp2p.host.stream import HostStream
from shardp2p.host.tcp import TAKEN, dial_from, open_listeners
from shardp2p.identity.keys import Identity
from shardp2p.wire.stream import Stream
from tests.process.host_peer import ECHO, echo

SEEN = "/test/seen/1"


def listening_ports(host: Host) -> set[int]:
    return {port for _, port in host.listen_endpoints()}


async def test_a_port_of_another_program_is_not_shared_even_where_it_would_share_it() -> None:
    for option in (None, socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        with socket.socket() as other:
            if option is not None:
                other.setsockopt(socket.SOL_SOCKET, option, 1)
            other.bind(("127.0.0.1", 0))
            other.listen()
            address = parse_listen_address(f"/ip4/127.0.0.1/tcp/{other.getsockname()[1]}")
            with pytest.raises(ConfigError, match="another program already uses this port"):
                await open_listeners([address])


async def test_two_hosts_do_not_share_a_port() -> None:
    async with open_host(Identity.generate(), ["/ip4/127.0.0.1/tcp/0"]) as host:
        (_, port) = host.listen_endpoints()[0]
        with pytest.raises(ConfigError, match="another program already uses this port"):
            async with open_host(Identity.generate(), [f"/ip4/127.0.0.1/tcp/{port}"]):
                pass


@pytest.mark.parametrize(("local", "remote"), [("127.0.0.2", "127.0.0.3"), ("0.0.0.0", "127.0.0.1"), ("::1", "::1")])
async def test_a_connection_leaves_from_the_port_that_we_listen_on(local: str, remote: str) -> None:
    version = 6 if ":" in local else 4
    (ours,) = await open_listeners([parse_listen_address(f"/ip{version}/{local}/tcp/0")])
    (theirs,) = await open_listeners([parse_listen_address(f"/ip{version}/{remote}/tcp/0")])
    source = ours.socket.getsockname()[:2]
    async with ours, theirs:
        stream = await dial_from(source, theirs.socket.getsockname()[:2])
        async with stream, await theirs.accept() as accepted:
            assert accepted.socket.getpeername()[1] == source[1]
            with pytest.raises(OSError, match="address") as taken:
                await dial_from(source, theirs.socket.getsockname()[:2])
            assert taken.value.errno in TAKEN
        # Closing freed the two ends at once, whoever closed first.
        async with await dial_from(source, theirs.socket.getsockname()[:2]):
            pass


async def test_whom_we_dial_from_the_listen_port_sees_it() -> None:
    seen: list[tuple[str, int] | None] = []

    async def look(stream: Stream) -> None:
        assert isinstance(stream, HostStream)
        seen.append(stream.remote_address)

    async with (
        open_host(Identity.generate(), ["/ip4/127.0.0.3/tcp/0"]) as relay,
        open_host(Identity.generate(), ["/ip4/127.0.0.2/tcp/0"]) as client,
    ):
        relay.serve(SEEN, look)
        connection = await client.connect(relay.peer_id, relay.addresses(), from_listen_port=True)
        await (await client.open_stream_over(connection, SEEN)).receive_some(1)
        assert seen == [client.listen_endpoints()[0]]
        assert connection.local_port in listening_ports(client)


async def test_a_second_connection_between_the_same_two_ends_leaves_from_elsewhere() -> None:
    async with (
        open_host(Identity.generate(), ["/ip4/127.0.0.3/tcp/0"]) as relay,
        open_host(Identity.generate(), ["/ip4/127.0.0.2/tcp/0"]) as client,
    ):
        relay.serve(ECHO, echo)
        first = await client.connect(relay.peer_id, relay.addresses(), from_listen_port=True)
        second = await client.connect(relay.peer_id, relay.addresses(), from_listen_port=True)
        third = await client.connect(relay.peer_id, relay.addresses())
        assert first.local_port in listening_ports(client)
        assert second.local_port not in listening_ports(client)
        assert third.local_port not in listening_ports(client)
        for connection in (first, second, third):
            stream = await client.open_stream_over(connection, ECHO)
            await stream.send_all(b"x")
            assert await stream.receive_some(1) == b"x"


async def test_what_is_expected_is_upgraded_by_who_expects_it() -> None:
    taken: list[trio.SocketStream] = []

    async def take(stream: trio.SocketStream) -> Muxer | None:
        taken.append(stream)
        return None

    async with open_host(Identity.generate(), ["/ip4/127.0.0.3/tcp/0"]) as host:
        (here,) = host.listen_endpoints()
        (ours,) = await open_listeners([parse_listen_address("/ip4/127.0.0.2/tcp/0")])
        async with ours:
            source = ours.socket.getsockname()[:2]
            with host.expecting([source], take):
                async with await dial_from(source, here) as stream:
                    assert await stream.receive_some(1) == b""
            assert len(taken) == 1
            async with await dial_from(source, here) as stream:
                assert (await stream.receive_some(100)).endswith(b"/multistream/1.0.0\n")
            assert len(taken) == 1
