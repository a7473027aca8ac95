"""The `Stream` of our protocols over a libp2p stream: foreign exceptions become PeerUnavailableError here."""

from __future__ import annotations

from libp2p.stream_muxer.exceptions import MuxedStreamEOF, MuxedStreamError

from shardp2p.errors import PeerUnavailableError
from shardp2p.host.muxed_stream import MuxedStream
from shardp2p.host.muxer import Muxer
from shardp2p.vocabulary import PeerId


class HostStream:
    """Implements `shardp2p.wire.stream.Stream`."""

    def __init__(self, muxed: MuxedStream, peer: PeerId) -> None:
        self._muxed = muxed
        self._peer = peer

    @property
    def peer(self) -> PeerId:
        """The id that the other side proved in the handshake."""
        return self._peer

    @property
    def muxed(self) -> MuxedStream:
        """The stream of libp2p below."""
        return self._muxed

    @property
    def connection(self) -> Muxer:
        """The connection that carries it."""
        return self._muxed.muxed_conn

    @property
    def remote_address(self) -> tuple[str, int] | None:
        """The IP address and port from which the peer is connected, as we see them; None over a relay."""
        muxer = self._muxed.muxed_conn
        remote = muxer.get_remote_address() if muxer.path.is_direct else None
        return (remote[0].partition("%")[0], remote[1]) if remote else None  # a zone says nothing to others

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of `data`, waiting while the peer's window is full. Raises: PeerUnavailableError."""
        try:
            await self._muxed.write(data)
        except MuxedStreamError as error:
            raise PeerUnavailableError(f"lost the stream to peer {self._peer}: {error}") from error

    async def receive_some(self, max_bytes: int) -> bytes:
        """At least one and at most `max_bytes` bytes, b"" at the peer's end. Raises: PeerUnavailableError."""
        try:
            return await self._muxed.read(max_bytes)
        except MuxedStreamEOF:
            return b""
        except MuxedStreamError as error:
            raise PeerUnavailableError(f"lost the stream to peer {self._peer}: {error}") from error

    async def close(self) -> None:
        """Close both directions; what was sent before still arrives. Never waits, never raises."""
        await self._muxed.close()

    async def reset(self) -> None:
        """Abort both directions. Never waits, never raises."""
        await self._muxed.reset()
