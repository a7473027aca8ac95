"""Questions to other peers' part of the DHT: lookups that the dead hold up little, and telling many at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import trio
from libp2p.kad_dht.pb.kademlia_pb2 import Record
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo

from shardp2p.errors import ConfigError
from shardp2p.host.address_book import AddressBook
from shardp2p.host.kad import MAX_PROVIDERS, BoundedKad
from shardp2p.host.lookup import PARALLEL, WIDTH, Lookup
from shardp2p.host.peer_ids import id_of, peer_of
from shardp2p.vocabulary import PeerId

QUERY_S: Final = 5.0
"""For one question to one peer, dialling included: after it the lookup goes on without that peer."""
LOOKUP_S: Final = 15.0
"""For a whole lookup; what was found by then is the answer."""
SMALL_TABLE: Final = 8
"""With fewer peers than this in the table, every known peer that may be tried is tried."""

T = TypeVar("T")
Ask = Callable[[ID], Awaitable[list[ID]]]
"""Asks one peer; gives the closer peers that it names."""


class Queries:
    """Asks over `kad`, keeps its routing table true and `book` informed. `ours` is our own id."""

    def __init__(self, kad: BoundedKad, book: AddressBook, ours: PeerId) -> None:
        self._kad = kad
        self._book = book
        self._ours = ours

    def table(self) -> list[PeerId]:
        """The peers in the routing table."""
        return known_ids(self._kad.routing_table.get_peer_ids())

    async def find_neighbours(self) -> None:
        """Look up ourselves, so that our neighbours and we know each other."""
        await self.find_nearest(id_of(self._ours).to_bytes())

    async def find_nearest(self, key: bytes) -> tuple[PeerId, ...]:
        """The peers nearest to `key`, nearest first. `key` is a multihash, or 50 bytes at most."""
        return await self._look_up(key, lambda peer: self._ask_closest(peer, key))

    async def find_holders(self, key: bytes, values: list[bytes]) -> tuple[PeerId, ...]:
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

    async def find_providers(self, key: bytes) -> list[list[PeerInfo]]:
        """The providers of a topic's key that each of the nearest peers names."""
        answers: list[list[PeerInfo]] = []

        async def ask(peer: ID) -> list[ID]:
            providers, closer = await self._kad.provider_store._get_providers_from_peer_with_closers(peer, key)
            answers.append(providers[:MAX_PROVIDERS])
            return closer

        await self._look_up(key, ask)
        return answers

    async def tell(self, peers: Iterable[PeerId], tell: Callable[[ID], Awaitable[bool]]) -> int:
        """Tell each of `peers` at once; how many took it."""
        took: list[bool] = []

        async def tell_one(peer: PeerId) -> None:
            with trio.move_on_after(QUERY_S):
                took.append(await tell(id_of(peer)))

        async with trio.open_nursery() as nursery:
            for peer in peers:
                nursery.start_soon(tell_one, peer)
        return sum(took)

    async def acquaint(self, peers: Sequence[PeerId]) -> None:
        """Ask each peer for our neighbours: whoever answers is a server and enters the table."""
        key = id_of(self._ours).to_bytes()
        room = trio.CapacityLimiter(PARALLEL)

        async def ask(peer: PeerId) -> None:
            async with room:
                await self._query(peer, lambda asked: self._ask_closest(asked, key))

        async with trio.open_nursery() as nursery:
            for peer in peers:
                nursery.start_soon(ask, peer)

    async def check_oldest(self, connected: Iterable[PeerId]) -> None:
        """Ask the peer of the table that was not heard for longest, so that the dead leave it.

        Those to whom we are `connected` live: to ask them would be chatter.
        """
        peers = set(self.table()).difference(connected)
        if peers:
            await self.acquaint([min(peers, key=self._book.heard_at)])

    async def _look_up(self, key: bytes, ask: Ask) -> tuple[PeerId, ...]:
        """The peers nearest to `key`, each of which answered `ask`."""
        lookup = Lookup(key, self._starting_points(key), self._ours)
        changed = trio.Event()

        async def query(peer: PeerId) -> None:
            closer = await self._query(peer, ask)
            if closer is None:
                lookup.fail(peer)
            else:
                lookup.answer(peer, known_ids(closer))
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
        peers = known_ids(self._kad.routing_table.find_local_closest_peers(key, WIDTH))
        if len(peers) < SMALL_TABLE:
            peers.extend(self._book.candidates(trio.current_time(), WIDTH))
        return peers

    async def _ask_closest(self, peer: ID, key: bytes) -> list[ID]:
        return await self._kad.peer_routing._query_peer_for_closest(peer, key)


def known_ids(peer_ids: Iterable[ID]) -> list[PeerId]:
    """The ids in our form, less those that are none."""
    peers: list[PeerId] = []
    for peer_id in peer_ids:
        with suppress(ConfigError):
            peers.append(peer_of(peer_id))
    return peers
