"""The messages of /shardp2p/carry/1 on a stream that carries frames afterwards: not a byte more than one is read."""

from __future__ import annotations

from typing import cast

from shardp2p.errors import PeerUnavailableError
from shardp2p.wire.carrying import CarryMessage
from shardp2p.wire.codec import decode, encode
from shardp2p.wire.framing import HEADER_BYTES, FrameDecoder
from shardp2p.wire.protocols import CARRY, limits_of
from shardp2p.wire.stream import Stream


async def send(stream: Stream, message: CarryMessage) -> None:
    """Send `message`. Raises: PeerUnavailableError."""
    await stream.send_all(encode(CARRY, message))


async def receive(stream: Stream) -> CarryMessage:
    """The next message. Raises: PeerUnavailableError; RemoteProtocolError for what is none."""
    decoder = FrameDecoder(limits_of(CARRY))
    header = await _receive_exactly(stream, HEADER_BYTES)
    decoder.feed(header)
    frame = decoder.next_frame()  # which refuses a payload that is too long
    if frame is None:
        decoder.feed(await _receive_exactly(stream, int.from_bytes(header[1:], "big")))
        frame = decoder.next_frame()
    assert frame is not None
    return cast(CarryMessage, decode(CARRY, frame.kind, frame.payload))


async def _receive_exactly(stream: Stream, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = await stream.receive_some(size - len(data))
        if not piece:
            raise PeerUnavailableError("the peer ended the stream without a message", stream.peer)
        data += piece
    return bytes(data)
