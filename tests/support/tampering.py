"""A `Network` whose peer says something else than its code: each message it sends can be changed on the way out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shardp2p.vocabulary import PeerId
from shardp2p.wire.codec import decode, encode
from shardp2p.wire.framing import FrameDecoder
from shardp2p.wire.messages import Message
from shardp2p.wire.protocols import limits_of
from shardp2p.wire.stream import Handler, Network, Stream

Change = Callable[[Message], Sequence[Message | bytes]]
"""What goes out in place of a message."""


class TamperedNetwork:
    """`inner`, with every message of `protocol` that its peer sends replaced by `change(message)`."""

    def __init__(self, inner: Network, protocol: str, change: Change) -> None:
        self._inner = inner
        self._protocol = protocol
        self._change = change

    @property
    def peer_id(self) -> PeerId:
        return self._inner.peer_id

    def serve(self, protocol: str, handler: Handler) -> None:
        async def tampered(stream: Stream) -> None:
            await handler(self._wrap(protocol, stream))

        self._inner.serve(protocol, tampered)

    async def open_stream(self, peer: PeerId, protocol: str, addresses: Sequence[str] = ()) -> Stream:
        return self._wrap(protocol, await self._inner.open_stream(peer, protocol, addresses))

    def _wrap(self, protocol: str, stream: Stream) -> Stream:
        return TamperedStream(stream, protocol, self._change) if protocol == self._protocol else stream


class TamperedStream:
    """A stream to which every `send_all` gives exactly one frame, as MessageChannel does."""

    def __init__(self, inner: Stream, protocol: str, change: Change) -> None:
        self._inner = inner
        self._protocol = protocol
        self._change = change

    @property
    def peer(self) -> PeerId:
        return self._inner.peer

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        decoder = FrameDecoder(limits_of(self._protocol))
        decoder.feed(data)
        frame = decoder.next_frame()
        assert frame is not None
        for message in self._change(decode(self._protocol, frame.kind, frame.payload)):
            await self._inner.send_all(message if isinstance(message, bytes) else encode(self._protocol, message))

    async def receive_some(self, max_bytes: int) -> bytes:
        return await self._inner.receive_some(max_bytes)

    async def close(self) -> None:
        await self._inner.close()

    async def reset(self) -> None:
        await self._inner.reset()
