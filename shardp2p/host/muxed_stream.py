"""One stream of a Yamux connection: its two windows, its buffer and its ends."""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Final

import trio
from libp2p.abc import IMuxedStream
from libp2p.stream_muxer.exceptions import MuxedStreamClosed, MuxedStreamEOF, MuxedStreamReset

from shardp2p.errors import RemoteProtocolError
from shardp2p.host import frames
from shardp2p.host.frames import Frame, encode_control, encode_data

if TYPE_CHECKING:
    from shardp2p.host.muxer import Muxer

MAX_WINDOW_BYTES: Final = 16 * 1024 * 1024
"""As in go-yamux: enough for 1 Gbit/s over a round trip of 130 ms."""

LARGE_BYTES: Final = 16 * 1024
"""A payload from here on is read by itself, as it came, without being copied."""


class MuxedStream(IMuxedStream):
    """A two-way byte stream; one task may read and one may write at a time."""

    def __init__(self, stream_id: int, muxer: Muxer) -> None:
        self.stream_id = stream_id
        self.muxed_conn: Muxer = muxer
        self._link = muxer.link
        self._received: deque[bytes | bytearray] = deque()  # in the order in which it came
        self._received_bytes = 0
        self._send_window = frames.INITIAL_WINDOW_BYTES
        self._receive_window = frames.INITIAL_WINDOW_BYTES
        self._target_window = frames.INITIAL_WINDOW_BYTES
        self._credited_at = 0.0
        self._is_sending_finished = False
        self._is_receiving_finished = False
        self._is_closed = False
        self._reset_reason: str | None = None
        self._changed = trio.lowlevel.ParkingLot()

    @property
    def grown_bytes(self) -> int:
        """How far the receive window has grown beyond the initial one."""
        return self._target_window - frames.INITIAL_WINDOW_BYTES

    async def read(self, n: int | None = None) -> bytes:
        """At least one and at most `n` bytes (None or -1: all that is there).

        Raises: MuxedStreamEOF after the peer's end, MuxedStreamReset when stream or connection failed.
        """
        while not self._received:
            if self._is_receiving_finished:
                raise MuxedStreamEOF("the peer finished the stream")
            self._check_alive()
            await self._changed.park()
        data = self._take(None if n is None or n < 0 else n)
        if not (self._is_receiving_finished or self._is_closed):
            self._credit()
        return data

    def _take(self, most: int | None) -> bytes:
        """What there is, or at most `most` bytes of it; a large payload by itself, for then nothing is copied."""
        data = self._received.popleft()
        if most is None:
            data = b"".join((data, *self._received))
            self._received.clear()
        elif len(data) > most:
            # What is left of it is read in small steps, perhaps; a bytearray loses its head in no time.
            rest = data if isinstance(data, bytearray) else bytearray(data)
            data = bytes(memoryview(rest)[:most])
            del rest[:most]
            self._received.appendleft(rest)
        self._received_bytes -= len(data)
        return bytes(data)  # which copies no bytes

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Queue all of `data`, waiting, without a limit, for the peer's window and for the connection.

        Raises: MuxedStreamClosed after our end, MuxedStreamReset when stream or connection failed.
        """
        rest = memoryview(data).cast("B")
        while rest:
            self._check_alive()
            if self._is_sending_finished:
                raise MuxedStreamClosed("we finished the stream")
            if self._send_window == 0:
                await self._changed.park()
                continue
            if self._link.is_full:
                await self._link.wait_space()
                continue
            size = min(self._send_window, frames.MAX_WRITE_PAYLOAD_BYTES, len(rest))
            self._send_window -= size
            self._link.queue(encode_data(self.stream_id, rest[:size]))
            rest = rest[size:]
        # Lets the writer task put the bytes on the wire even if the caller computes next.
        await trio.lowlevel.checkpoint()

    async def close_write(self) -> None:
        """Finish our direction; the peer's stays open."""
        self._finish_sending()

    async def close(self) -> None:
        """Finish both directions: what the peer still sends is not wanted any more."""
        if self._is_closed:
            return
        self._is_closed = True
        self._finish_sending()
        self._received.clear()
        self._received_bytes = 0
        self._changed.unpark_all()
        if self._is_receiving_finished:
            self.muxed_conn.forget(self)
        else:
            self.muxed_conn.linger(self)

    async def reset(self) -> None:
        """Abort both directions."""
        self.abort()

    def abort(self) -> None:
        """Abort both directions and tell the peer. Of a connection that failed before, its failure stays the reason."""
        if self._reset_reason is None and not (self._is_closed and self._is_receiving_finished):
            self._link.queue(encode_control(frames.WINDOW_UPDATE, frames.RST, self.stream_id))
        self._fail(self._link.failure or "we reset the stream")

    def receive(self, frame: Frame) -> None:
        """Take a data or window frame of this stream. Raises: RemoteProtocolError."""
        if frame.kind == frames.WINDOW_UPDATE:
            self._send_window += frame.length
        elif frame.payload:
            self._receive_data(frame.payload)
        if frame.flags & frames.FIN:
            self._is_receiving_finished = True
            if self._is_closed:
                self.muxed_conn.forget(self)
        if frame.flags & frames.RST:
            self._fail("the peer reset the stream")
        self._changed.unpark_all()

    def wake(self) -> None:
        """The connection failed: readers and writers are to look again."""
        self._changed.unpark_all()

    def _receive_data(self, payload: bytes) -> None:
        if self._is_receiving_finished:
            raise RemoteProtocolError(f"data on stream {self.stream_id} after its end")
        self._receive_window -= len(payload)
        if self._receive_window < 0:
            raise RemoteProtocolError(f"more data on stream {self.stream_id} than its window allows")
        if self._is_closed:
            self.abort()
        else:
            self._keep(payload)

    def _keep(self, payload: bytes) -> None:
        """Keep a large `payload` as it is, and small ones in one piece: an object for each would cost far more."""
        self._received_bytes += len(payload)
        if len(payload) >= LARGE_BYTES:
            self._received.append(payload)
        elif self._received and isinstance(self._received[-1], bytearray):
            self._received[-1] += payload
        else:
            self._received.append(bytearray(payload))

    def _credit(self) -> None:
        """Let the peer send more once half the window is used up, and double it while that takes < 4 round trips."""
        used = self._target_window - self._receive_window - self._received_bytes
        if used < self._target_window // 2:
            return
        now = trio.current_time()
        is_fast = now - self._credited_at < 4 * max(self._link.vigil.round_trip_s, 0.001)
        if is_fast and self._target_window < MAX_WINDOW_BYTES and self.muxed_conn.try_grow_window(self._target_window):
            used += self._target_window
            self._target_window *= 2
        self._credited_at = now
        self._receive_window += used
        self._link.queue(encode_control(frames.WINDOW_UPDATE, 0, self.stream_id, used))

    def _finish_sending(self) -> None:
        if self._is_sending_finished or self._reset_reason is not None:
            return
        self._is_sending_finished = True
        self._link.queue(encode_control(frames.WINDOW_UPDATE, frames.FIN, self.stream_id))

    def _fail(self, reason: str) -> None:
        if self._reset_reason is None:
            self._reset_reason = reason
        self._is_closed = True
        self._changed.unpark_all()
        self.muxed_conn.forget(self)

    def _check_alive(self) -> None:
        reason = self._reset_reason or self._link.failure
        if reason is not None:
            raise MuxedStreamReset(reason)
        if self._is_closed:
            raise MuxedStreamClosed("we closed the stream")

    # The rest of libp2p's interface.

    def set_deadline(self, ttl: int) -> None:
        """Not offered: the caller sets time with a cancel scope."""
        raise NotImplementedError("use trio.fail_after")

    def get_remote_address(self) -> tuple[str, int] | None:
        """The remote host and port of the connection."""
        return self.muxed_conn.get_remote_address()

    async def __aenter__(self) -> MuxedStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
