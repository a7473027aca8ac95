"""A directory that no peer owns: who takes part in a topic, and the last signed record of each peer.

It is a libp2p Kademlia DHT over our host. What it tells is a hint: a provider or a record may be of a peer that is
gone, so ask the peer itself. Nothing here answers from what was found before. Protocol: docs/protocols/discovery.md.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import structlog
import trio
from libp2p.kad_dht.common import PROTOCOL_ID
from libp2p.kad_dht.pb.kademlia_pb2 import Record
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from libp2p.records.validator import NamespacedValidator

from shardp2p.errors import ConfigError, LocalProtocolError, ShardError
from shardp2p.host.address_book import MAX_ADDRESSES, AddressBook
from shardp2p.host.host import Host
from shardp2p.host.kad import MAX_PROVIDERS, BoundedKad, KadHost
from shardp2p.host.lookup import PARALLEL, WIDTH, Lookup
from shardp2p.host.peer_ids import id_of, peer_of
from shardp2p.host.record_validator import RecordValidator, Validate
from shardp2p.vocabulary import PeerId

QUERY_S: Final = 5.0
"""For one question to one peer, dialling included: after it the lookup goes on without that peer."""
LOOKUP_S: Final = 15.0
"""For a whole lookup; what was found by then is the answer."""
REPLICAS: Final = 10
"""How many of the nearest peers keep a record: with four of ten peers gone, one record in ten thousand is lost until
it is put again, at a third of the traffic of twenty and more."""
MAX_TOPICS: Final = 64
"""A peer holds layers of a few models; each topic costs a lookup every few minutes."""
MAX_FOUND: Final = 256
ADVERTISE_S: Final = 600.0
"""Each topic again after this: three times within the life of a provider's entry."""
PUT_S: Final = 900.0
"""Our record again after this, changed or not: four times within its life."""
PUT_PAUSE_S: Final = 30.0
"""A record that changes more often than this is put with its latest value only: each put is some thirty messages."""
RETRY_S: Final = 5.0
"""After an attempt that reached nobody."""
TICK_S: Final = 2.0
"""How often the upkeep looks for new connections and for what is due."""
CHECK_S: Final = 30.0
"""How often the peer of the table that was not heard for longest is asked whether it is there."""
REFRESH_S: Final = 600.0
"""How often we look up ourselves, to know our neighbours: the protocol's own interval."""
SMALL_TABLE: Final = 8
"""With fewer peers than this in the table, every known peer that may be tried is tried."""

T = TypeVar("T")
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Provider:
    """A peer that said it takes part in a topic, and where it said it can be dialled (perhaps nowhere)."""

    peer_id: PeerId
    addresses: tuple[str, ...]


@dataclass(slots=True)
class _Published:
    """Something of ours that the directory should show, and when it has to be shown again."""

    due_at: float
    shown: bytes | None = None
    shown_at: float | None = None


class Directory:
    """Made by `open_directory`. Any task may call it; what it publishes is published one at a time."""

    def __init__(self, host: Host, namespace: str, validate: Validate, *, is_server: bool) -> None:
        self._host = host
        self._namespace = namespace
        self._is_server = is_server
        self._book = AddressBook(host.peer_id)
        self._validator = RecordValidator(namespace, validate)
        self._kad_host = KadHost(host, host.private_key, self._book, is_server=is_server)
        validator = NamespacedValidator({namespace: self._validator}, strict_validation=True)
        self._kad = BoundedKad(self._kad_host, validator, is_server=is_server)
        self._topics: dict[str, _Published] = {}
        self._value: bytes | None = None
        self._record = _Published(due_at=0.0)
        self._publishing = trio.Lock()
        if is_server:
            host.serve(PROTOCOL_ID, self._kad.serve)

    @property
    def table_size(self) -> int:
        """How many peers the routing table holds."""
        return len(self._kad.routing_table.get_peer_ids())

    def addresses(self, peer: PeerId) -> tuple[str, ...]:
        """Where `peer` can be dialled, as far as the directory knows."""
        return self._book.addresses(peer)

    def learn(self, peer: PeerId, addresses: Sequence[str]) -> None:
        """Take note of addresses that somebody gave for `peer`, as a gossiped record; the peer's own outrank them."""
        self._book.learn(peer, addresses, "hearsay")

    async def bootstrap(self, peers: Sequence[tuple[PeerId, Sequence[str]]]) -> None:
        """Get to know the directory through `peers` and their addresses; they are kept for later as well.

        Peers that cannot be reached are tried again in the background, so this never raises for them.
        """
        for peer, addresses in peers:
            self._book.learn(peer, addresses, "user")
        await self._acquaint([peer for peer, _ in peers])
        await self._find_neighbours()

    async def advertise(self, topic: str) -> None:
        """Take part in `topic` from now on: told to the nearest peers now, and again for as long as we live.

        Returns after the first attempt; one that reaches nobody is repeated in the background.
        Raises: ConfigError for more topics than a peer may have, and for a directory that only asks.
        """
        if not self._is_server:
            raise ConfigError("a client of the directory cannot advertise: nobody could dial it")
        if topic not in self._topics:
            if len(self._topics) >= MAX_TOPICS:
                raise ConfigError(f"a peer may take part in {MAX_TOPICS} topics; withdraw one first")
            self._topics[topic] = _Published(due_at=trio.current_time())
            self._kad.provider_store.providing_keys.add(_topic_key(topic))
        await self._publish_due()

    def withdraw(self, topic: str) -> None:
        """Take part no more. Others forget us by themselves, within the life of an entry."""
        if self._topics.pop(topic, None) is not None:
            self._kad.provider_store.providing_keys.discard(_topic_key(topic))

    async def find(self, topic: str) -> tuple[Provider, ...]:
        """The peers, other than ourselves, that take part in `topic`, as the nearest peers say now.

        Those that most peers name come first; at most 256. Some may be gone.
        """
        key = _topic_key(topic)
        votes: Counter[PeerId] = Counter()
        given: dict[PeerId, list[str]] = {}

        def count(providers: Iterable[PeerInfo]) -> None:
            for info in list(providers)[:MAX_PROVIDERS]:
                for peer in _known([info.peer_id]):
                    votes[peer] += 1
                    given.setdefault(peer, []).extend(str(address) for address in info.addrs[:MAX_ADDRESSES])

        async def ask(peer: ID) -> list[ID]:
            providers, closer = await self._kad.provider_store._get_providers_from_peer_with_closers(peer, key)
            count(providers)
            return closer

        await self._look_up(key, ask)
        count(self._kad.provider_store.get_providers(key))
        for peer, texts in given.items():
            self._book.learn(peer, texts, "hearsay")
        found = [Provider(peer, self._book.addresses(peer)) for peer, _ in votes.most_common(MAX_FOUND)]
        return tuple(provider for provider in found if provider.peer_id != self._host.peer_id)

    async def put(self, value: bytes) -> None:
        """Let `value` be our record from now on, in place of an older one.

        Nothing is sent when it is unchanged; one that follows another within 30 s is put in the background, the
        latest only. Put what changed for others, not every beat. Raises: LocalProtocolError for a value that others
        would refuse.
        """
        try:
            self._validator.sequence_of(self._key_of(self._host.peer_id), value)
        except ShardError as error:
            raise LocalProtocolError(f"our own record would be refused: {error.message}") from error
        if value == self._value:
            return
        self._value = value
        pause_s = 0.0 if self._record.shown_at is None else PUT_PAUSE_S
        self._record.due_at = max(trio.current_time(), (self._record.shown_at or 0.0) + pause_s)
        await self._publish_due()

    async def get(self, peer: PeerId) -> bytes | None:
        """The record of `peer` with the highest sequence that the nearest peers have now, or None."""
        key_text = self._key_of(peer)
        key = key_text.encode()
        values: list[bytes] = []
        await self._find_holders(key, values)
        kept = self._kad.value_store.get(key)
        if kept is not None:
            values.append(kept.value)
        return self._validator.best(key_text, values)

    # Lookups.

    async def _look_up(self, key: bytes, ask: Callable[[ID], Awaitable[list[ID]]]) -> tuple[PeerId, ...]:
        """The peers nearest to `key`, each of which answered `ask`; its answer is the closer peers that it names."""
        lookup = Lookup(key, self._starting_points(key), self._host.peer_id)
        changed = trio.Event()

        async def query(peer: PeerId) -> None:
            nonlocal changed
            closer = await self._query(peer, ask)
            if closer is None:
                lookup.fail(peer)
            else:
                lookup.answer(peer, _known(closer))
            changed.set()

        with trio.move_on_after(LOOKUP_S):
            async with trio.open_nursery() as nursery:
                while not lookup.is_done:
                    for peer in lookup.next_peers():
                        nursery.start_soon(query, peer)
                    await changed.wait()
                    changed = trio.Event()
                # What is still under way is too far from the key to matter.
                nursery.cancel_scope.cancel()
        return lookup.found()

    async def _query(self, peer: PeerId, ask: Callable[[ID], Awaitable[T]]) -> T | None:
        """What `ask` gives for `peer`, or None when it did not answer; it leaves the routing table then."""
        asked_at = trio.current_time()
        answer: T | None = None
        with trio.move_on_after(QUERY_S):
            # libp2p gives an empty answer for a failure; whether bytes came says which it is.
            answer = await ask(id_of(peer))
        if answer is None or not self._book.heard_since(peer, asked_at):
            if self._book.may_try(peer, trio.current_time()):
                self._book.failed(peer, trio.current_time())
            self._kad.routing_table.remove_peer(id_of(peer))
            return None
        await self._kad.routing_table.add_peer(id_of(peer))
        return answer

    def _starting_points(self, key: bytes) -> list[PeerId]:
        nearest = self._kad.routing_table.find_local_closest_peers(key, WIDTH)
        peers = _known(nearest)
        if len(peers) < SMALL_TABLE:
            peers.extend(self._book.candidates(trio.current_time(), WIDTH))
        return peers

    async def _closest(self, peer: ID, key: bytes) -> list[ID]:
        return await self._kad.peer_routing._query_peer_for_closest(peer, key)

    async def _find_holders(self, key: bytes, values: list[bytes]) -> tuple[PeerId, ...]:
        """The peers nearest to a record's key; what they hold under it is added to `values`.

        libp2p refuses a search for the mere nearest peers of so long a key.
        """

        async def ask(peer: ID) -> list[ID]:
            answer: Any = await self._kad.value_store._get_from_peer(
                peer, key, return_record=True, return_closer_peers=True
            )
            record, closer = answer
            if isinstance(record, Record):
                values.append(record.value)
            return list(closer)

        return await self._look_up(key, ask)

    async def _find_nearest(self, key: bytes) -> tuple[PeerId, ...]:
        return await self._look_up(key, lambda peer: self._closest(peer, key))

    async def _find_neighbours(self) -> None:
        await self._find_nearest(id_of(self._host.peer_id).to_bytes())

    # What we publish.

    async def _publish_due(self) -> None:
        """Show what is due, one after the other: each holds up to a lookup's traffic."""
        async with self._publishing:
            for topic, published in list(self._topics.items()):
                if published.due_at <= trio.current_time():
                    key = _topic_key(topic)
                    reached = await self._tell(await self._find_nearest(key), self._provide, key)
                    published.due_at = trio.current_time() + (ADVERTISE_S if reached else RETRY_S)
                    log.debug("topic_advertised", reached=reached)
            if self._value is not None and self._record.due_at <= trio.current_time():
                await self._put_now(self._value)

    async def _put_now(self, value: bytes) -> None:
        key = self._key_of(self._host.peer_id).encode()
        self._kad.value_store.put(key, value)

        async def store(peer: ID, key: bytes) -> bool:
            return await self._kad.value_store._store_at_peer(peer, key, value)

        nearest = await self._find_holders(key, [])
        reached = await self._tell(nearest[:REPLICAS], store, key)
        now = trio.current_time()
        self._record.shown_at = now
        if value == self._value:
            self._record.due_at = now + (PUT_S if reached else RETRY_S)
        log.debug("record_put", reached=reached)

    async def _provide(self, peer: ID, key: bytes) -> bool:
        return await self._kad.provider_store._send_add_provider(peer, key)

    async def _tell(self, peers: Iterable[PeerId], tell: Callable[[ID, bytes], Awaitable[bool]], key: bytes) -> int:
        """Tell each of `peers`; how many took it."""
        took: list[bool] = []

        async def tell_one(peer: PeerId) -> None:
            with trio.move_on_after(QUERY_S):
                took.append(await tell(id_of(peer), key))

        async with trio.open_nursery() as nursery:
            for peer in peers:
                nursery.start_soon(tell_one, peer)
        return sum(took)

    def _key_of(self, peer: PeerId) -> str:
        return f"/{self._namespace}/{peer}"

    # Upkeep.

    async def keep(self) -> None:
        """Know the peers that connect, notice those that left, and show again what is due, until cancelled."""
        started_at = trio.current_time()
        check_at, refresh_at = started_at + CHECK_S, started_at + REFRESH_S
        while True:
            await trio.sleep(TICK_S)
            now = trio.current_time()
            await self._acquaint(self._strangers(now))
            await self._publish_due()
            if now >= check_at:
                check_at = now + CHECK_S
                await self._check_oldest()
            if now >= refresh_at:
                refresh_at = now + REFRESH_S
                self._kad_host.refresh_addresses()
                self._kad.provider_store.cleanup_expired()
                self._kad.value_store.cleanup_expired()
                await self._find_neighbours()

    def _strangers(self, now: float) -> list[PeerId]:
        """Whom to get to know: connected peers that are not in the table, and anybody while it is nearly empty."""
        peers = [peer for peer in self._host.connected_peers() if self._book.may_try(peer, now)]
        if self.table_size < SMALL_TABLE:
            peers.extend(self._book.candidates(now, WIDTH))
        known = set(_known(self._kad.routing_table.get_peer_ids()))
        return [peer for peer in dict.fromkeys(peers) if peer not in known and peer != self._host.peer_id]

    async def _acquaint(self, peers: Sequence[PeerId]) -> None:
        """Ask each peer for our neighbours: whoever answers is a server and enters the table."""
        key = id_of(self._host.peer_id).to_bytes()
        room = trio.CapacityLimiter(PARALLEL)

        async def ask(peer: PeerId) -> None:
            async with room:
                await self._query(peer, lambda asked: self._closest(asked, key))

        async with trio.open_nursery() as nursery:
            for peer in peers:
                nursery.start_soon(ask, peer)

    async def _check_oldest(self) -> None:
        """Ask the peer of the table that was not heard for longest, so that the dead leave it."""
        peers = _known(self._kad.routing_table.get_peer_ids())
        if peers:
            await self._acquaint([min(peers, key=self._book.heard_at)])


@asynccontextmanager
async def open_directory(
    host: Host, namespace: str, validate: Validate, *, is_server: bool
) -> AsyncIterator[Directory]:
    """Take part in the directory of the peers that `host` reaches.

    `validate(peer, value)` gives the sequence of a peer's record, or raises RemoteProtocolError or IntegrityError.
    With `is_server` we answer others and keep records for them, at the addresses of `host`; else we only ask, and
    nobody's routing table holds us. Leaving ends every task; what we published fades by itself.
    """
    directory = Directory(host, namespace, validate, is_server=is_server)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(directory.keep)
        try:
            yield directory
        finally:
            nursery.cancel_scope.cancel()


def _topic_key(topic: str) -> bytes:
    """A topic's key: the SHA-256 multihash of its name, which alone does not tell the name."""
    return b"\x12\x20" + hashlib.sha256(b"shardp2p topic\0" + topic.encode()).digest()


def _known(peer_ids: Iterable[ID]) -> list[PeerId]:
    """The ids in our form, less those that are none."""
    peers: list[PeerId] = []
    for peer_id in peer_ids:
        with suppress(ConfigError):
            peers.append(peer_of(peer_id))
    return peers
