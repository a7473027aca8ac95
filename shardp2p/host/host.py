"""A libp2p host: TCP, Noise and Yamux, as the `Network` that our services see.

libp2p's swarm keeps the connections; sockets, dialling, liveness and the lifetime of every task are ours, in the
nursery of `open_host`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import structlog
import trio
from libp2p.abc import INetConn, INetStream
from libp2p.crypto.keys import PrivateKey
from libp2p.custom_types import TProtocol
from libp2p.host.basic_host import BasicHost
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.protocol_muxer.multiselect import Multiselect
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator
from multiaddr import Multiaddr

from shardp2p.errors import OverloadedError, PeerUnavailableError, ShardError
from shardp2p.host import patches
from shardp2p.host.addresses import Endpoint, dialable_addresses, parse_listen_address
from shardp2p.host.announcing import Standing
from shardp2p.host.carry.carrier import Carrier
from shardp2p.host.dial_back import dial_back
from shardp2p.host.dialer import Circuits, Ways, dial, upgrade
from shardp2p.host.failures import HANDSHAKE_FAILURES, NEGOTIATION_FAILURES, single_errors
from shardp2p.host.libp2p_host import make_libp2p_host, swarm_of
from shardp2p.host.muxed_stream import MuxedStream
from shardp2p.host.muxer import GOODBYE, Muxer
from shardp2p.host.negotiation import NEGOTIATION_S, negotiated_stream, negotiation_failure
from shardp2p.host.path import DIRECT, Path, upgrading_path
from shardp2p.host.peer_ids import id_of, peer_of
from shardp2p.host.self_stream import SelfStream, open_pair
from shardp2p.host.stream import HostStream
from shardp2p.host.tcp import BufferedTcpStream, open_listeners
from shardp2p.identity.keys import Identity
from shardp2p.identity.membership import Membership
from shardp2p.vocabulary import PeerId
from shardp2p.wire.dialling_back import DialOutcome
from shardp2p.wire.protocols import CARRY
from shardp2p.wire.stream import Handler, Stream

MAX_HANDSHAKES: Final = 64
"""Strangers that are shaking hands at the same time; a further one takes the place of the oldest."""

Upgrade = Callable[[trio.SocketStream], Awaitable[Muxer | None]]
"""Makes a connection of an accepted socket, or gives None when it does not come about."""

log = structlog.get_logger()


class Host:
    """Implements `shardp2p.wire.stream.Network`. Made by `open_host`."""

    def __init__(self, identity: Identity, libp2p_host: BasicHost, listeners: Sequence[trio.SocketListener]) -> None:
        self._peer_id = identity.peer_id
        self._private_key = libp2p_host.get_private_key()
        self._swarm = swarm_of(libp2p_host)
        self._protocols: Multiselect = Multiselect()
        self._handlers: dict[str, Handler] = {}
        self._listeners = listeners
        self._handshakes: dict[trio.SocketStream, None] = {}  # the oldest first
        self._dialling: dict[PeerId, trio.Lock] = {}
        self._expected: dict[Endpoint, Upgrade] = {}
        self._nursery: trio.Nursery | None = None
        self._announced: tuple[str, ...] | None = None
        self._arrived = trio.lowlevel.ParkingLot()
        self._indirect: list[Muxer] = []
        self.carrier = Carrier(self.connections)
        """What moves live connections to better paths."""
        self.serve(CARRY, self.carrier.serve)
        self.circuits: Circuits | None = None
        """What dials over relays, where this host does."""
        self.standing: Standing | None = None
        """Where we stand, once known: which of a peer's addresses are tried, and in which order."""
        self._swarm.set_stream_handler(self._serve_stream)

    @property
    def peer_id(self) -> PeerId:
        """Our own id."""
        return self._peer_id

    @property
    def private_key(self) -> PrivateKey:
        """Our key as libp2p has it, for what libp2p signs."""
        return self._private_key

    def addresses(self) -> tuple[str, ...]:
        """The multiaddrs, with our peer id, at which others can dial us; empty for a host that only dials."""
        return self.listen_addresses() if self._announced is None else self._announced

    def announce(self, addresses: Sequence[str]) -> None:
        """Tell others, from now on, these addresses (with our peer id at the end) instead of where we listen."""
        self._announced = tuple(addresses)

    def listen_addresses(self) -> tuple[str, ...]:
        """Every multiaddr, with our peer id, at which a socket of ours listens."""
        bound = self.listen_endpoints()
        return tuple(text for host, port in bound for text in dialable_addresses(host, port, self._peer_id))

    def listen_endpoints(self) -> tuple[Endpoint, ...]:
        """What each of our listening sockets is bound to, wildcards as such."""
        bound = [listener.socket.getsockname()[:2] for listener in self._listeners]
        return tuple((str(host), int(port)) for host, port in bound)

    def connected_peers(self) -> tuple[PeerId, ...]:
        """The peers to which a connection lives, in the order of connecting."""
        peers = [peer_of(peer) for peer in self._swarm.connections]
        return tuple(peer for peer in peers if self._connection(peer) is not None)

    def paths(self, peer: PeerId) -> tuple[Path, ...]:
        """How the live connections to `peer` run, the one that new streams take first."""
        return tuple(muxer.path for muxer in self.connections(peer))

    def is_connected(self, peer: PeerId) -> bool:
        """Whether a connection to `peer` lives."""
        return self._connection(peer) is not None

    def serve(self, protocol: str, handler: Handler) -> None:
        """Hand every inbound stream of `protocol` to `handler`, each in its own task of the host's nursery.

        A ShardError from the handler resets the stream; any other exception is a bug and ends the host.
        """
        self._handlers[protocol] = handler
        self._protocols.add_handler(TProtocol(protocol), None)

    async def open_stream(self, peer: PeerId, protocol: str, addresses: Sequence[str] = ()) -> Stream:
        """A new stream to `peer`, over a live connection where there is one, else by dialling `addresses` in turn.

        One to ourselves stays in memory.
        Raises: PeerUnavailableError with each address tried and why it failed; ConfigError for a malformed address.
        """
        if peer == self._peer_id:
            return self._open_to_self(protocol)
        muxer = self._connection(peer) or await self._dial(peer, addresses)
        try:
            return HostStream(await negotiated_stream(muxer, protocol), peer)
        except NEGOTIATION_FAILURES as error:
            if not (muxer.failure == GOODBYE and addresses):
                raise PeerUnavailableError(negotiation_failure(peer, protocol, muxer, error)) from error
        # The peer closed a connection that it had long not used, in the moment in which we wanted it.
        return await self.open_stream_over(self._connection(peer) or await self._dial(peer, addresses), protocol)

    def _open_to_self(self, protocol: str) -> SelfStream:
        if self._nursery is None or protocol not in self._handlers:
            raise PeerUnavailableError(f"this peer itself does not speak {protocol}", self._peer_id)
        ours, theirs = open_pair(self._peer_id)
        self._nursery.start_soon(self._handle, protocol, theirs, trio.Event())
        return ours

    async def open_stream_over(self, muxer: Muxer, protocol: str) -> HostStream:
        """A new stream over that very connection. Raises: PeerUnavailableError."""
        peer = peer_of(muxer.peer_id)
        try:
            return HostStream(await negotiated_stream(muxer, protocol), peer)
        except NEGOTIATION_FAILURES as error:
            raise PeerUnavailableError(negotiation_failure(peer, protocol, muxer, error)) from error

    async def disconnect(self, peer: PeerId) -> None:
        """Close every connection to `peer`; its streams fail. It may connect again if it is still admitted."""
        await _close_in_order(list(self._swarm.connections.get(id_of(peer), [])))

    async def _dial(self, peer: PeerId, addresses: Sequence[str]) -> Muxer:
        """A connection to `peer`; callers that want the same peer at the same time share one."""
        lock = self._dialling.setdefault(peer, trio.Lock())
        try:
            async with lock:
                return self._connection(peer) or await self.connect(peer, addresses)
        finally:
            if not lock.locked():
                self._dialling.pop(peer, None)

    def connections(self, peer: PeerId) -> tuple[Muxer, ...]:
        """The live connections to `peer`: with a path, without a relay, not carried first; then the newest."""
        connections = self._swarm.connections.get(id_of(peer), [])
        alive = [_muxer_of(connection) for connection in reversed(connections)]
        usable = [muxer for muxer in alive if not (muxer.is_closed or muxer.is_retiring)]
        return tuple(sorted(usable, key=_rank))

    def _connection(self, peer: PeerId) -> Muxer | None:
        return next(iter(self.connections(peer)), None)

    async def connect(
        self, peer: PeerId, addresses: Sequence[str], *, ways: Ways = "any", from_listen_port: bool = False
    ) -> Muxer:
        """A new connection to `peer`, beside those that live. Raises: PeerUnavailableError, ConfigError, as above.

        `from_listen_port` is for relays and peers that are asked what they see: they see the mapping that others can
        punch. From elsewhere it would occupy the very way that a punch takes.
        """
        sources = self.listen_endpoints() if from_listen_port else ()
        dialled = await dial(self._swarm, peer, addresses, self.circuits, sources, self.standing, ways)
        return self._welcome(_muxer_of(dialled))

    @contextmanager
    def expecting(self, remotes: Iterable[Endpoint], upgrade: Upgrade) -> Iterator[None]:
        """Give what connects from `remotes` to `upgrade` meanwhile: who dials as we do has agreed on another role."""
        mine = dict.fromkeys(remotes, upgrade)
        self._expected |= mine
        try:
            yield
        finally:
            for remote in mine:
                if self._expected.get(remote) is upgrade:
                    del self._expected[remote]

    async def dial_back(self, peer: PeerId, host: str, port: int) -> DialOutcome:
        """Whether `peer` answers at an IP address, dialled from a fresh port; no connection comes of it."""
        return await dial_back(self._swarm, peer, host, port)

    async def adopt_dialled(self, raw: RawConnection, peer: PeerId, path: Path) -> Muxer:
        """The connection over bytes that we dialled some other way. Raises: AddressError (host/dialer.py)."""
        return self._welcome(_muxer_of(await upgrade(self._swarm, raw, peer, path)))

    async def adopt_accepted(self, raw: RawConnection, path: Path) -> Muxer | None:
        """The connection over bytes that a peer dialled, None when it does not come about. We own `raw`."""
        token = upgrading_path.set(path)
        try:
            muxed = await self._swarm.upgrade_inbound_raw_conn(raw, Multiaddr("/ip4/0.0.0.0/tcp/0"))
        except HANDSHAKE_FAILURES as error:
            log.debug("handshake_failed", path=str(path), error=str(error))
            return None
        finally:
            upgrading_path.reset(token)
        assert isinstance(muxed, Muxer)
        return self._welcome(muxed)

    def _welcome(self, muxer: Muxer) -> Muxer:
        if muxer.path != DIRECT:
            self._indirect.append(muxer)
            self.carrier.add(muxer)
        self._arrived.unpark_all()
        return muxer

    @property
    def has_indirect(self) -> bool:
        """Whether a connection lives that came over a relay or through a hole: its path may want looking after."""
        self._indirect = [muxer for muxer in self._indirect if not muxer.is_closed]
        return bool(self._indirect)

    async def wait_arrival(self) -> None:
        """Wait for the next new connection."""
        await self._arrived.park()

    async def _start(self, nursery: trio.Nursery) -> None:
        """Accept connections and streams in `nursery` from now on."""
        self._nursery = nursery
        nursery.start_soon(self.carrier.run)
        if self._listeners:
            await nursery.start(trio.serve_listeners, self._accept, self._listeners)

    def _stop(self) -> None:
        """Accept no further streams: the nursery is about to close."""
        self._nursery = None

    async def _accept(self, stream: trio.SocketStream) -> None:
        """Shake hands with whoever connects, and keep the socket open until the connection ends."""
        upgrade = self._expected.get(_remote_of(stream), self._shake_hands)
        muxed = await upgrade(stream)
        if muxed is None:
            return
        try:
            await muxed.event_closed.wait()
        finally:
            # trio closes the socket when this returns: first let what is queued leave.
            with trio.CancelScope(shield=True):
                await muxed.close()

    async def _shake_hands(self, stream: trio.SocketStream) -> Muxer | None:
        """The connection over an inbound socket, or None when it does not come about."""
        if len(self._handshakes) >= MAX_HANDSHAKES:
            # Who means it is done in a moment. Closed, not cancelled: libp2p cleans up as after any lost connection.
            oldest = next(iter(self._handshakes))
            del self._handshakes[oldest]
            oldest.socket.close()
        self._handshakes[stream] = None
        try:
            return await self.adopt_accepted(RawConnection(BufferedTcpStream(stream), initiator=False), DIRECT)
        finally:
            self._handshakes.pop(stream, None)

    async def _serve_stream(self, net_stream: INetStream) -> None:
        """Negotiate an inbound stream and have it served; libp2p forgets the stream when this returns."""
        muxed = getattr(net_stream, "muxed_stream", None)
        assert isinstance(muxed, MuxedStream)
        try:
            protocol, _ = await self._protocols.negotiate(MultiselectCommunicator(muxed), NEGOTIATION_S)
        except NEGOTIATION_FAILURES as error:
            log.debug("negotiation_failed", error=str(error))
            await muxed.reset()
            return
        if self._nursery is None:
            await muxed.reset()
            return
        done = trio.Event()
        stream = HostStream(muxed, peer_of(muxed.muxed_conn.peer_id))
        self._nursery.start_soon(self._handle, str(protocol), stream, done)
        await done.wait()

    async def _handle(self, protocol: str, stream: Stream, done: trio.Event) -> None:
        try:
            await self._handlers[protocol](stream)
            await stream.close()
        except ShardError as error:
            # A peer that went, and one that asks for more than it may have, are everyday.
            is_usual = isinstance(error, PeerUnavailableError | OverloadedError)
            tell = log.debug if is_usual else log.info
            tell("stream_failed", protocol=protocol, peer=stream.peer, error=error.message)
        finally:
            # After a close this does nothing more.
            await stream.reset()
            done.set()

    async def _close_connections(self) -> None:
        await _close_in_order(self._swarm.get_connections())


@asynccontextmanager
async def open_host(
    identity: Identity, listen: Sequence[str] = (), *, membership: Membership | None = None
) -> AsyncIterator[Host]:
    """A running host that listens on the multiaddrs `listen`; without any it only dials.

    With a `membership` it talks to members of that private swarm alone. Whoever opens it asks the membership now and
    then which peers' time has come, and disconnects them.

    Leaving closes every socket and ends every task within about a second. An exception from the block or from a
    handler comes out as itself, not in a group, when it is the only one.
    Raises: ConfigError when an address is malformed or cannot be listened on.
    """
    patches.apply()
    listeners = await open_listeners([parse_listen_address(text) for text in listen])
    try:
        with single_errors():
            libp2p_host = make_libp2p_host(identity, membership)
            host = Host(identity, libp2p_host, listeners)
            async with libp2p_host.run(listen_addrs=[]):
                try:
                    async with trio.open_nursery() as nursery:
                        await host._start(nursery)
                        try:
                            yield host
                        finally:
                            host._stop()
                        nursery.cancel_scope.cancel()
                finally:
                    with trio.CancelScope(shield=True):
                        await host._close_connections()
    finally:
        for listener in listeners:
            listener.socket.close()


def _remote_of(stream: trio.SocketStream) -> Endpoint:
    try:
        host, port = stream.socket.getpeername()[:2]
    except OSError:  # it is gone already
        return "", 0
    return str(host), int(port)


async def _close_in_order(connections: Sequence[INetConn]) -> None:
    """Close all, those first that are carried by others or pass through relays: their goodbyes travel over the rest."""
    muxers = [_muxer_of(connection) for connection in connections]
    ranks = [(-muxer.carriers, muxer.path.is_direct) for muxer in muxers]
    for now in sorted(set(ranks)):
        async with trio.open_nursery() as nursery:
            for rank, connection in zip(ranks, connections, strict=True):
                if rank == now:
                    nursery.start_soon(connection.close)


def _rank(muxer: Muxer) -> tuple[bool, bool, bool]:
    return muxer.is_doubtful, not muxer.path.is_direct, muxer.carrier is not None


def _muxer_of(connection: INetConn) -> Muxer:
    muxer = connection.muxed_conn
    assert isinstance(muxer, Muxer)
    return muxer
