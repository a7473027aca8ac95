"""The frames of Yamux as bytes: pure, no I/O.

Source: the Yamux specification (github.com/hashicorp/yamux, spec.md), as libp2p uses it under /yamux/1.0.0.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from shardp2p.errors import RemoteProtocolError

DATA: Final = 0
WINDOW_UPDATE: Final = 1
PING: Final = 2
GO_AWAY: Final = 3

SYN: Final = 1
ACK: Final = 2
FIN: Final = 4
RST: Final = 8

INITIAL_WINDOW_BYTES: Final = 256 * 1024
HEADER_BYTES: Final = 12
MAX_WRITE_BYTES: Final = 65519
"""The plaintext of one Noise message (65535 less the 16-byte tag): a larger write becomes two messages."""
MAX_WRITE_PAYLOAD_BYTES: Final = MAX_WRITE_BYTES - HEADER_BYTES
MAX_READ_PAYLOAD_BYTES: Final = 1024 * 1024
"""Other implementations send at most 64 KiB per frame; more than this is refused before it is buffered."""

_HEADER = struct.Struct("!BBHII")


class Frame(NamedTuple):
    """One frame. `length` is the payload's size, a window increment, a ping's value or a go-away code."""

    kind: int
    flags: int
    stream_id: int
    length: int
    payload: bytes = b""


def encode_data(stream_id: int, payload: memoryview) -> bytes:
    """A data frame that carries `payload`."""
    return b"".join((_HEADER.pack(0, DATA, 0, stream_id, len(payload)), payload))


def encode_control(kind: int, flags: int, stream_id: int, length: int = 0) -> bytes:
    """A frame without a payload: a window update, a ping or a go-away."""
    return _HEADER.pack(0, kind, flags, stream_id, length)


def is_of_path(frame: bytes) -> bool:
    """Whether `frame` is of stream 0: about the connection, and not of one of its streams."""
    return frame[4:8] == bytes(4)


class FrameReader:
    """Cuts a byte stream into frames; holds at most one unfinished frame."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that `data` completes. Raises: RemoteProtocolError for bytes that are not Yamux."""
        buffer = self._rest + data if self._rest else data
        frames: list[Frame] = []
        start = 0
        while len(buffer) - start >= HEADER_BYTES:
            version, kind, flags, stream_id, length = _HEADER.unpack_from(buffer, start)
            if version != 0 or kind > GO_AWAY:
                raise RemoteProtocolError(f"not a Yamux frame: version {version}, type {kind}")
            payload_bytes = length if kind == DATA else 0
            if payload_bytes > MAX_READ_PAYLOAD_BYTES:
                raise RemoteProtocolError(f"a frame of {payload_bytes} bytes exceeds {MAX_READ_PAYLOAD_BYTES}")
            payload_start = start + HEADER_BYTES
            if payload_start + payload_bytes > len(buffer):
                break
            start = payload_start + payload_bytes
            frames.append(Frame(kind, flags, stream_id, length, buffer[payload_start:start]))
        self._rest = buffer[start:]
        return frames
