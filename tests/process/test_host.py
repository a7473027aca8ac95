"""Two hosts over real TCP on loopback: dialling, streams, errors and what a fault of one must not do to others."""

from __future__ import annotations

import gc
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from shardp2p.errors import ConfigError, PeerUnavailableError, RemoteProtocolError
from shardp2p.host import patches
from shardp2p.host.host import Host, open_host
from shardp2p.identity.keys import Identity
from shardp2p.vocabulary import PeerId
from shardp2p.wire.stream import Stream
from tests.process.host_peer import ECHO, echo

LOOPBACK = ["/ip4/127.0.0.1/tcp/0"]
SINK = "/test/sink/1"


@asynccontextmanager
async def two_hosts() -> AsyncIterator[tuple[Host, Host]]:
    """A host that echoes and one that only dials."""
    async with open_host(Identity.generate(), LOOPBACK) as server, open_host(Identity.generate()) as client:
        server.serve(ECHO, echo)
        yield server, client


async def open_echo(client: Host, server: Host) -> Stream:
    return await client.open_stream(server.peer_id, ECHO, server.addresses())


async def exchange(stream: Stream, data: bytes) -> bytes:
    received = bytearray()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_all, data)
        while len(received) < len(data):
            received += await stream.receive_some(65536)
    return bytes(received)


async def test_a_megabyte_comes_back_unchanged() -> None:
    data = bytes(range(256)) * 4096
    async with two_hosts() as (server, client):
        stream = await open_echo(client, server)
        assert stream.peer == server.peer_id
        assert await exchange(stream, data) == data


async def test_both_sides_know_each_other_and_both_can_open_streams() -> None:
    async with two_hosts() as (server, client):
        client.serve(ECHO, echo)
        await exchange(await open_echo(client, server), b"there")
        assert client.connected_peers() == (server.peer_id,)
        assert server.connected_peers() == (client.peer_id,)
        assert await exchange(await server.open_stream(client.peer_id, ECHO), b"and back") == b"and back"
        assert client.addresses() == ()


async def test_hosts_that_dial_each_other_at_once_both_succeed() -> None:
    async with open_host(Identity.generate(), LOOPBACK) as one, open_host(Identity.generate(), LOOPBACK) as two:
        one.serve(ECHO, echo)
        two.serve(ECHO, echo)

        async def talk(ours: Host, other: Host) -> None:
            stream = await open_echo(ours, other)
            for _ in range(20):
                assert await exchange(stream, b"x" * 1000) == b"x" * 1000

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(talk, one, two)
                nursery.start_soon(talk, two, one)


async def test_concurrent_callers_share_one_connection() -> None:
    async with two_hosts() as (server, client):
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(open_echo, client, server)
        assert len(client._swarm.get_connections()) == 1


async def test_end_of_one_direction_arrives_after_all_data() -> None:
    received = bytearray()
    ended = trio.Event()

    async def sink(stream: Stream) -> None:
        while data := await stream.receive_some(1000):
            received.extend(data)
        ended.set()

    async with two_hosts() as (server, client):
        server.serve(SINK, sink)
        stream = await client.open_stream(server.peer_id, SINK, server.addresses())
        await stream.send_all(b"z" * 100_000)
        await stream.close()
        await stream.close()
        with trio.fail_after(5):
            await ended.wait()
    assert bytes(received) == b"z" * 100_000


async def test_cancelled_sends_harm_no_other_stream() -> None:
    payload = bytes(range(256)) * 64
    async with two_hosts() as (server, client):
        server.serve(SINK, _read_slowly)
        steady = await open_echo(client, server)
        for round_number in range(40):
            victim = await client.open_stream(server.peer_id, SINK)
            with trio.move_on_after(0.0002 * (round_number % 10)):
                await victim.send_all(bytes(2_000_000))
            await victim.reset()
            assert await exchange(steady, payload) == payload


async def _read_slowly(stream: Stream) -> None:
    while await stream.receive_some(1000):
        await trio.sleep(0.0001)


async def test_reader_that_pauses_longer_than_five_seconds_loses_nothing() -> None:
    total = 1_000_000
    received = 0
    done = trio.Event()

    async def pausing_reader(stream: Stream) -> None:
        nonlocal received
        await trio.sleep(5.5)
        while data := await stream.receive_some(65536):
            received += len(data)
        done.set()

    async with two_hosts() as (server, client):
        server.serve(SINK, pausing_reader)
        stream = await client.open_stream(server.peer_id, SINK, server.addresses())
        await stream.send_all(bytes(total))
        await stream.close()
        with trio.fail_after(5):
            await done.wait()
    assert received == total


async def test_many_streams_in_sequence_leave_nothing_behind() -> None:
    async with two_hosts() as (server, client):
        for _ in range(600):
            stream = await open_echo(client, server)
            await exchange(stream, b"x")
            await stream.close()
        (ours,) = client._swarm.get_connections()
        (theirs,) = server._swarm.get_connections()
        with trio.fail_after(5):
            while ours.muxed_conn._streams or theirs.muxed_conn._streams or theirs.get_streams():  # type: ignore[attr-defined]
                await trio.sleep(0.01)


async def test_more_than_254_streams_may_be_open_at_once() -> None:
    async with two_hosts() as (server, client):
        streams = [await open_echo(client, server) for _ in range(300)]
        assert await exchange(streams[0], b"first") == b"first"
        assert await exchange(streams[-1], b"last") == b"last"


async def test_failed_dial_does_not_block_the_next() -> None:
    async with two_hosts() as (server, client):
        nowhere = f"/ip4/127.0.0.1/tcp/{_free_port()}"
        with pytest.raises(PeerUnavailableError, match=f"{nowhere}: refused, nothing listens there"):
            await client.open_stream(server.peer_id, ECHO, [nowhere])
        assert await exchange(await open_echo(client, server), b"x") == b"x"


async def test_addresses_are_tried_in_turn_until_one_works() -> None:
    async with two_hosts() as (server, client):
        addresses = [f"/ip4/127.0.0.1/tcp/{_free_port()}", *server.addresses()]
        stream = await client.open_stream(server.peer_id, ECHO, addresses)
        assert await exchange(stream, b"x") == b"x"


async def test_wrong_peer_at_an_address_is_said_and_the_right_address_still_works() -> None:
    async with two_hosts() as (server, client), open_host(Identity.generate(), LOOPBACK) as other:
        wrong = [address.partition("/p2p/")[0] for address in other.addresses()]
        with pytest.raises(PeerUnavailableError, match=f"{wrong[0]}: another peer answers there"):
            await client.open_stream(server.peer_id, ECHO, wrong)
        assert await exchange(await open_echo(client, server), b"x") == b"x"


async def test_what_is_no_libp2p_peer_is_said() -> None:
    async with two_hosts() as (server, client), trio.open_nursery() as nursery:

        async def hang_up(stream: trio.SocketStream) -> None:
            await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, hang_up, [listener])
        address = f"/ip4/127.0.0.1/tcp/{listener.socket.getsockname()[1]}"
        with pytest.raises(PeerUnavailableError, match=f"{address}: what answers there is no libp2p peer"):
            await client.open_stream(server.peer_id, ECHO, [address])
        nursery.cancel_scope.cancel()


async def test_unknown_protocol_is_said() -> None:
    async with two_hosts() as (server, client):
        with pytest.raises(PeerUnavailableError, match=f"{server.peer_id} does not speak /test/unknown/1"):
            await client.open_stream(server.peer_id, "/test/unknown/1", server.addresses())
        assert await exchange(await open_echo(client, server), b"x") == b"x"


async def test_no_connection_and_no_address_is_said() -> None:
    async with open_host(Identity.generate()) as host:
        stranger = Identity.generate().peer_id
        with pytest.raises(PeerUnavailableError, match=f"not connected to peer {stranger}"):
            await host.open_stream(stranger, ECHO)


@pytest.mark.parametrize(
    "address",
    ["", "localhost:4001", "/ip4/300.0.0.1/tcp/1", "/ip4/127.0.0.1/udp/4001/quic-v1", "/ip4/127.0.0.1/tcp/99999"],
)
async def test_malformed_dial_address_is_the_callers_mistake(address: str) -> None:
    async with open_host(Identity.generate()) as host:
        with pytest.raises(ConfigError, match="write it like /ip4/"):
            await host.open_stream(Identity.generate().peer_id, ECHO, [address])


async def test_malformed_peer_id_is_the_callers_mistake() -> None:
    async with open_host(Identity.generate()) as host:
        with pytest.raises(ConfigError, match="is no peer id"):
            await host.open_stream(PeerId("12D3KooWnonsense0OIl"), ECHO, LOOPBACK)


@pytest.mark.parametrize("address", ["4001", "/dns4/example.org/tcp/4001", "/ip4/127.0.0.1"])
async def test_malformed_listen_address_is_the_users_mistake(address: str) -> None:
    with pytest.raises(ConfigError, match="/ip4/"):
        async with open_host(Identity.generate(), [address]):
            pass


async def test_port_in_use_is_said() -> None:
    async with open_host(Identity.generate(), LOOPBACK) as first:
        address = first.addresses()[0].partition("/p2p/")[0]
        with pytest.raises(ConfigError, match=f"cannot listen on {address}: another program already uses this port"):
            async with open_host(Identity.generate(), [*LOOPBACK, address]):
                pass


async def test_port_is_free_again_after_leaving() -> None:
    async with two_hosts() as (server, client):
        await exchange(await open_echo(client, server), b"x")
        address = server.addresses()[0].partition("/p2p/")[0]
    async with open_host(Identity.generate(), [address]) as again:
        assert again.addresses()[0].startswith(address)


async def test_wildcard_address_is_announced_as_concrete_ones() -> None:
    async with (
        open_host(Identity.generate(), ["/ip4/0.0.0.0/tcp/0"]) as server,
        open_host(Identity.generate()) as client,
    ):
        server.serve(ECHO, echo)
        assert server.addresses()
        assert not any("/0.0.0.0/" in address for address in server.addresses())
        assert all(address.endswith(f"/p2p/{server.peer_id}") for address in server.addresses())
        on_loopback = [address for address in server.addresses() if "/127.0.0.1/" in address]
        assert await exchange(await client.open_stream(server.peer_id, ECHO, on_loopback), b"x") == b"x"


async def test_handler_that_fails_resets_only_its_stream() -> None:
    async def refuse(stream: Stream) -> None:
        raise RemoteProtocolError("not like this")

    async with two_hosts() as (server, client):
        server.serve(SINK, refuse)
        steady = await open_echo(client, server)
        refused = await client.open_stream(server.peer_id, SINK)
        with pytest.raises(PeerUnavailableError, match="the peer reset the stream"):
            await refused.receive_some(1)
        assert await exchange(steady, b"x") == b"x"


async def test_bug_in_a_handler_ends_its_host_with_that_exception() -> None:
    async def buggy(stream: Stream) -> None:
        raise ZeroDivisionError

    async def run_until_the_bug(client: Host) -> None:
        async with open_host(Identity.generate(), LOOPBACK) as server:
            server.serve(SINK, buggy)
            await client.open_stream(server.peer_id, SINK, server.addresses())
            await trio.sleep_forever()

    async with open_host(Identity.generate()) as client:
        with trio.fail_after(5), pytest.raises(ZeroDivisionError):
            await run_until_the_bug(client)


async def test_a_stream_to_oneself_needs_no_connection() -> None:
    async with open_host(Identity.generate()) as host:
        host.serve(ECHO, echo)
        stream = await host.open_stream(host.peer_id, ECHO)
        assert stream.peer == host.peer_id
        data = bytes(range(256)) * 40_000
        assert await exchange(stream, data) == data
        assert host.connected_peers() == ()
        await stream.close()


async def test_a_stream_to_oneself_of_a_protocol_that_is_not_served_fails() -> None:
    async with open_host(Identity.generate()) as host:
        with pytest.raises(PeerUnavailableError, match="does not speak"):
            await host.open_stream(host.peer_id, ECHO)


async def test_streams_that_arrive_while_a_host_leaves_end_in_order() -> None:
    """The peer keeps opening streams during every stage of the shutdown."""
    async with open_host(Identity.generate()) as client:
        for _ in range(10):
            async with trio.open_nursery() as nursery, open_host(Identity.generate(), LOOPBACK) as server:
                server.serve(ECHO, echo)
                await open_echo(client, server)
                for _ in range(3):
                    nursery.start_soon(_open_until_it_fails, client, server)
                await trio.sleep(0.005)


async def _open_until_it_fails(client: Host, server: Host) -> None:
    with pytest.raises(PeerUnavailableError):  # noqa: PT012 - which of the streams fails is up to chance
        while True:
            await client.open_stream(server.peer_id, ECHO)


async def test_exception_of_the_block_comes_out_as_itself() -> None:
    with pytest.raises(PeerUnavailableError, match="mine"):
        async with open_host(Identity.generate(), LOOPBACK):
            raise PeerUnavailableError("mine")


@pytest.mark.parametrize("checkpoints", range(0, 60, 3))
async def test_cancellation_at_any_moment_leaves_nothing_behind(checkpoints: int) -> None:
    """Cancels a whole exchange after a growing number of scheduler steps."""
    tasks = trio.lowlevel.current_statistics().tasks_living
    async with trio.open_nursery() as nursery:

        async def run() -> None:
            async with two_hosts() as (server, client):
                while True:
                    await exchange(await open_echo(client, server), b"x" * 5000)

        nursery.start_soon(run)
        for _ in range(checkpoints):
            await trio.sleep(0.001)
        nursery.cancel_scope.cancel()
    assert trio.lowlevel.current_statistics().tasks_living == tasks
    gc.collect()


async def test_stranger_that_sends_garbage_does_not_harm_the_host() -> None:
    async with two_hosts() as (server, client):
        port = int(server.addresses()[0].split("/")[4])
        for garbage in (b"", b"\x00" * 100, b"\x13/multistream/1.0.0\n\xff\xff\xff\xff", bytes(range(256)) * 10):
            stranger = await trio.open_tcp_stream("127.0.0.1", port)
            await stranger.send_all(garbage)
            await stranger.aclose()
        assert await exchange(await open_echo(client, server), b"x") == b"x"


@pytest.mark.parametrize("garbage", [b"\x05\xff\xfe\xfd\n", b"\xff" * 50, b"\x13/multistream/9.0.0\n"])
async def test_garbage_in_a_stream_negotiation_does_not_harm_the_host(garbage: bytes) -> None:
    async with two_hosts() as (server, client):
        steady = await open_echo(client, server)
        (connection,) = client._swarm.get_connections()
        muxed = await connection.muxed_conn.open_stream()
        await muxed.write(garbage)
        await muxed.close()
        assert await exchange(steady, b"x") == b"x"


def test_another_version_of_libp2p_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "version", lambda name: "0.9.0")
    with pytest.raises(ConfigError, match=r"pip install libp2p==0\.8\.1"):
        patches.apply()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
