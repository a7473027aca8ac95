"""Peers that reach each other over a third one: real hosts, real TCP on loopback."""

from __future__ import annotations

import pytest
import trio

from shardp2p.errors import PeerUnavailableError
from shardp2p.host.host import open_host
from shardp2p.host.muxer import GOODBYE
from shardp2p.host.path import DIRECT, relayed
from shardp2p.identity.keys import Identity
from shardp2p.wire.stream import Stream
from tests.process.host_peer import ECHO
from tests.support.circuits import hidden_node, relay_node, wait_held


async def exchange(stream: Stream, data: bytes) -> bytes:
    received = bytearray()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_all, data)
        while len(received) < len(data):
            received += await stream.receive_some(65536)
    return bytes(received)


async def test_a_megabyte_comes_back_unchanged_over_a_relay() -> None:
    data = bytes(range(256)) * 4096
    async with relay_node() as relay, hidden_node(relay) as target, hidden_node() as client:
        stream = await client.open_echo(target)
        assert stream.peer == target.peer
        assert await exchange(stream, data) == data
        assert client.host.paths(target.peer) == (relayed(relay.peer),)
        assert target.host.paths(client.peer) == (relayed(relay.peer),)
        assert target.host.paths(relay.peer) == (DIRECT,)
        lent = relay.circuits.relaying
        assert lent is not None
        assert (lent.reservations, lent.circuits) == (1, 1)
        assert lent.passed_bytes > 2 * len(data)


async def test_both_ends_can_open_streams_over_one_circuit() -> None:
    async with relay_node() as relay, hidden_node(relay) as target, hidden_node() as client:
        await exchange(await client.open_echo(target), b"there")
        assert await exchange(await target.host.open_stream(client.peer, ECHO), b"and back") == b"and back"
        for near, far in ((client, target), (target, client)):  # both know which of their connections the relay needs
            (circuit,) = near.host.connections(far.peer)
            assert circuit.line in near.host.connections(relay.peer)


async def test_client_that_only_dials_takes_no_reservation() -> None:
    async with relay_node() as relay, hidden_node(relay) as target, hidden_node() as client:
        await client.open_echo(target)
        assert client.circuits.addresses() == ()
        assert relay.circuits.relaying is not None
        assert relay.circuits.relaying.reservations == 1


async def test_peer_without_a_reservation_is_not_reached_and_the_client_is_told() -> None:
    async with relay_node() as relay, hidden_node() as target, hidden_node() as client:
        await target.host.connect(relay.peer, relay.host.listen_addresses())
        [address] = relay.host.listen_addresses()
        with pytest.raises(PeerUnavailableError, match="that peer has no reservation there"):
            await client.host.open_stream(target.peer, ECHO, [f"{address}/p2p-circuit/p2p/{target.peer}"])


async def test_peer_that_does_not_relay_is_named_so() -> None:
    async with open_host(Identity.generate(), ["/ip4/127.0.0.1/tcp/0"]) as plain, hidden_node() as client:
        [address] = plain.listen_addresses()
        peer = Identity.generate().peer_id
        with pytest.raises(PeerUnavailableError, match=r"does not speak /libp2p/circuit/relay/0\.2\.0/hop"):
            await client.host.open_stream(peer, ECHO, [f"{address}/p2p-circuit/p2p/{peer}"])


async def test_leaving_relay_ends_reservations_and_circuits_and_leaves_nothing() -> None:
    async with hidden_node() as client, relay_node() as other:
        async with relay_node() as relay, hidden_node(relay, other) as target:
            await wait_held(target, 2)
        assert other.circuits.relaying is not None
        with trio.fail_after(2):
            while other.circuits.relaying.reservations:
                await trio.sleep(0.01)
        assert client.circuits.addresses() == ()


async def test_goodbye_of_a_leaving_peer_passes_the_relay() -> None:
    async with relay_node() as relay, hidden_node(relay) as target:
        async with hidden_node() as client:
            await exchange(await client.open_echo(target), b"x")
            [connection] = target.host.connections(client.peer)
        with trio.fail_after(2):
            await connection.event_closed.wait()
        assert connection.failure == GOODBYE


async def test_dropped_circuit_frees_its_slot() -> None:
    async with relay_node() as relay, hidden_node(relay) as target:
        async with hidden_node() as client:
            await exchange(await client.open_echo(target), b"x")
        with trio.fail_after(2):
            while relay.circuits.relaying is None or relay.circuits.relaying.circuits:
                await trio.sleep(0.01)
