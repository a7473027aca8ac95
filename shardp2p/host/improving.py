"""Gets connections off relays: dials straight where that has become possible, and has what is open follow.

Holes are punched by punch/keeper.py; a straight connection that comes of it is used here like any other. When the path
of a connection dies, whoever carries it asks here for another. With peers that are needed at every moment a second
connection stands ready, over a relay: to dial one takes several round trips, and to move there two.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

import structlog
import trio

from shardp2p.errors import ConfigError, PeerUnavailableError
from shardp2p.host.addresses import Address, CircuitAddress, parse_address
from shardp2p.host.announcing import dialable_from
from shardp2p.host.carry.carrier import rides_on
from shardp2p.host.dialer import NobodyListensError, Ways
from shardp2p.host.host import Host
from shardp2p.host.muxer import Muxer
from shardp2p.host.peer_ids import peer_of
from shardp2p.host.punch.schedule import Circumstances, Schedule
from shardp2p.vocabulary import PeerId

LOOK_S: Final = 0.25
"""How often to look for connections that have a better path."""
CALM_S: Final = 1.0
"""How often to look, where all paths are straight, which peers are needed."""
DIAL_S: Final = 8.0
"""For all the straight addresses of a peer together."""
MOVE_AGAIN_S: Final = 5.0
"""After a move that failed."""
MAX_DIALS: Final = 8
"""Peers that are dialled at the same time."""
MAX_SPARES: Final = 8
"""Peers with which a connection stands ready: more than one has neighbours in the rings that it works for."""

log = structlog.get_logger()

AddressesOf = Callable[[PeerId], Sequence[str]]
"""The newest addresses that a peer tells of itself, as multiaddrs; none for a peer that is not known."""


class Improver:
    """One host's. `run` is its lifetime."""

    def __init__(self, host: Host, addresses_of: AddressesOf, chance: random.Random | None = None) -> None:
        self._host = host
        self._addresses_of = addresses_of
        self.needed: Callable[[], Sequence[PeerId]] = lambda: ()
        """The peers with which a connection is to stand ready, those that matter most first."""
        chance = chance or random.Random()
        self._schedule = Schedule(chance.random)
        self._spare_schedule = Schedule(chance.random)
        self._dialling: set[PeerId] = set()
        self._reconnecting: dict[PeerId, trio.Lock] = {}
        self._moving: dict[Muxer, float] = {}
        """Connections that move or could not, and until when they are left alone."""

    async def run(self) -> None:
        """Look after all connections until cancelled."""
        self._host.carrier.reconnect = self._reconnect
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    has_indirect = self._host.has_indirect
                    for peer in self._host.connected_peers() if has_indirect else ():
                        self._look(peer, nursery)
                    for peer in self.needed()[:MAX_SPARES]:
                        self._make_movable(peer)
                        self._look_for_spare(peer, nursery)
                    now = trio.current_time()
                    self._moving = {muxer: until for muxer, until in self._moving.items() if until > now}
                    if has_indirect:
                        await trio.sleep(LOOK_S)
                        continue
                    with trio.move_on_after(CALM_S):
                        await self._host.wait_arrival()
        finally:
            self._host.carrier.reconnect = None

    def _look(self, peer: PeerId, nursery: trio.Nursery) -> None:
        connections = self._host.connections(peer)
        best = connections[0]
        if best.path.is_direct and best.carrier is None:
            for other in () if best.link.is_troubled else connections[1:]:
                carried = sum(one.carrier is other for one in connections)  # which move by themselves
                if not other.path.is_direct and other.streams > carried and self._should_move(other):
                    self._moving[other] = trio.current_time() + MOVE_AGAIN_S
                    nursery.start_soon(self._move, other, best)
        elif peer not in self._dialling and len(self._dialling) < MAX_DIALS:
            circumstances = self._circumstances(peer)
            if circumstances.their_addresses and self._schedule.is_due(peer, circumstances, trio.current_time()):
                self._dialling.add(peer)
                nursery.start_soon(self._dial, peer, circumstances, "straight", self._schedule)

    def _make_movable(self, peer: PeerId) -> None:
        """Have straight connections survive their paths as others do: of the two sides, who dialled one sees to it."""
        for muxer in self._host.connections(peer):
            if muxer.is_initiator and muxer.is_as_dialled:
                self._host.carrier.add(muxer)

    def _look_for_spare(self, peer: PeerId, nursery: trio.Nursery) -> None:
        """Have one over a relay beside the straight one: of the two sides, who dialled that sees to it."""
        best, *others = self._host.connections(peer) or (None,)
        if best is None or not (best.is_initiator and best.path.is_direct and best.link.is_movable):
            return
        if peer in self._dialling or any(not other.path.is_direct and other.carrier is None for other in others):
            return
        over_relays = [address for address in self._worthwhile(peer) if isinstance(address, CircuitAddress)]
        circumstances = Circumstances(their_addresses=tuple(map(str, over_relays)))
        if over_relays and self._spare_schedule.is_due(peer, circumstances, trio.current_time()):
            self._dialling.add(peer)
            nursery.start_soon(self._dial, peer, circumstances, "relayed", self._spare_schedule)

    def _should_move(self, muxer: Muxer) -> bool:
        """Of the two sides, who dialled a connection moves it; one without streams ends by itself."""
        return muxer.is_initiator and muxer.link.is_movable and muxer not in self._moving

    async def _move(self, muxer: Muxer, over: Muxer) -> None:
        try:
            await self._host.carrier.move(muxer, over)
        except PeerUnavailableError as error:
            log.debug("not_moved", reason=error.message)

    async def _dial(self, peer: PeerId, circumstances: Circumstances, ways: Ways, schedule: Schedule) -> None:
        """Try the addresses of a peer that lead to it in these ways."""
        failure = f"no answer within {DIAL_S:.0f} s"
        try:
            with trio.move_on_after(DIAL_S):
                await self._host.connect(peer, self._addresses_of(peer), ways=ways)
                schedule.succeed(peer, circumstances, trio.current_time())
                return
        except (PeerUnavailableError, ConfigError) as error:
            failure = error.message
        finally:
            self._dialling.discard(peer)
        log.debug("not_dialled", peer=peer, ways=ways, reason=failure)
        schedule.fail(peer, circumstances, trio.current_time())

    def _circumstances(self, peer: PeerId) -> Circumstances:
        """What a dial depends on: where we are, and where the peer can be dialled straight from here."""
        straight = [str(address) for address in self._worthwhile(peer) if not isinstance(address, CircuitAddress)]
        ours = tuple((address, 0) for address in sorted(self._host.listen_addresses()))
        return Circumstances(ours, "unknown", tuple(straight))

    def _worthwhile(self, peer: PeerId) -> Sequence[Address]:
        """The addresses of a peer that can work from here."""
        parsed = [parse_address(text) for text in self._addresses_of(peer)]
        return parsed if self._host.standing is None else dialable_from(self._host.standing, parsed)

    async def _reconnect(self, muxer: Muxer) -> Muxer | None:
        """Another connection to the peer of one whose path is in trouble; those that are at the same time share it."""
        peer = peer_of(muxer.peer_id)
        lock = self._reconnecting.setdefault(peer, trio.Lock())
        try:
            async with lock:
                for other in self._host.connections(peer):
                    if not other.is_doubtful and not rides_on(other, muxer):
                        return other
                return await self._dial_all_ways(peer)
        finally:
            if not lock.locked():
                self._reconnecting.pop(peer, None)

    async def _dial_all_ways(self, peer: PeerId) -> Muxer | None:
        """A new connection, by all ways at once: whichever comes first. Raises: NobodyListensError."""
        addresses = self._addresses_of(peer)
        found: list[Muxer] = []
        refusals: list[NobodyListensError] = []

        async def try_way(way: Ways, scope: trio.CancelScope) -> None:
            try:
                found.append(await self._host.connect(peer, addresses, ways=way))
                scope.cancel()
            except NobodyListensError as error:
                refusals.append(error)
            except (PeerUnavailableError, ConfigError) as error:
                log.debug("not_reconnected", peer=peer, reason=error.message)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(try_way, "straight", nursery.cancel_scope)
            nursery.start_soon(try_way, "relayed", nursery.cancel_scope)
        if not found and refusals:
            raise refusals[0]
        return found[0] if found else None
