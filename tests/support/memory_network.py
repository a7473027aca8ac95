"""An in-memory `Network`: bounded streams between peers, links that are slow or cut, peers that die.

All in one trio program, for sim tests under the autojump clock. A stream behaves as a libp2p stream does where it
hurts: short reads, a window that fills up, a torn stream after a cancelled send, a killed peer that reads as an end.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence

import trio

from shardp2p.errors import ConfigError, LocalProtocolError, PeerUnavailableError, ShardError
from shardp2p.vocabulary import PeerId
from shardp2p.wire.stream import Handler, Stream

WINDOW_BYTES = 256 * 1024
"""What a direction of a stream holds before its sender waits: the initial window of yamux."""


class MemorySwarm:
    """Makes a network for each peer id and decides how the links between them behave.

    Handlers run in `nursery`; a handler's ShardError resets its stream and is kept in `MemoryNetwork.failures`, any
    other exception (a LocalProtocolError too) crashes the nursery, as a bug should.
    """

    def __init__(self, nursery: trio.Nursery, *, window_bytes: int = WINDOW_BYTES) -> None:
        self._nursery = nursery
        self._window_bytes = window_bytes
        self._networks: dict[PeerId, MemoryNetwork] = {}
        self._delays_s: dict[frozenset[PeerId], float] = {}
        self._cut: set[frozenset[PeerId]] = set()
        self._streams: list[MemoryStream] = []

    def network(self, peer_id: str) -> MemoryNetwork:
        """The network of `peer_id`, made at the first call; a new one after it was killed."""
        peer = PeerId(peer_id)
        known = self._networks.get(peer)
        if known is None or known.is_dead:
            known = self._networks[peer] = MemoryNetwork(self, peer)
        return known

    def kill(self, peer_id: str, *, reads_as_end: bool = True) -> None:
        """End a peer at once, with its handlers. The others read a clean end (as libp2p shows it), or else an error;
        what they send fails either way.
        """
        network = self._networks[PeerId(peer_id)]
        network.is_dead = True
        for scope in network.lives:
            scope.cancel()
        for stream in self._streams:
            if stream.peer == network.peer_id:
                stream.incoming.break_off(f"{stream.peer} was killed", reads_as_end=reads_as_end)
                stream.outgoing.break_off(f"{stream.peer} was killed")
            elif stream.owner == network.peer_id:
                stream.is_closed = True

    def delay(self, one: str, other: str, delay_s: float) -> None:
        """From now on bytes between the two take `delay_s` each way, in order."""
        self._delays_s[_link(one, other)] = delay_s

    def cut(self, one: str, other: str, *, noticed_after_s: float = 0.0) -> None:
        """Nothing passes between the two any more; their streams fail `noticed_after_s` later (inf: never)."""
        link = _link(one, other)
        self._cut.add(link)
        noticed_at = trio.current_time() + noticed_after_s
        for stream in self._streams:
            if stream.link == link:
                stream.incoming.fall_silent(noticed_at, f"the connection between {one} and {other} was lost")

    def mend(self, one: str, other: str) -> None:
        """New streams between the two work again; the old ones stay lost."""
        self._cut.discard(_link(one, other))

    @property
    def open_streams(self) -> int:
        """Stream ends that nobody has closed or reset: 0 when a test has cleaned up."""
        return sum(not stream.is_closed for stream in self._streams)

    async def connect(self, dialler: PeerId, peer: PeerId, protocol: str) -> Stream:
        """A new stream, whose other end is being handled. Takes two round trips, as multistream does."""
        link = _link(dialler, peer)
        await trio.lowlevel.checkpoint()
        await trio.sleep(4 * self._delays_s.get(link, 0.0))
        network = self._networks.get(peer)
        if network is None or network.is_dead or link in self._cut or self._networks[dialler].is_dead:
            raise PeerUnavailableError(f"{peer} cannot be reached: no answer")
        handler = network.handlers.get(protocol)
        if handler is None:
            raise PeerUnavailableError(f"{peer} does not speak {protocol}")
        outbound, inbound = (_Pipe(self._window_bytes, lambda: self._delays_s.get(link, 0.0)) for _ in range(2))
        ours = MemoryStream(dialler, peer, incoming=inbound, outgoing=outbound)
        theirs = MemoryStream(peer, dialler, incoming=outbound, outgoing=inbound)
        self._streams = [stream for stream in self._streams if not stream.is_closed]
        self._streams += [ours, theirs]
        self._nursery.start_soon(network.handle, handler, theirs)
        return ours


class MemoryNetwork:
    """`wire.stream.Network` of one peer in a MemorySwarm."""

    def __init__(self, swarm: MemorySwarm, peer_id: PeerId) -> None:
        self._swarm = swarm
        self._peer_id = peer_id
        self.handlers: dict[str, Handler] = {}
        self.failures: list[ShardError] = []
        self.dialled: list[tuple[PeerId, tuple[str, ...]]] = []
        self.is_dead = False
        self.lives: list[trio.CancelScope] = []

    @property
    def peer_id(self) -> PeerId:
        return self._peer_id

    def serve(self, protocol: str, handler: Handler) -> None:
        self.handlers[protocol] = handler

    async def open_stream(self, peer: PeerId, protocol: str, addresses: Sequence[str] = ()) -> Stream:
        for address in addresses:
            if not address.startswith("/"):
                raise ConfigError(f"{address!r} is no multiaddr; it begins with a slash")
        self.dialled.append((peer, tuple(addresses)))
        return await self._swarm.connect(self._peer_id, peer, protocol)

    def life(self) -> trio.CancelScope:
        """A scope that ends when the peer is killed; a test runs the peer's other tasks in such scopes."""
        self.lives.append(trio.CancelScope())
        return self.lives[-1]

    async def handle(self, handler: Handler, stream: MemoryStream) -> None:
        """Serve one inbound stream as the contract of `wire.stream.Handler` says."""
        with self.life():
            try:
                await handler(stream)
                await stream.close()
            except LocalProtocolError:
                await stream.reset()
                raise
            except ShardError as error:
                self.failures.append(error)
                await stream.reset()
            except BaseException:
                await stream.reset()
                raise


class MemoryStream:
    """One end of a stream in a MemorySwarm."""

    def __init__(self, owner: PeerId, peer: PeerId, *, incoming: _Pipe, outgoing: _Pipe) -> None:
        self.owner = owner
        self.incoming = incoming
        self.outgoing = outgoing
        self.link = _link(owner, peer)
        self.is_closed = False
        self._peer = peer
        self._is_sending = False

    @property
    def peer(self) -> PeerId:
        return self._peer

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self._check_open()
        if self._is_sending:
            raise LocalProtocolError(f"two tasks send on the stream to {self._peer}")
        self._is_sending = True
        try:
            await self.outgoing.put(bytes(data))
        except trio.Cancelled:
            # Nobody knows how much of it went out: what follows would be read as garbage.
            self.outgoing.break_off(f"the stream to {self._peer} was torn by a cancelled send")
            raise
        finally:
            self._is_sending = False

    async def receive_some(self, max_bytes: int) -> bytes:
        self._check_open()
        return await self.incoming.take(max_bytes)

    async def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.outgoing.end()
            self.incoming.break_off(f"{self.owner} closed the stream")
        with trio.CancelScope(shield=True):
            await trio.lowlevel.checkpoint()

    async def reset(self) -> None:
        self.is_closed = True
        for pipe in (self.incoming, self.outgoing):
            pipe.break_off(f"{self.owner} reset the stream")
        with trio.CancelScope(shield=True):
            await trio.lowlevel.checkpoint()

    def _check_open(self) -> None:
        if self.is_closed:
            raise PeerUnavailableError(f"the stream to {self._peer} is closed here")


class _Pipe:
    """One direction of a stream: segments in order, each with the time at which it arrives."""

    def __init__(self, window_bytes: int, delay_s: Callable[[], float]) -> None:
        self._window_bytes = window_bytes
        self._delay_s = delay_s
        self._segments: deque[tuple[float, bytes]] = deque()
        self._held_bytes = 0
        self._last_arrival = -math.inf
        self._ends_at = math.inf
        self._error: str | None = None
        self._reads_as_end = False
        self._is_silent = False
        self._noticed_at = math.inf
        self._noticed_error = ""
        self._changed = trio.lowlevel.ParkingLot()

    async def put(self, data: bytes) -> None:
        """Append `data`, waiting while the window is full."""
        await trio.lowlevel.checkpoint()
        while True:
            self._raise_error()
            if self._ends_at < math.inf:
                raise PeerUnavailableError("the stream is closed; nothing more can be sent")
            piece = data[: self._window_bytes - self._held_bytes]
            if piece:
                self._segments.append((self._next_arrival(), piece))
                self._held_bytes += len(piece)
                self._changed.unpark_all()
                data = data[len(piece) :]
            if not data:
                return
            await self._wait_until(math.inf)

    async def take(self, max_bytes: int) -> bytes:
        """What has arrived, at most `max_bytes` of it and of one segment; b"" at the end."""
        await trio.lowlevel.checkpoint()
        while True:
            if self._error is not None and self._reads_as_end:
                return b""
            self._raise_error()
            arrival = math.inf if self._is_silent else self._segments[0][0] if self._segments else self._ends_at
            if arrival > trio.current_time():
                await self._wait_until(arrival)
                continue
            if not self._segments:
                return b""
            _, segment = self._segments.popleft()
            data, rest = segment[:max_bytes], segment[max_bytes:]
            if rest:
                self._segments.appendleft((arrival, rest))
            self._held_bytes -= len(data)
            self._changed.unpark_all()
            return data

    def end(self) -> None:
        """A clean end after all that was put."""
        self._ends_at = self._next_arrival()
        self._changed.unpark_all()

    def break_off(self, error: str, *, reads_as_end: bool = False) -> None:
        """Fail both sides at once, dropping what is under way; the first reason stays. An end that was sent, and what
        stands before it, still arrives. Over a silent link nobody learns of it.
        """
        if self._error is None and self._ends_at == math.inf and not self._is_silent:
            self._error = error
            self._reads_as_end = reads_as_end
            self._segments.clear()
            self._changed.unpark_all()

    def fall_silent(self, noticed_at: float, error: str) -> None:
        """Deliver nothing more, and fail at the time `noticed_at`."""
        self._is_silent = True
        self._noticed_at = noticed_at
        self._noticed_error = error
        self._changed.unpark_all()

    def _next_arrival(self) -> float:
        self._last_arrival = max(self._last_arrival, trio.current_time() + self._delay_s())
        return self._last_arrival

    def _raise_error(self) -> None:
        if self._error is None and trio.current_time() >= self._noticed_at:
            self._error = self._noticed_error
        if self._error is not None:
            raise PeerUnavailableError(self._error)

    async def _wait_until(self, deadline: float) -> None:
        with trio.move_on_at(min(deadline, self._noticed_at)):
            await self._changed.park()


def _link(one: str, other: str) -> frozenset[PeerId]:
    return frozenset((PeerId(one), PeerId(other)))
