"""Frames: kind (one byte), payload length (four bytes, big-endian), payload. Pure; docs/protocols/framing.md.

Feed what arrives to a FrameDecoder and take frames until it gives None; only then feed more. So it never holds more
than one frame and one read.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

from shardp2p.errors import RemoteProtocolError

_HEADER = struct.Struct(">BI")
HEADER_BYTES = _HEADER.size


class Frame(NamedTuple):
    """A kind and its undecoded payload."""

    kind: int
    payload: bytes


def encode_frame(kind: int, payload: bytes) -> bytes:
    """The bytes of one frame."""
    return _HEADER.pack(kind, len(payload)) + payload


class FrameDecoder:
    """Cuts a byte stream into frames. `limits` gives the largest payload of each kind that may come, in bytes."""

    def __init__(self, limits: Mapping[int, int]) -> None:
        self._limits = limits
        # A bytearray grows and drops its head in amortised constant time per byte, so a large frame that arrives in
        # small pieces, and small frames that arrive in one piece, both cost linear time.
        self._buffer = bytearray()

    @property
    def buffered_bytes(self) -> int:
        """Bytes that were fed and are not yet part of a frame that was taken."""
        return len(self._buffer)

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes that arrived."""
        self._buffer += data

    def next_frame(self) -> Frame | None:
        """The next whole frame, or None when more bytes are needed.

        Raises: RemoteProtocolError as soon as a header names an unknown kind or too long a payload, and at every
        later call: such a stream cannot be cut into frames any more.
        """
        buffer = self._buffer
        if len(buffer) < HEADER_BYTES:
            return None
        kind, length = _HEADER.unpack_from(buffer)
        limit = self._limits.get(kind)
        if limit is None:
            raise RemoteProtocolError(f"the frame kind {kind} is unknown")
        if length > limit:
            raise RemoteProtocolError(f"a frame of kind {kind} has {length} bytes; at most {limit} are allowed")
        end = HEADER_BYTES + length
        if len(buffer) < end:
            return None
        with memoryview(buffer) as view:
            payload = bytes(view[HEADER_BYTES:end])
        del buffer[:end]
        return Frame(kind, payload)
