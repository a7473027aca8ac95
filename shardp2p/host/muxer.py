"""Yamux over a secured connection, in place of libp2p's: many streams over one link.

A frame belongs to the link from the moment it is queued, so a sender that is cancelled can never leave half a frame
behind, and its reader task never waits for the writer, so two full sockets cannot block each other. Why libp2p's own
multiplexer is not used: docs/decisions/0002-libp2p-patches.md. How a connection outlives its path: host/carry/.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio
from libp2p.abc import IMuxedConn, ISecureConn
from libp2p.connection_types import ConnectionType
from libp2p.peer.id import ID
from libp2p.stream_muxer.exceptions import MuxedConnUnavailable
from multiaddr import Multiaddr

from shardp2p.errors import RemoteProtocolError
from shardp2p.host import frames
from shardp2p.host.beat import next_beat
from shardp2p.host.carry.ledger import Ledger
from shardp2p.host.frames import Frame, encode_control
from shardp2p.host.link import GOODBYE as GOODBYE
from shardp2p.host.link import GOODBYE_S, Link
from shardp2p.host.muxed_stream import MuxedStream
from shardp2p.host.path import DIRECT, Path, upgrading_path
from shardp2p.host.vigil import CALM_LOOK_S, PING_INTERVAL_S

MAX_STREAMS: Final = 1024
"""Open streams that a peer may have on one connection; a further one is reset at once."""
WINDOWS_BYTES: Final = 64 * 1024 * 1024
"""What all receive windows of a connection may add up to when they grow: the most a peer can make us buffer."""
LINGER_S: Final = 5.0
"""How long a stream that we closed waits for the peer to close its side before it is reset."""
IDLE_S: Final = 60.0
"""A connection without a stream for this long is closed by the side that dialled, which can dial again: lookups in the
directory meet many peers once, and each connection costs both sides a ping every second."""
CLOSED: Final = "we closed the connection"
UNUSED: Final = "it was not used"
"""The failures of connections that we ended in order."""


class Muxer(IMuxedConn):
    """One connection. Its `link` carries the frames, by whatever path.

    One that `is_retiring` is about to end for want of streams; new ones should take another. `dialled_from` is the
    port from which we dialled its peer straight, if we did; `line` is our connection to the relay of a circuit.
    """

    def __init__(
        self,
        secured_conn: ISecureConn,
        peer_id: ID,
        is_initiator: bool | None = None,
        on_close: Callable[[], Awaitable[Any]] | None = None,
    ) -> None:
        self.secured_conn = secured_conn
        self.peer_id = peer_id
        self.on_close = on_close
        self.event_started = trio.Event()
        self.event_closed = trio.Event()
        self.is_retiring = False
        self.dialled_from: int | None = None
        self.line: Muxer | None = None
        self._is_initiator = secured_conn.is_initiator if is_initiator is None else is_initiator
        self._path = upgrading_path.get()
        is_movable = self._path != DIRECT  # from the start; others once they are named
        ledger = Ledger(has_dialled=self._is_initiator, is_keeping=is_movable)
        self.link = Link(secured_conn, self, ledger, is_early=is_movable)
        self._next_stream_id = 1 if self._is_initiator else 2
        self._streams: dict[int, MuxedStream] = {}
        self._closing: dict[int, float] = {}
        self._windows_bytes = 0
        self._accepted, self._acceptable = trio.open_memory_channel[MuxedStream](MAX_STREAMS)
        self._scope = trio.CancelScope()
        self._used_at = 0.0
        self._retiring_since = 0.0

    @property
    def failure(self) -> str | None:
        """Why the connection ended; None while it lives."""
        return self.link.failure

    @property
    def path(self) -> Path:
        """How it reaches its peer now."""
        carrier = self.carrier
        return self._path if carrier is None else carrier.path

    @property
    def local_port(self) -> int | None:
        """The port from which we dialled its peer straight, if we did and it still comes from there."""
        return None if self.link.has_moved else self.dialled_from

    @property
    def is_as_dialled(self) -> bool:
        """Whether it runs straight over the socket with which it began."""
        return self._path == DIRECT and not self.link.has_moved

    @property
    def carrier(self) -> Muxer | None:
        """The connection that carries this one, if it has moved."""
        wire = self.link.wire
        return wire.muxed_conn if isinstance(wire, MuxedStream) else None

    @property
    def streams(self) -> int:
        """How many streams are open on it."""
        return len(self._streams)

    @property
    def carriers(self) -> int:
        """How many connections carry it, one on the other."""
        carrier = self.carrier
        return 0 if carrier is None else carrier.carriers + 1

    @property
    def is_doubtful(self) -> bool:
        """Whether to prefer another: it is in trouble, or what carries it is, or our line to its relay."""
        below = self.line if self.carrier is None else self.carrier
        return self.link.is_troubled or (below is not None and below.is_doubtful)

    @property
    def round_trip_s(self) -> float:
        """The smoothed round trip of its present path in seconds, 0 before the first pong."""
        return self.link.vigil.round_trip_s

    # What libp2p's swarm needs.

    @property
    def is_initiator(self) -> bool:
        """Whether this side dialled."""
        return self._is_initiator

    @property
    def is_established(self) -> bool:
        """Whether streams can be opened."""
        return self.event_started.is_set() and self.link.failure is None

    @property
    def is_closed(self) -> bool:
        """Whether the connection has ended."""
        return self.failure is not None

    @property
    def ended_in_order(self) -> bool:
        """Whether it has ended because one of the two sides meant it to."""
        return self.failure in (GOODBYE, CLOSED, UNUSED)

    def rtt(self) -> float:
        """The smoothed round trip in seconds, 0 before the first pong."""
        return self.round_trip_s

    def get_transport_addresses(self) -> list[Multiaddr]:
        """The remote address, as a list of one."""
        return self.secured_conn.get_transport_addresses()

    def get_connection_type(self) -> ConnectionType:
        """Direct or relayed."""
        return self.secured_conn.get_connection_type()

    def get_remote_address(self) -> tuple[str, int] | None:
        """The remote host and port."""
        carrier = self.carrier
        return self.secured_conn.get_remote_address() if carrier is None else carrier.get_remote_address()

    async def start(self) -> None:
        """Run the connection until it ends, for whatever reason. Never raises for what a peer or network does."""
        self._used_at = trio.current_time()
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self.link.run)
                    nursery.start_soon(self._watch)
                    self.event_started.set()
        finally:
            await self._cut(CLOSED)

    async def open_stream(self) -> MuxedStream:
        """A new stream to the peer. Does not wait for the peer's consent. Raises: MuxedConnUnavailable."""
        await trio.lowlevel.checkpoint()
        if self.failure is not None:
            raise MuxedConnUnavailable(self.failure)
        if len(self._streams) >= MAX_STREAMS:
            raise MuxedConnUnavailable(f"the connection already has {MAX_STREAMS} streams")
        stream = self._add_stream(self._next_stream_id)
        self._next_stream_id += 2
        self.link.queue(encode_control(frames.WINDOW_UPDATE, frames.SYN, stream.stream_id))
        return stream

    async def accept_stream(self) -> MuxedStream:
        """The next stream that the peer opened. Raises: MuxedConnUnavailable when the connection has ended."""
        try:
            return await self._acceptable.receive()
        except trio.EndOfChannel:
            raise MuxedConnUnavailable(self.failure or "the connection ended") from None

    async def close(self) -> None:
        """Send what is queued and a goodbye, for a bounded time, and end the connection."""
        if self.failure is None and self.event_started.is_set():
            with trio.CancelScope(shield=True):
                await self._say_goodbye()
        await self._cut(CLOSED)

    async def _say_goodbye(self) -> None:
        self.link.queue(encode_control(frames.GO_AWAY, 0, 0))
        with trio.move_on_after(GOODBYE_S):
            await self.link.drain()

    def end(self) -> None:
        """The link failed: every stream that was not finished fails with its reason."""
        self._accepted.close()
        for stream in self._streams.values():
            stream.wake()
        self._scope.cancel()

    async def _cut(self, reason: str) -> None:
        self.link.fail(reason)
        await self.link.close()
        self.event_closed.set()

    # What streams need.

    def try_grow_window(self, extra_bytes: int) -> bool:
        """Whether a stream may let its peer have that many more bytes under way."""
        if self._windows_bytes + extra_bytes > WINDOWS_BYTES:
            return False
        self._windows_bytes += extra_bytes
        return True

    def linger(self, stream: MuxedStream) -> None:
        """We closed `stream`: forget it when the peer closes too, and reset it when it does not."""
        self._closing[stream.stream_id] = trio.current_time() + LINGER_S

    def forget(self, stream: MuxedStream) -> None:
        """Both sides are done with `stream`."""
        if self._streams.pop(stream.stream_id, None) is not None:
            self._closing.pop(stream.stream_id, None)
            self._windows_bytes -= stream.grown_bytes

    def _add_stream(self, stream_id: int) -> MuxedStream:
        stream = self._streams[stream_id] = MuxedStream(stream_id, self)
        self._used_at = trio.current_time()
        return stream

    # Its rounds.

    async def _watch(self) -> None:
        """Ping, notice silence, and reset streams that the peer leaves half open."""
        while True:
            pause_s = self.link.ask(trio.current_time())
            now = trio.current_time()
            # Calm connections are looked at together: a peer has dozens.
            is_calm = pause_s >= CALM_LOOK_S and not self.link.vigil.is_early
            until = next_beat(now + pause_s - CALM_LOOK_S, CALM_LOOK_S) if is_calm else now + pause_s
            await trio.sleep_until(until)
            now = trio.current_time()
            self.link.judge(now, "the peer" if self.path.relay is None else f"the peer or its relay {self.path.relay}")
            for stream_id in [stream_id for stream_id, end in self._closing.items() if now > end]:
                self._streams[stream_id].abort()
            await self._retire_if_unused(now)

    async def _retire_if_unused(self, now: float) -> None:
        if self._streams or not self._is_initiator:
            self._used_at = now
        if now - self._used_at <= IDLE_S:
            self.is_retiring = False
        elif not self.is_retiring:
            # Who has already chosen this connection for a stream has a second to open it.
            self.is_retiring = True
            self._retiring_since = now
        elif now - self._retiring_since >= 0.9 * PING_INTERVAL_S:
            await self._say_goodbye()
            self.link.fail(UNUSED)

    # Received frames.

    def receive(self, frame: Frame) -> None:
        """Take a frame of a stream. Raises: RemoteProtocolError."""
        stream = self._streams.get(frame.stream_id)
        if frame.flags & frames.SYN:
            stream = self._accept(frame.stream_id)
        if stream is not None:
            stream.receive(frame)
        elif frame.kind == frames.DATA and not frame.flags & frames.RST:
            self.link.queue(encode_control(frames.WINDOW_UPDATE, frames.RST, frame.stream_id))

    def _accept(self, stream_id: int) -> MuxedStream | None:
        if stream_id % 2 == self._next_stream_id % 2 or stream_id == 0 or stream_id in self._streams:
            raise RemoteProtocolError(f"it may not open stream {stream_id}")
        if len(self._streams) >= MAX_STREAMS:
            self.link.queue(encode_control(frames.WINDOW_UPDATE, frames.RST, stream_id))
            return None
        stream = self._add_stream(stream_id)
        self.link.queue(encode_control(frames.WINDOW_UPDATE, frames.ACK, stream_id))
        try:
            self._accepted.send_nowait(stream)
        except trio.WouldBlock:
            stream.abort()
            return None
        return stream
