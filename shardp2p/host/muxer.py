"""Yamux over a secured connection, in place of libp2p's: many streams, one reader and one writer task.

A frame belongs to the connection from the moment it is queued, so a sender that is cancelled can never leave half a
frame behind, and the reader task never waits for the writer, so two full sockets cannot block each other. Why libp2p's
own multiplexer is not used: docs/decisions/0002-libp2p-patches.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import trio
from libp2p.abc import IMuxedConn, ISecureConn
from libp2p.connection_types import ConnectionType
from libp2p.peer.id import ID
from libp2p.stream_muxer.exceptions import MuxedConnUnavailable
from multiaddr import Multiaddr

from shardp2p.errors import RemoteProtocolError
from shardp2p.host import frames
from shardp2p.host.failures import CONNECTION_FAILURES
from shardp2p.host.frames import Frame, FrameReader, encode_control
from shardp2p.host.muxed_stream import MuxedStream
from shardp2p.host.path import upgrading_path

MAX_STREAMS: Final = 1024
"""Open streams that a peer may have on one connection; a further one is reset at once."""
OUTBOX_BYTES: Final = 256 * 1024
"""Senders wait while this much is queued: a socket buffer's worth, so that cancelled work stops early."""
FLOOD_BYTES: Final = 1024 * 1024
"""Answers (pongs, acks, credits) to a peer that does not read them; beyond this it is cut off."""
WINDOWS_BYTES: Final = 64 * 1024 * 1024
"""What all receive windows of a connection may add up to when they grow: the most a peer can make us buffer."""
PING_INTERVAL_S: Final = 1.0
QUIET_S: Final = 1.9
"""Whom we heard within this needs no ping, so of two idle sides one pings and the other hears it."""
ROUND_TRIP_S: Final = 10.0
"""How old the measured round trip may get: windows grow by it."""
SILENCE_S: Final = 4.0
"""A peer that sends nothing for this long, pongs included, is gone; it is noticed at most one interval later."""
LINGER_S: Final = 5.0
"""How long a stream that we closed waits for the peer to close its side before it is reset."""
IDLE_S: Final = 60.0
"""A connection without a stream for this long is closed by the side that dialled, which can dial again: lookups in the
directory meet many peers once, and each connection costs both sides a ping every second."""
GOODBYE_S: Final = 0.3
"""How long a closing connection tries to send what is queued."""
GOODBYE: Final = "the peer closed the connection"
"""The failure of a connection that the peer ended in order."""
CLOSED: Final = "we closed the connection"
UNUSED: Final = "it was not used"
"""The failures of connections that we ended in order."""


class Muxer(IMuxedConn):
    """One connection. `failure` says why it ended, or is None while it lives.

    One that `is_retiring` is about to end for want of streams; new ones should take another. `local_port` is the port
    from which we dialled its peer straight, if we did.
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
        self.failure: str | None = None
        self.is_retiring = False
        self.path = upgrading_path.get()
        self.local_port: int | None = None
        self.round_trip_s = 0.0
        self._is_initiator = secured_conn.is_initiator if is_initiator is None else is_initiator
        self._next_stream_id = 1 if self._is_initiator else 2
        self._streams: dict[int, MuxedStream] = {}
        self._closing: dict[int, float] = {}
        self._windows_bytes = 0
        self._accepted, self._acceptable = trio.open_memory_channel[MuxedStream](MAX_STREAMS)
        self._outbox: deque[bytes] = deque()
        self._outbox_bytes = 0
        self._is_writing = False
        self._work = trio.lowlevel.ParkingLot()
        self._space = trio.lowlevel.ParkingLot()
        self._scope = trio.CancelScope()
        self._heard_at = 0.0
        self._used_at = 0.0
        self._pinged_at = -ROUND_TRIP_S
        self._ping_value = 0

    # What libp2p's swarm needs.

    @property
    def is_initiator(self) -> bool:
        """Whether this side dialled."""
        return self._is_initiator

    @property
    def is_established(self) -> bool:
        """Whether streams can be opened."""
        return self.event_started.is_set() and self.failure is None

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
        return self.secured_conn.get_remote_address()

    async def start(self) -> None:
        """Run the connection until it ends, for whatever reason. Never raises for what a peer or network does."""
        self._heard_at = self._used_at = trio.current_time()
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._read_loop)
                    nursery.start_soon(self._write_loop)
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
        self.queue(encode_control(frames.WINDOW_UPDATE, frames.SYN, stream.stream_id))
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
            self.queue(encode_control(frames.GO_AWAY, 0, 0))
            with trio.move_on_after(GOODBYE_S, shield=True):
                await self._drain()
        await self._cut(CLOSED)

    async def _drain(self) -> None:
        while (self._outbox or self._is_writing) and not self.is_closed:
            await self._space.park()

    def fail(self, reason: str) -> None:
        """End the connection at once; every stream that was not finished fails with `reason`."""
        if self.failure is not None:
            return
        self.failure = reason
        self._accepted.close()
        self._outbox.clear()
        self._space.unpark_all()
        for stream in self._streams.values():
            stream.wake()
        self._scope.cancel()

    async def _cut(self, reason: str) -> None:
        self.fail(reason)
        with trio.move_on_after(GOODBYE_S, shield=True):
            with suppress(*CONNECTION_FAILURES):
                await self.secured_conn.close()
        self.event_closed.set()

    # What streams need.

    def queue(self, frame: bytes) -> None:
        """Queue a frame for the writer task; frames leave in the order in which they were queued."""
        if self.failure is not None:
            return
        self._outbox.append(frame)
        self._outbox_bytes += len(frame)
        if self._outbox_bytes > FLOOD_BYTES:
            self.fail("the peer floods us with requests and does not read the answers")
        self._work.unpark_all()

    @property
    def is_full(self) -> bool:
        """Whether senders should wait for space."""
        return self._outbox_bytes >= OUTBOX_BYTES

    async def wait_space(self) -> None:
        """Wait until the writer task has made space or the connection failed."""
        await self._space.park()

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

    # The three tasks.

    async def _write_loop(self) -> None:
        try:
            while True:
                while not self._outbox:
                    await self._work.park()
                batch = self._take_batch()
                self._is_writing = True
                await self.secured_conn.write(batch)
                self._is_writing = False
                if self._outbox_bytes < OUTBOX_BYTES:
                    self._space.unpark_all()
        except CONNECTION_FAILURES as error:
            self.fail(f"the connection broke ({error})")

    def _take_batch(self) -> bytes:
        """As many queued frames as fit one Noise message, so that they cost one encryption and one system call."""
        batch = [self._outbox.popleft()]
        size = len(batch[0])
        while self._outbox and size + len(self._outbox[0]) <= frames.MAX_WRITE_BYTES:
            batch.append(self._outbox.popleft())
            size += len(batch[-1])
        self._outbox_bytes -= size
        return batch[0] if len(batch) == 1 else b"".join(batch)

    async def _read_loop(self) -> None:
        reader = FrameReader()
        try:
            while True:
                data = await self.secured_conn.read(None)
                self._heard_at = trio.current_time()
                for frame in reader.feed(data):
                    if self.failure is None:
                        self._receive(frame)
        except RemoteProtocolError as error:
            self.fail(f"the peer broke the multiplexer's rules ({error})")
        except CONNECTION_FAILURES as error:
            self.fail(f"the connection broke ({error})")

    async def _watch(self) -> None:
        """Ping, notice silence, and reset streams that the peer leaves half open."""
        while True:
            before = trio.current_time()
            if before - self._heard_at >= QUIET_S or before - self._pinged_at >= ROUND_TRIP_S:
                self._ping_value = (self._ping_value + 1) % 2**32
                self._pinged_at = before
                self.queue(encode_control(frames.PING, frames.SYN, 0, self._ping_value))
            await trio.sleep(PING_INTERVAL_S)
            now = trio.current_time()
            if now - before > 2 * PING_INTERVAL_S:
                # This process itself was stopped or starved: the peer's bytes may be waiting unread.
                self._heard_at = now
            if now - self._heard_at > SILENCE_S:
                who = "the peer" if self.path.is_direct else f"the peer or its relay {self.path.relay}"
                self.fail(f"{who} has been silent for {now - self._heard_at:.0f} s")
            for stream_id in [stream_id for stream_id, end in self._closing.items() if now > end]:
                self._streams[stream_id].abort()
            await self._retire_if_unused(now)

    async def _retire_if_unused(self, now: float) -> None:
        if self._streams or not self._is_initiator:
            self._used_at = now
        if now - self._used_at <= IDLE_S:
            self.is_retiring = False
        elif not self.is_retiring:
            # Who has already chosen this connection for a stream has until the next round to open it.
            self.is_retiring = True
        else:
            self.queue(encode_control(frames.GO_AWAY, 0, 0))
            with trio.move_on_after(GOODBYE_S):
                await self._drain()
            self.fail(UNUSED)

    # Received frames.

    def _receive(self, frame: Frame) -> None:
        if frame.kind == frames.PING:
            self._receive_ping(frame)
        elif frame.kind == frames.GO_AWAY:
            self.fail(GOODBYE)
        else:
            stream = self._streams.get(frame.stream_id)
            if frame.flags & frames.SYN:
                stream = self._accept(frame.stream_id)
            if stream is not None:
                stream.receive(frame)
            elif frame.kind == frames.DATA and not frame.flags & frames.RST:
                self.queue(encode_control(frames.WINDOW_UPDATE, frames.RST, frame.stream_id))

    def _receive_ping(self, frame: Frame) -> None:
        if frame.flags & frames.SYN:
            self.queue(encode_control(frames.PING, frames.ACK, 0, frame.length))
        elif frame.length == self._ping_value:
            sample_s = trio.current_time() - self._pinged_at
            self.round_trip_s = (self.round_trip_s + sample_s) / 2 if self.round_trip_s else sample_s

    def _accept(self, stream_id: int) -> MuxedStream | None:
        if stream_id % 2 == self._next_stream_id % 2 or stream_id == 0 or stream_id in self._streams:
            raise RemoteProtocolError(f"it may not open stream {stream_id}")
        if len(self._streams) >= MAX_STREAMS:
            self.queue(encode_control(frames.WINDOW_UPDATE, frames.RST, stream_id))
            return None
        stream = self._add_stream(stream_id)
        self.queue(encode_control(frames.WINDOW_UPDATE, frames.ACK, stream_id))
        try:
            self._accepted.send_nowait(stream)
        except trio.WouldBlock:
            stream.abort()
            return None
        return stream
