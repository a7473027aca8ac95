"""Frames: kind (one byte), payload length (four bytes, big-endian), payload. Pure; docs/protocols/framing.md.

Feed what arrives to a FrameDecoder and take frames until it gives None; only then feed more. So it never holds more
than one frame and one read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from shardp2p.errors import RemoteProtocolError
from shardp2p.wire.tensor_frame import Buffer

_HEADER = struct.Struct(">BI")
HEADER_BYTES = _HEADER.size

LARGE_BYTES: Final = 32 * 1024
"""A payload from here on is handed out where it arrived: copying it would cost more than a buffer of its own."""

ALIGNMENT_BYTES: Final = 16
"""Where the bulk of a large payload begins in memory: as memory that was just taken does, and as elements need."""

FindBulk = Callable[[int, memoryview], int]
"""Where the bulk of a payload of that kind begins, by its first bytes; 0 where that cannot be seen."""


class Frame(NamedTuple):
    """A kind and its undecoded payload; one of LARGE_BYTES or more is a memoryview of bytes that nobody else has."""

    kind: int
    payload: bytes | memoryview


def encode_frame(kind: int, *payload: Buffer) -> bytes:
    """The bytes of one frame, its payload given in pieces."""
    return b"".join((_HEADER.pack(kind, sum(map(len, payload))), *payload))


class FrameDecoder:
    """Cuts a byte stream into frames. `limits` gives the largest payload of each kind that may come, in bytes.

    With `find_bulk` the bulk of a large payload is aligned where the frame begins a buffer, as it mostly does.
    """

    def __init__(self, limits: Mapping[int, int], find_bulk: FindBulk | None = None) -> None:
        self._limits = limits
        self._find_bulk = find_bulk
        # A bytearray grows and drops its head in amortised constant time per byte, so a large frame that arrives in
        # small pieces, and small frames that arrive in one piece, both cost linear time.
        self._buffer = bytearray()
        self._start = 0  # of the frame; what is before it only shifts it

    @property
    def buffered_bytes(self) -> int:
        """Bytes that were fed and are not yet part of a frame that was taken."""
        return len(self._buffer) - self._start

    def feed(self, data: Buffer) -> None:
        """Append bytes that arrived."""
        if self._buffer:
            self._buffer += data
        else:
            self._begin(data)

    def next_frame(self) -> Frame | None:
        """The next whole frame, or None when more bytes are needed.

        Raises: RemoteProtocolError as soon as a header names an unknown kind or too long a payload, and at every
        later call: such a stream cannot be cut into frames any more.
        """
        buffer, start = self._buffer, self._start
        if len(buffer) < start + HEADER_BYTES:
            return None
        kind, length = _HEADER.unpack_from(buffer, start)
        limit = self._limits.get(kind)
        if limit is None:
            raise RemoteProtocolError(f"the frame kind {kind} is unknown")
        if length > limit:
            raise RemoteProtocolError(f"a frame of kind {kind} has {length} bytes; at most {limit} are allowed")
        end = start + HEADER_BYTES + length
        if len(buffer) < end:
            return None
        whole = memoryview(buffer)
        if length >= LARGE_BYTES:
            # The buffer goes with the frame; what came behind it begins another.
            self._begin(whole[end:])
            return Frame(kind, whole[start + HEADER_BYTES : end])
        with whole as view:
            payload = bytes(view[start + HEADER_BYTES : end])
        del buffer[:end]
        self._start = 0
        return Frame(kind, payload)

    def _begin(self, data: Buffer) -> None:
        """Begin a buffer with `data`, shifted so that the bulk of a large payload that begins there is aligned."""
        self._start = 0
        if self._find_bulk is not None and len(data) > HEADER_BYTES:
            kind, length = _HEADER.unpack_from(data)
            bulk = self._find_bulk(kind, memoryview(data)[HEADER_BYTES:]) if length >= LARGE_BYTES else 0
            self._start = -(HEADER_BYTES + bulk) % ALIGNMENT_BYTES if bulk else 0
        self._buffer = bytearray(self._start)
        self._buffer += data
