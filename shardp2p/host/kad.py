"""libp2p's Kademlia DHT over our host: its messages, handler and stores, with our streams, addresses and bounds.

libp2p's `KadDHT` wants a whole libp2p host. What it gets here are the few parts of one that it uses. Why parts of it
are replaced: docs/decisions/0008-directory-over-libp2p-kademlia.md.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

import trio
from libp2p.abc import IHost, INetStream
from libp2p.crypto.keys import PrivateKey
from libp2p.custom_types import TProtocol
from libp2p.kad_dht.common import BUCKET_SIZE
from libp2p.kad_dht.kad_dht import DHTMode, KadDHT
from libp2p.kad_dht.pb.kademlia_pb2 import Record
from libp2p.kad_dht.peer_routing import PeerRouting
from libp2p.kad_dht.provider_store import ProviderRecord, ProviderStore
from libp2p.kad_dht.routing_table import KBucket, RoutingTable
from libp2p.kad_dht.value_store import ValueStore
from libp2p.peer.envelope import Envelope
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from libp2p.records.validator import NamespacedValidator
from multiaddr import Multiaddr

from shardp2p.errors import ConfigError, PeerUnavailableError, RemoteProtocolError
from shardp2p.host.address_book import MAX_ADDRESSES, MAX_PEERS, AddressBook
from shardp2p.host.addresses import CircuitAddress, parse_address
from shardp2p.host.peer_ids import id_of, peer_of
from shardp2p.vocabulary import PeerId
from shardp2p.wire.stream import Stream

if TYPE_CHECKING:
    from shardp2p.host.host import Host

OPEN_S: Final = 3.0
"""To reach a peer for one query; a lookup has others to ask, and seldom waits for more than one of these in a row."""
READ_S: Final = 3.0
"""Without a byte for so long, an answer or the next request does not come."""
MAX_STREAM_BYTES: Final = 256 * 1024
"""What a peer may send on one stream: an answer with 64 providers, 20 peers and a record takes some 60 KiB."""
MAX_INBOUND_STREAMS: Final = 32
MAX_INBOUND_STREAMS_PER_PEER: Final = 8
"""Lookups use one short stream per query; a peer that holds more open keeps others out."""
MAX_PROVIDERS: Final = 64
"""Kept per topic: the last that were heard, so that a swarm of some fifty is found whole."""
MAX_TOPICS: Final = 1024
PROVIDER_LIFETIME_S: Final = 1800.0
"""Without a new word from it a provider is forgotten: it advertises three times in this time."""
MAX_VALUES: Final = 4096
"""Of 16 KiB at most, so 64 MiB when all are as large as they may be."""
VALUE_LIFETIME_S: Final = 3600.0
ANSWERED_S: Final = 900.0
"""A peer that answered within it keeps its place in a full bucket of the routing table."""


class KadStream:
    """What libp2p's DHT uses of an `INetStream`, over a stream of ours, bounded in time and bytes."""

    metric_send_channel: Final = None

    def __init__(self, stream: Stream, book: AddressBook) -> None:
        self._stream = stream
        self._book = book
        self._read_bytes = 0

    @property
    def muxed_conn(self) -> KadStream:
        """Stands for the connection, of which only `peer_id` is asked."""
        return self

    @property
    def peer_id(self) -> ID:
        """The authenticated peer."""
        return id_of(self._stream.peer)

    async def read(self, n: int | None = None) -> bytes:
        """At least one and at most `n` bytes, b"" at the end. Raises: PeerUnavailableError, RemoteProtocolError."""
        room = MAX_STREAM_BYTES - self._read_bytes
        if room <= 0:
            raise RemoteProtocolError(f"more than {MAX_STREAM_BYTES} bytes on one stream of the DHT")
        with trio.move_on_after(READ_S):
            data = await self._stream.receive_some(room if n is None or n < 0 else min(n, room))
            self._read_bytes += len(data)
            if data:
                self._book.heard(self._stream.peer, trio.current_time())
            return data
        raise PeerUnavailableError(f"peer {self._stream.peer} sends nothing for {READ_S:.0f} s")

    async def write(self, data: bytes) -> None:
        """Send all of `data`. Raises: PeerUnavailableError when it cannot leave in time."""
        with trio.move_on_after(READ_S):
            await self._stream.send_all(data)
            return
        raise PeerUnavailableError(f"peer {self._stream.peer} takes nothing for {READ_S:.0f} s")

    async def close(self) -> None:
        """Close both directions. Never raises."""
        await self._stream.close()

    async def reset(self) -> None:
        """Abort both directions. Never raises."""
        await self._stream.reset()


class KadPeerstore:
    """What libp2p's DHT uses of a peerstore, over our bounded address book.

    libp2p's own refuses a peer whose clock went back, keeps every peer it ever heard of, and believes everybody.
    """

    def __init__(self, book: AddressBook) -> None:
        self._book = book
        self._own: Envelope | None = None
        self._envelopes: OrderedDict[ID, Envelope] = OrderedDict()

    def addrs(self, peer_id: ID) -> list[Multiaddr]:
        """What to dial."""
        return [Multiaddr(text) for text in self._book.addresses(peer_of(peer_id))]

    def add_addrs(self, peer_id: ID, addrs: Sequence[Multiaddr], ttl: int = 0) -> None:
        """Addresses that somebody else gave."""
        del ttl  # the book forgets by its own rule
        self._book.learn(peer_of(peer_id), [str(address) for address in addrs], "hearsay")

    def peer_ids(self) -> list[ID]:
        """Nobody beyond the routing table: our lookups choose for themselves where to begin."""
        return []

    def get_protocols(self, peer_id: ID) -> list[str]:
        """Unknown, since nobody identifies itself; `AnsweringTable` knows who serves."""
        return []

    def consume_peer_record(self, envelope: Envelope, ttl: int) -> bool:
        """Take a signed record, whose signature libp2p has checked, unless it is older than what we have."""
        del ttl
        record = envelope.record()
        if ID.from_pubkey(envelope.public_key) != record.peer_id:
            return False
        texts = [str(address) for address in record.addrs[:MAX_ADDRESSES]]
        if self._book.learn(peer_of(record.peer_id), texts, "itself", record.seq):
            self._envelopes[record.peer_id] = envelope
            self._envelopes.move_to_end(record.peer_id)
            if len(self._envelopes) > MAX_PEERS:
                self._envelopes.popitem(last=False)
        return True

    def get_peer_record(self, peer_id: ID) -> Envelope | None:
        """The newest signed record of a peer, to be passed on."""
        return self._envelopes.get(peer_id)

    def get_local_record(self) -> Envelope | None:
        """Our own, as last signed."""
        return self._own

    def set_local_record(self, envelope: Envelope) -> None:
        """Keep our own."""
        self._own = envelope


class KadHost:
    """What libp2p's DHT uses of an `IHost`, over ours."""

    def __init__(self, host: Host, book: AddressBook, *, is_server: bool) -> None:
        self._host = host
        self._id = id_of(host.peer_id)
        self._peerstore = KadPeerstore(book)
        self._is_server = is_server
        self.book = book
        self.is_answering = is_server
        """Whether others may ask us: a peer that is reached over relays only provides, and keeps nothing for them."""
        self.advertised: tuple[Multiaddr, ...] = ()
        self.refresh_addresses()

    def refresh_addresses(self) -> None:
        """Look again at which addresses we have: it lists the machine's interfaces, so not at every message."""
        parsed = [parse_address(text) for text in (self._host.addresses() if self._is_server else ())]
        if not self.is_answering:
            parsed = [address for address in parsed if isinstance(address, CircuitAddress)]
        self.advertised = tuple(Multiaddr(str(replace(address, peer=None))) for address in parsed[:MAX_ADDRESSES])

    def get_id(self) -> ID:
        """Our own id."""
        return self._id

    def get_private_key(self) -> PrivateKey:
        """Signs our addresses and records."""
        return self._host.private_key

    def get_addrs(self) -> list[Multiaddr]:
        """Where others dial us: no straight address for who does not answer, so that nobody takes it for a server."""
        return list(self.advertised)

    def get_peerstore(self) -> KadPeerstore:
        """Where others are dialled."""
        return self._peerstore

    def get_connected_peers(self) -> list[ID]:
        """The peers to which a connection lives."""
        return [id_of(peer) for peer in self._host.connected_peers()]

    def is_connected(self, peer: PeerId) -> bool:
        """Whether a connection lives: the peer's id is proven, and it is there."""
        return self._host.is_connected(peer)

    def set_stream_handler(self, protocol_id: TProtocol, stream_handler: object) -> None:
        """Nothing: the directory serves the protocol, so that it can bound who asks."""

    async def new_stream(self, peer_id: ID, protocol_ids: Sequence[TProtocol]) -> KadStream:
        """A stream to a peer by our own dialling. Raises: PeerUnavailableError, at once while the peer has a pause."""
        peer = peer_of(peer_id)
        now = trio.current_time()
        if not self.book.may_try(peer, now):
            raise PeerUnavailableError(f"peer {peer} did not answer a moment ago")
        reason = f"no answer within {OPEN_S:.0f} s"
        with trio.move_on_after(OPEN_S):
            try:
                stream = await self._host.open_stream(peer, protocol_ids[0], self.book.addresses(peer))
                return KadStream(stream, self.book)
            except (PeerUnavailableError, ConfigError) as error:
                reason = error.message
        self.book.failed(peer, now)
        raise PeerUnavailableError(f"cannot ask peer {peer}: {reason}")


class AnsweringBucket(KBucket):
    """A bucket that asks the address book, not the network, whether its oldest peer is still there."""

    async def _ping_peer(self, peer_id: ID) -> bool:
        host = cast("KadHost", self.host)
        return host.book.heard_since(peer_of(peer_id), trio.current_time() - ANSWERED_S)

    def split(self) -> tuple[KBucket, KBucket]:
        """Two buckets of half the range each."""
        lower, upper = (self._like(half) for half in super().split())
        return lower, upper

    def _like(self, half: KBucket) -> KBucket:
        made = AnsweringBucket(self.host, half.bucket_size, half.min_range, half.max_range, half.max_peers_per_subnet)
        made.peers = half.peers
        return made


class AnsweringTable(RoutingTable):
    """A routing table of peers to which a connection lives or lived: hearsay alone brings nobody in.

    The members of a swarm often share a network, so that libp2p's limit of two per subnet would keep most of them out.
    """

    def __init__(self, local_id: ID, host: IHost) -> None:
        super().__init__(local_id, host, max_peers_per_subnet=0)
        self.buckets = [AnsweringBucket(host, BUCKET_SIZE, max_peers_per_subnet=0)]

    async def add_peer(self, peer_obj: PeerInfo | ID, *, skip_server_mode_check: bool = False) -> bool:
        """Add a connected peer of which a straight address is known, hence a server. Whether it is in the table now."""
        peer_id = peer_obj.peer_id if isinstance(peer_obj, PeerInfo) else peer_obj
        host, peer = cast("KadHost", self.host), peer_of(peer_id)
        if not host.is_connected(peer) or not host.book.is_straight(peer):
            return False
        return await super().add_peer(peer_id, skip_server_mode_check=True)


class RecentProviders(ProviderStore):
    """Who provides a topic: the last heard, for a short time, and never from what was found for ourselves."""

    def add_provider(self, key: bytes, provider: PeerInfo) -> None:
        """Note a provider as just heard; the one not heard for longest makes room."""
        known = self.providers.setdefault(key, {})
        name = str(provider.peer_id)
        known.pop(name, None)
        if len(known) >= MAX_PROVIDERS:
            del known[next(iter(known))]
        known[name] = ProviderRecord(
            PeerInfo(provider.peer_id, provider.addrs[:MAX_ADDRESSES]), timestamp=trio.current_time()
        )
        if len(self.providers) > MAX_TOPICS:
            del self.providers[next(iter(self.providers))]

    def get_providers(self, key: bytes) -> list[PeerInfo]:
        """The providers heard lately, ourselves included while we provide."""
        cutoff = trio.current_time() - PROVIDER_LIFETIME_S
        known = self.providers.get(key, {})
        recent = [record.provider_info for record in known.values() if record.timestamp > cutoff]
        if key in self.providing_keys:
            recent.append(PeerInfo(self.local_peer_id, self.host.get_addrs()))
        return recent

    def cleanup_expired(self) -> None:
        """Forget who was not heard for long."""
        cutoff = trio.current_time() - PROVIDER_LIFETIME_S
        for key, known in list(self.providers.items()):
            for name in [name for name, record in known.items() if record.timestamp <= cutoff]:
                del known[name]
            if not known:
                del self.providers[key]


class RecentValues(ValueStore):
    """Records that others gave us to keep: so many, for so long."""

    def put_record(self, key: bytes, record: Record) -> None:
        """Keep a record that was validated; the one not renewed for longest makes room."""
        self.store.pop(key, None)
        if len(self.store) >= MAX_VALUES:
            del self.store[next(iter(self.store))]
        self.store[key] = (record, time.time() + VALUE_LIFETIME_S)


class BoundedKad(KadDHT):
    """libp2p's DHT with our table, stores and bounds. Nothing of it runs by itself: `run` is not used."""

    def __init__(self, host: KadHost, validator: NamespacedValidator, *, is_server: bool) -> None:
        libp2p_host = cast("IHost", host)
        mode = DHTMode.SERVER if is_server else DHTMode.CLIENT
        super().__init__(libp2p_host, mode, validator=validator, validator_changed=True, strict_validation=True)
        self.routing_table = AnsweringTable(host.get_id(), libp2p_host)
        self.peer_routing = PeerRouting(libp2p_host, self.routing_table)
        self.value_store = RecentValues(libp2p_host, host.get_id())
        self.provider_store = RecentProviders(libp2p_host, self.peer_routing)
        self._inbound_limiter = trio.CapacityLimiter(MAX_INBOUND_STREAMS)
        self._inbound: dict[PeerId, int] = {}
        self._kad_host = host
        self._book = host.book
        self.is_open = True

    def forget_expired(self) -> None:
        """Drop what others have not renewed in time."""
        self.provider_store.cleanup_expired()
        self.value_store.cleanup_expired()

    async def serve(self, stream: Stream) -> None:
        """Answer the requests on one stream, as a handler of our host."""
        peer = stream.peer
        if (
            not (self.is_open and self._kad_host.is_answering)
            or self._inbound.get(peer, 0) >= MAX_INBOUND_STREAMS_PER_PEER
        ):
            await stream.reset()
            return
        self._inbound[peer] = self._inbound.get(peer, 0) + 1
        try:
            await self.handle_stream(cast("INetStream", KadStream(stream, self._book)))
        finally:
            self._inbound[peer] -= 1
            if not self._inbound[peer]:
                del self._inbound[peer]
        # Its first request brought its addresses, if it has any: a server.
        await self.routing_table.add_peer(id_of(peer))
