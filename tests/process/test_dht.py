"""The directory over real hosts on loopback: what is put and advertised is found, also when many peers are gone."""

from __future__ import annotations

import itertools
import socket
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest
import trio
from libp2p.kad_dht.common import PROTOCOL_ID
from libp2p.kad_dht.pb.kademlia_pb2 import Message, Record
from libp2p.records.record import make_put_record
from libp2p.utils.varint import encode_varint_prefixed

from shardp2p.errors import ConfigError, IntegrityError, LocalProtocolError, PeerUnavailableError, RemoteProtocolError
from shardp2p.host.address_book import Provider
from shardp2p.host.dht import ADVERTISEMENTS, PACE_S, Directory, open_directory
from shardp2p.host.host import Host, open_host
from shardp2p.identity.keys import Identity
from shardp2p.vocabulary import PeerId
from shardp2p.wire.stream import Handler, Stream

LOOPBACK = ["/ip4/127.0.0.1/tcp/0"]
NAMESPACE = "testing"


def record(peer: PeerId, sequence: int, text: str = "") -> bytes:
    return f"{peer}|{sequence}|{text}".encode()


def validate(peer: PeerId, value: bytes) -> int:
    try:
        owner, sequence, _ = value.decode().split("|")
        number = int(sequence)
    except ValueError as error:
        raise RemoteProtocolError("no record") from error
    if owner != peer:
        raise IntegrityError("another peer's record")
    return number


class Peer:
    """A host with a directory, in a task of its own so that it can be ended alone."""

    def __init__(self, seed: int, *, is_server: bool = True) -> None:
        self.identity = Identity.from_seed(seed.to_bytes(32, "big"))
        self.is_server = is_server
        self.scope = trio.CancelScope()
        self.host: Host
        self.directory: Directory

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with self.scope:
            async with (
                open_host(self.identity, LOOPBACK if self.is_server else []) as self.host,
                open_directory(self.host, NAMESPACE, validate, is_server=self.is_server) as self.directory,
            ):
                task_status.started()
                await trio.sleep_forever()

    @property
    def peer_id(self) -> PeerId:
        return self.identity.peer_id

    @property
    def entry(self) -> tuple[PeerId, Sequence[str]]:
        return self.peer_id, self.host.addresses()


seeds = itertools.count(1)


@asynccontextmanager
async def swarm(size: int, clients: int = 0) -> AsyncIterator[list[Peer]]:
    """`size` servers that know each other through the first, then `clients` that only dial."""
    peers = [Peer(next(seeds), is_server=number < size) for number in range(size + clients)]
    async with trio.open_nursery() as nursery:
        for peer in peers:
            await nursery.start(peer.run)
        for peer in peers[1:]:
            await peer.directory.bootstrap([peers[0].entry])
        yield peers
        nursery.cancel_scope.cancel()


def ids(providers: Sequence[Provider]) -> set[PeerId]:
    return {provider.peer_id for provider in providers}


async def test_two_peers_and_a_client_find_one_another() -> None:
    async with swarm(2, clients=1) as (one, two, client):
        await one.directory.advertise("models")
        await two.directory.advertise("models")
        await two.directory.put(record(two.peer_id, 1))
        with trio.fail_after(30):
            assert ids(await one.directory.find("models")) == {two.peer_id}
            assert ids(await two.directory.find("models")) == {one.peer_id}
            found = await client.directory.find("models")
            assert ids(found) == {one.peer_id, two.peer_id}
            assert await client.directory.get(two.peer_id) == record(two.peer_id, 1)
            assert await one.directory.get(two.peer_id) == record(two.peer_id, 1)
        for provider in found:
            (peer,) = [peer for peer in (one, two) if peer.peer_id == provider.peer_id]
            assert [f"{text}/p2p/{peer.peer_id}" for text in provider.addresses] == list(peer.host.addresses())


async def test_a_client_is_in_nobodys_routing_table_and_cannot_advertise() -> None:
    async with swarm(3, clients=1) as (*servers, client):
        for server in servers:
            await server.directory.advertise("models")
        assert len(await client.directory.find("models")) == 3
        assert client.directory.table_size == 3
        for server in servers:
            table = {peer.to_base58() for peer in server.directory._kad.routing_table.get_peer_ids()}
            assert client.peer_id not in table
            assert table
        with pytest.raises(ConfigError, match="cannot advertise"):
            await client.directory.advertise("models")


async def test_a_peer_behind_a_relay_is_found_and_is_in_nobodys_routing_table() -> None:
    async with swarm(3) as (*servers, behind):
        circuit = f"{servers[0].host.addresses()[0]}/p2p-circuit"
        behind.host.announce([f"{circuit}/p2p/{behind.peer_id}"])
        behind.directory.answer_others(False)
        await behind.directory.advertise("models")
        found = await servers[1].directory.find("models")
        assert [(provider.peer_id, provider.addresses) for provider in found] == [(behind.peer_id, (circuit,))]
        newcomer = Peer(next(seeds))
        async with trio.open_nursery() as nursery:
            await nursery.start(newcomer.run)
            await newcomer.directory.bootstrap([servers[0].entry])
            await behind.directory.bootstrap([newcomer.entry])
            assert newcomer.host.is_connected(behind.peer_id)
            table = {peer.to_base58() for peer in newcomer.directory._kad.routing_table.get_peer_ids()}
            assert behind.peer_id not in table
            assert servers[0].peer_id in table
            nursery.cancel_scope.cancel()


async def test_everything_is_found_with_five_of_twelve_killed() -> None:
    async with swarm(12, clients=1) as (*servers, client):
        authors = servers[3:9]  # of whom half are killed
        for server in servers:
            await server.directory.advertise("models")
        for author in authors:
            await author.directory.put(record(author.peer_id, 1))
        for victim in servers[1:6]:
            victim.scope.cancel()
        await trio.sleep(0.1)
        alive = [servers[0], *servers[6:]]
        with trio.fail_after(90):
            for asker in [client, *alive[:2]]:
                expected = {peer.peer_id for peer in alive} - {asker.peer_id}
                assert ids(await asker.directory.find("models")) >= expected
                for author in authors:
                    assert await asker.directory.get(author.peer_id) == record(author.peer_id, 1)
            await alive[0].directory.advertise("another")
            assert ids(await client.directory.find("another")) == {alive[0].peer_id}


async def test_a_newer_record_replaces_the_older_everywhere() -> None:
    async with swarm(4) as peers:
        author, *others = peers
        await author.directory.put(record(author.peer_id, 1))
        assert await others[0].directory.get(author.peer_id) == record(author.peer_id, 1)
        author.directory._record_put_at = None  # no pause between two puts
        await author.directory.put(record(author.peer_id, 2))
        for other in others:
            assert await other.directory.get(author.peer_id) == record(author.peer_id, 2)


async def test_records_are_found_after_their_author_has_gone() -> None:
    async with swarm(3, clients=1) as (one, two, three, client):
        await two.directory.put(record(two.peer_id, 5))
        two.scope.cancel()
        await trio.sleep(0.1)
        for asker in (one, three, client):
            with trio.fail_after(30):
                assert await asker.directory.get(two.peer_id) == record(two.peer_id, 5)


async def test_what_nobody_has_is_none() -> None:
    async with swarm(3) as (one, two, _):
        assert await one.directory.get(two.peer_id) is None
        assert await one.directory.find("nothing") == ()


async def test_garbage_is_neither_kept_nor_found() -> None:
    async with swarm(3) as (one, two, liar):
        key = f"/{NAMESPACE}/{two.peer_id}".encode()
        honest = record(two.peer_id, 3)
        await two.directory.put(honest)
        for garbage in (b"", b"\xff" * 100, record(liar.peer_id, 9), record(two.peer_id, 2), b"x" * 20_000):
            for peer in (one, two):
                peer_id = peer.directory._kad.local_peer_id
                forged = make_put_record(key, garbage)
                assert not await liar.directory._kad.value_store._store_at_peer(peer_id, key, garbage, forged)
        # What the liar itself hands out is no better than what it sends.
        liar.directory._kad.value_store.put(key, record(liar.peer_id, 9))
        assert await one.directory.get(two.peer_id) == honest
        assert await one.directory.get(liar.peer_id) is None


async def test_our_own_invalid_record_is_our_bug() -> None:
    async with swarm(1) as (one,):
        with pytest.raises(LocalProtocolError, match="would be refused"):
            await one.directory.put(b"nonsense")


async def test_peers_that_never_answer_hold_up_nobody_for_long() -> None:
    async with swarm(12, clients=1) as (*servers, client):
        for server in servers:
            await server.directory.put(record(server.peer_id, 1))
        await client.directory.get(servers[0].peer_id)

        asked: Counter[str] = Counter()

        def hang_at(server: Peer) -> Handler:
            async def hang(stream: Stream) -> None:
                if stream.peer == client.peer_id:
                    asked[server.peer_id] += 1
                await trio.sleep_forever()

            return hang

        for server in servers[1:6]:
            server.host.serve(PROTOCOL_ID, hang_at(server))
        with trio.fail_after(90):
            for server in servers:
                assert await client.directory.get(server.peer_id) == record(server.peer_id, 1)
        # Who hangs is noticed once and then left alone, instead of asked in each of the twelve lookups.
        assert len(asked) == 5
        assert max(asked.values()) <= 4


async def test_bytes_that_are_no_request_end_the_stream_and_nothing_else() -> None:
    async with swarm(2, clients=1) as (one, two, stranger):
        for data in (b"\xff" * 64, b"\x05hello", b"\x00", bytes(range(256)) * 2000):
            stream = await stranger.host.open_stream(one.peer_id, PROTOCOL_ID)
            with suppress(PeerUnavailableError):
                await stream.send_all(data)
            await stream.close()
        await two.directory.put(record(two.peer_id, 1))
        assert await one.directory.get(two.peer_id) == record(two.peer_id, 1)


def strange_messages() -> list[Message]:
    """Requests of every kind whose parts are missing, too long, or of another kind."""
    blobs = [b"", b"\x00", b"\xff" * 40, b"/testing/nobody", b"\x12\x20" + bytes(32), b"k" * 200]
    messages = []
    for kind in range(6):
        for blob in blobs:
            messages.append(Message(type=Message.MessageType.Name(kind), key=blob, senderRecord=blob))
            messages.append(Message(type=Message.MessageType.Name(kind), key=blob))
            messages.append(Message(type=Message.MessageType.Name(kind), key=blob))
            messages[-1].record.CopyFrom(
                Record(key=blob, value=blob, author=blob, signature=blob, timeReceived="later")
            )
            for peers in (messages[-1].providerPeers, messages[-1].closerPeers):
                peers.add(id=blob, addrs=[blob, b"\x04\x00\x00"], signedRecord=blob)
    return messages


async def test_strange_requests_and_answers_harm_nobody() -> None:
    async with swarm(2, clients=1) as (one, two, stranger):
        for message in strange_messages():
            data = message.SerializeToString()
            stream = await stranger.host.open_stream(one.peer_id, PROTOCOL_ID)
            with suppress(PeerUnavailableError):
                await stream.send_all(encode_varint_prefixed(data))
                await stream.receive_some(65536)
            await stream.close()

        answers = itertools.cycle(strange_messages()[1:])  # so many that every kind meets every question

        async def answer(stream: Stream) -> None:
            data = next(answers).SerializeToString()
            await stream.receive_some(65536)
            await stream.send_all(encode_varint_prefixed(data))

        two.host.serve(PROTOCOL_ID, answer)
        for number in range(321):
            one.directory._book.heard(two.peer_id, trio.current_time())  # ends its pause
            if number % 3 == 0:
                await one.directory._queries.acquaint([two.peer_id])
            elif number % 3 == 1:
                assert await one.directory.get(two.peer_id) is None
            else:
                await one.directory.find("models")
        one.directory._book.heard(two.peer_id, trio.current_time())
        await one.directory.put(record(one.peer_id, 1))
        assert await stranger.directory.get(one.peer_id) == record(one.peer_id, 1)


async def test_a_peer_with_many_open_streams_keeps_nobody_out() -> None:
    async with swarm(2, clients=1) as (one, two, greedy), AsyncExitStack() as stack:
        for _ in range(64):
            stream = await greedy.host.open_stream(one.peer_id, PROTOCOL_ID)
            stack.push_async_callback(stream.reset)
        await two.directory.put(record(two.peer_id, 1))
        with trio.fail_after(30):
            assert await two.directory.get(two.peer_id) == record(two.peer_id, 1)
            assert one.directory._kad.value_store.size() == 1


async def test_a_peer_alone_advertises_when_somebody_comes() -> None:
    async with swarm(1) as (one,):
        await one.directory.advertise("models")
        await one.directory.put(record(one.peer_id, 1))
        other = Peer(next(seeds))
        async with trio.open_nursery() as nursery:
            await nursery.start(other.run)
            await other.directory.bootstrap([one.entry])
            assert ids(await other.directory.find("models")) == {one.peer_id}
            # One learns of the other by its connection, and retries what reached nobody.
            with trio.fail_after(60):
                while not other.directory._kad.value_store.size():
                    await trio.sleep(0.1)
            nursery.cancel_scope.cancel()


async def test_an_unreachable_bootstrap_peer_is_tried_again() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
    late, early = Peer(next(seeds)), Peer(next(seeds))
    async with trio.open_nursery() as nursery:
        await nursery.start(early.run)
        address = f"/ip4/127.0.0.1/tcp/{port}"
        await early.directory.bootstrap([(late.peer_id, [address])])
        assert early.directory.table_size == 0
        async with (
            open_host(late.identity, [address]) as host,
            open_directory(host, NAMESPACE, validate, is_server=True),
        ):
            with trio.fail_after(60):
                while not early.directory.table_size:
                    await trio.sleep(0.1)
        nursery.cancel_scope.cancel()


async def test_an_address_where_nothing_answers_costs_seconds_once() -> None:
    silent = Identity.from_seed(next(seeds).to_bytes(32, "big")).peer_id
    async with swarm(2, clients=1) as (_, two, client):
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            address = f"/ip4/127.0.0.1/tcp/{listening.getsockname()[1]}"
            with trio.fail_after(30):
                await client.directory.bootstrap([(silent, [address])])
            await two.directory.put(record(two.peer_id, 1))
            with trio.fail_after(30):
                assert await client.directory.get(two.peer_id) == record(two.peer_id, 1)
            assert client.directory.table_size == 2


async def test_more_topics_than_the_protocol_takes_at_once_are_told_later() -> None:
    async with swarm(2) as (one, two):
        for number in range(ADVERTISEMENTS + 2):
            await one.directory.advertise(f"topic {number}")
        with trio.move_on_after(PACE_S / 2):  # the last one may be on its way
            while two.directory._kad.provider_store.size() < ADVERTISEMENTS:
                await trio.sleep(0.02)
        assert two.directory._kad.provider_store.size() == ADVERTISEMENTS
        with trio.fail_after(PACE_S + 60):
            while two.directory._kad.provider_store.size() < ADVERTISEMENTS + 2:
                await trio.sleep(0.2)


async def test_leaving_leaves_no_task() -> None:
    async with open_host(Identity.generate(), LOOPBACK) as host:
        before = trio.lowlevel.current_statistics().tasks_living
        async with open_directory(host, NAMESPACE, validate, is_server=True) as directory:
            await directory.advertise("models")
            await directory.put(record(host.peer_id, 1))
            assert trio.lowlevel.current_statistics().tasks_living > before
        assert trio.lowlevel.current_statistics().tasks_living == before
