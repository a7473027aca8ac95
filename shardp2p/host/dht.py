"""A directory that no peer owns: who takes part in a topic, and the last signed record of each peer.

It is a libp2p Kademlia DHT over our host. What it tells is a hint: a provider or a record may be of a peer that is
gone, so ask the peer itself. Nothing here answers from what was found before. Protocol: docs/protocols/discovery.md.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import structlog
import trio
from libp2p.kad_dht.common import PROTOCOL_ID
from libp2p.peer.id import ID
from libp2p.records.validator import NamespacedValidator

from shardp2p.errors import ConfigError, LocalProtocolError, ShardError
from shardp2p.host.address_book import MAX_ADDRESSES, AddressBook, Provider
from shardp2p.host.beat import next_beat
from shardp2p.host.failures import single_errors
from shardp2p.host.host import Host
from shardp2p.host.kad import BoundedKad, KadHost
from shardp2p.host.kad_queries import SMALL_TABLE, Queries, known_ids
from shardp2p.host.lookup import WIDTH
from shardp2p.host.record_validator import RecordValidator, Validate
from shardp2p.vocabulary import PeerId

REPLICAS: Final = 10
"""How many of the nearest peers keep a record: with four of ten peers gone, one record in ten thousand is lost until
it is put again, for half the traffic of the protocol's twenty."""
MAX_TOPICS: Final = 64
"""A peer holds layers of a few models; each topic costs a lookup every few minutes."""
MAX_FOUND: Final = 256
"""Providers in one answer: more than anybody asks one after the other; liars could name peers for ever."""
ADVERTISEMENTS: Final = 5
PACE_S: Final = 10.0
"""At most so many topics are told in so long: libp2p drops the eleventh of one peer in ten seconds without a word, and
a peer that restarts has told some just before."""
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

log = structlog.get_logger()


class Directory:
    """Made by `open_directory`. Any task may call it; what it publishes is published one at a time."""

    def __init__(self, host: Host, namespace: str, validate: Validate, *, is_server: bool) -> None:
        self._host = host
        self._namespace = namespace
        self._is_server = is_server
        self._book = AddressBook(host.peer_id)
        self._validator = RecordValidator(namespace, validate)
        self._kad_host = KadHost(host, self._book, is_server=is_server)
        validator = NamespacedValidator({namespace: self._validator}, strict_validation=True)
        self._kad = BoundedKad(self._kad_host, validator, is_server=is_server)
        self._queries = Queries(self._kad, self._book, host.peer_id)
        self._topic_due_at: dict[str, float] = {}
        self._record: bytes | None = None
        self._record_put_at: float | None = None
        self._record_due_at = 0.0
        self._advertised_at: deque[float] = deque(maxlen=ADVERTISEMENTS)
        self._publishing = trio.Lock()
        if is_server:
            host.serve(PROTOCOL_ID, self._kad.serve)

    @property
    def table_size(self) -> int:
        """How many peers the routing table holds."""
        return len(self._queries.table())

    def addresses(self, peer: PeerId) -> tuple[str, ...]:
        """Where `peer` can be dialled, as far as the directory knows."""
        return self._book.addresses(peer)

    def learn(self, peer: PeerId, addresses: Sequence[str]) -> None:
        """Take note of addresses that somebody gave for `peer`, as a gossiped record; the peer's own outrank them."""
        self._book.learn(peer, addresses, "hearsay")

    def answer_others(self, is_answering: bool) -> None:
        """Whether others may ask us and keep records with us, from now on. Who is reached over relays should not."""
        if self._is_server and is_answering != self._kad_host.is_answering:
            self._kad_host.is_answering = is_answering
            self._kad_host.refresh_addresses()

    async def bootstrap(self, peers: Sequence[tuple[PeerId, Sequence[str]]]) -> None:
        """Get to know the directory through `peers` and their addresses; they are kept for later as well.

        Peers that cannot be reached are tried again in the background, so this never raises for them.
        """
        for peer, addresses in peers:
            self._book.learn(peer, addresses, "user")
        await self._queries.acquaint([peer for peer, _ in peers])
        await self._queries.find_neighbours()

    async def advertise(self, topic: str) -> None:
        """Take part in `topic` from now on: told to the nearest peers now, and again for as long as we live.

        Returns after the first attempt; one that reaches nobody is repeated in the background, where the sixth topic
        within 10 s waits as well.
        Raises: ConfigError for more topics than a peer may have, and for a directory that only asks.
        """
        if not self._is_server:
            raise ConfigError("a client of the directory cannot advertise: nobody could dial it")
        if topic not in self._topic_due_at:
            if len(self._topic_due_at) >= MAX_TOPICS:
                raise ConfigError(f"a peer may take part in {MAX_TOPICS} topics; withdraw one first")
            self._topic_due_at[topic] = trio.current_time()
            self._kad.provider_store.providing_keys.add(_topic_key(topic))
        await self._publish_due()

    def withdraw(self, topic: str) -> None:
        """Take part no more. Others forget us by themselves, within the life of an entry."""
        self._topic_due_at.pop(topic, None)
        self._kad.provider_store.providing_keys.discard(_topic_key(topic))

    async def find(self, topic: str) -> tuple[Provider, ...]:
        """The peers, other than ourselves, that take part in `topic`, as the nearest peers say now.

        Those that most peers name come first; at most 256. Some may be gone.
        """
        key = _topic_key(topic)
        answers = await self._queries.find_providers(key)
        votes: Counter[PeerId] = Counter()
        for answer in [*answers, self._kad.provider_store.get_providers(key)]:
            # Nobody has two votes: a peer counts once in each answer.
            said = {peer: info for info in answer for peer in known_ids([info.peer_id])}
            votes.update(said.keys())
            for peer, info in said.items():
                self._book.learn(peer, [str(address) for address in info.addrs[:MAX_ADDRESSES]], "hearsay")
        del votes[self._host.peer_id]
        return tuple(Provider(peer, self._book.addresses(peer)) for peer, _ in votes.most_common(MAX_FOUND))

    async def put(self, value: bytes) -> None:
        """Let `value` be our record from now on, in place of an older one.

        Nothing is sent when it is unchanged; one that follows another within 30 s is put in the background, the
        latest only. Put what changed for others, not every beat.
        Raises: LocalProtocolError for a value that others would refuse.
        """
        if value == self._record:
            return
        try:
            self._validator.sequence_of(self._key_of(self._host.peer_id), value)
        except ShardError as error:
            raise LocalProtocolError(f"our own record would be refused: {error.message}") from error
        self._record = value
        self._record_due_at = 0.0 if self._record_put_at is None else self._record_put_at + PUT_PAUSE_S
        await self._publish_due()

    async def get(self, peer: PeerId) -> bytes | None:
        """The record of `peer` with the highest sequence that the nearest peers have now, or None."""
        key_text = self._key_of(peer)
        values: list[bytes] = []
        await self._queries.find_holders(key_text.encode(), values)
        kept = self._kad.value_store.get(key_text.encode())
        if kept is not None:
            values.append(kept.value)
        return self._validator.best(key_text, values)

    async def keep(self) -> None:
        """Know the peers that connect, notice those that left, and show again what is due, until cancelled."""
        started_at = trio.current_time()
        check_at, refresh_at = started_at + CHECK_S, started_at + REFRESH_S
        while True:
            await trio.sleep_until(next_beat(trio.current_time(), TICK_S))
            now = trio.current_time()
            await self._queries.acquaint(self._strangers(now))
            await self._publish_due()
            if now >= check_at:
                check_at = now + CHECK_S
                await self._queries.check_oldest(self._host.connected_peers())
            if now >= refresh_at:
                refresh_at = now + REFRESH_S
                self._kad_host.refresh_addresses()
                self._kad.forget_expired()
                await self._queries.find_neighbours()

    def close(self) -> None:
        """Answer nobody any more."""
        self._kad.is_open = False

    def _strangers(self, now: float) -> list[PeerId]:
        """Whom to get to know: connected peers that are not in the table, and anybody while it is nearly empty."""
        known = set(self._queries.table())
        peers = [peer for peer in self._host.connected_peers() if self._book.may_try(peer, now)]
        if len(known) < SMALL_TABLE:
            peers.extend(self._book.candidates(now, WIDTH))
        return [peer for peer in dict.fromkeys(peers) if peer not in known]

    async def _publish_due(self) -> None:
        """Show what is due, one after the other: each holds up to a lookup's traffic."""
        async with self._publishing:
            for topic, due_at in list(self._topic_due_at.items()):
                now = trio.current_time()
                is_paced = len(self._advertised_at) < ADVERTISEMENTS or now - self._advertised_at[0] >= PACE_S
                if due_at <= now and is_paced:
                    self._advertised_at.append(now)
                    await self._advertise_now(topic)
            if self._record is not None and self._record_due_at <= trio.current_time():
                await self._put_now(self._record)

    async def _advertise_now(self, topic: str) -> None:
        key = _topic_key(topic)

        async def provide(peer: ID) -> bool:
            return await self._kad.provider_store._send_add_provider(peer, key)

        reached = await self._queries.tell(await self._queries.find_nearest(key), provide)
        if topic in self._topic_due_at:
            self._topic_due_at[topic] = trio.current_time() + (ADVERTISE_S if reached else RETRY_S)
        log.debug("topic_advertised", reached=reached)

    async def _put_now(self, value: bytes) -> None:
        key = self._key_of(self._host.peer_id).encode()
        self._kad.value_store.put(key, value)

        async def store(peer: ID) -> bool:
            return await self._kad.value_store._store_at_peer(peer, key, value)

        nearest = await self._queries.find_holders(key, [])
        reached = await self._queries.tell(nearest[:REPLICAS], store)
        self._record_put_at = trio.current_time()
        if value == self._record:
            self._record_due_at = self._record_put_at + (PUT_S if reached else RETRY_S)
        log.debug("record_put", reached=reached)

    def _key_of(self, peer: PeerId) -> str:
        return f"/{self._namespace}/{peer}"


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
    with single_errors():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(directory.keep)
            try:
                yield directory
            finally:
                directory.close()
                nursery.cancel_scope.cancel()


def _topic_key(topic: str) -> bytes:
    """A topic's key: the SHA-256 multihash of its name, which alone does not tell the name."""
    return b"\x12\x20" + hashlib.sha256(b"shardp2p topic\0" + topic.encode()).digest()
