"""A stream from a peer to itself, in memory: a peer that drives a ring in which it is a stage needs no socket for that.

It behaves as a stream to another peer does: a window that fills up, ends after what was sent, resets that drop it.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import trio

from shardp2p.errors import PeerUnavailableError
from shardp2p.vocabulary import PeerId

WINDOW_BYTES: Final = 1024 * 1024
"""What a direction holds before its sender waits: a chunk of a prompt passes in a few steps."""


def open_pair(peer: PeerId) -> tuple[SelfStream, SelfStream]:
    """The two ends of a new stream of `peer` to itself."""
    one, other = _Pipe(), _Pipe()
    return SelfStream(peer, one, other), SelfStream(peer, other, one)


class SelfStream:
    """Implements `shardp2p.wire.stream.Stream`. One task may read and one may write at a time."""

    def __init__(self, peer: PeerId, incoming: _Pipe, outgoing: _Pipe) -> None:
        self._peer = peer
        self._incoming = incoming
        self._outgoing = outgoing
        self._is_closed = False

    @property
    def peer(self) -> PeerId:
        """Our own id."""
        return self._peer

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of `data`, waiting while the window is full. Raises: PeerUnavailableError."""
        rest = memoryview(data).cast("B")
        while rest:
            self._check_open()
            rest = rest[self._outgoing.put(rest) :]
            if rest:
                await self._outgoing.changed.park()
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int) -> bytes:
        """At least one and at most `max_bytes` bytes, b"" at the end. Raises: PeerUnavailableError."""
        while True:
            self._check_open()
            data = self._incoming.take(max_bytes)
            if data is not None:
                return data
            await self._incoming.changed.park()

    async def close(self) -> None:
        """Close both directions; what was sent before still arrives. Never waits, never raises."""
        if not self._is_closed:
            self._is_closed = True
            self._outgoing.end()
            self._incoming.fail("the other side closed it")

    async def reset(self) -> None:
        """Abort both directions. Never waits, never raises."""
        if not self._is_closed:
            self._is_closed = True
            self._outgoing.fail("the other side reset it")
            self._incoming.fail("the other side reset it")

    def _check_open(self) -> None:
        if self._is_closed:
            raise PeerUnavailableError("lost a stream to ourselves: we closed it", self._peer)


class _Pipe:
    """One direction."""

    def __init__(self) -> None:
        self.changed = trio.lowlevel.ParkingLot()
        self._segments: deque[bytes] = deque()
        self._held_bytes = 0
        self._is_ended = False
        self._failure: str | None = None

    def put(self, data: memoryview) -> int:
        """Append as much of `data` as there is room for; gives how many bytes. Raises: PeerUnavailableError."""
        self._raise_failure()
        piece = bytes(data[: WINDOW_BYTES - self._held_bytes])
        if piece:
            self._segments.append(piece)
            self._held_bytes += len(piece)
            self.changed.unpark_all()
        return len(piece)

    def take(self, max_bytes: int) -> bytes | None:
        """What is there, at most `max_bytes` of it; b"" at the end, None when there is nothing yet."""
        self._raise_failure()
        if not self._segments:
            return b"" if self._is_ended else None
        segment = self._segments.popleft()
        data, rest = segment[:max_bytes], segment[max_bytes:]
        if rest:
            self._segments.appendleft(rest)
        self._held_bytes -= len(data)
        self.changed.unpark_all()
        return data

    def end(self) -> None:
        """Nothing more will be put."""
        self._is_ended = True
        self.changed.unpark_all()

    def fail(self, reason: str) -> None:
        """Fail both sides, unless all was put; the first reason stays."""
        if self._failure is None and not self._is_ended:
            self._failure = reason
            self._segments.clear()
        self.changed.unpark_all()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise PeerUnavailableError(f"lost a stream to ourselves: {self._failure}")
