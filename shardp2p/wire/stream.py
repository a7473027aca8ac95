"""The two small interfaces between our protocols and a network.

`host` implements them over libp2p, `tests/support` in memory.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from shardp2p.vocabulary import PeerId


class Stream(Protocol):
    """A two-way byte stream to one peer.

    Not safe for concurrent sends: one writer task per stream. Any failure of the connection, the peer's death
    included, raises PeerUnavailableError that names the peer.
    """

    @property
    def peer(self) -> PeerId:
        """The authenticated id of the other side."""
        ...

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of `data`, waiting while the peer's window is full.

        A cancelled send leaves the stream unusable but harms no other stream.
        """
        ...

    async def receive_some(self, max_bytes: int) -> bytes:
        """At least one and at most `max_bytes` bytes, or b"" when the stream has ended.

        A killed peer can read as a clean end, so protocols mark their end in-band.
        """
        ...

    async def close(self) -> None:
        """Close both directions. Bounded in time, shielded from cancellation, never raises; may be called twice."""
        ...

    async def reset(self) -> None:
        """Abort the stream at once, dropping what is queued. Bounded, shielded, never raises; may be called twice."""
        ...


Handler = Callable[[Stream], Awaitable[None]]
"""Serves one inbound stream. The network closes the stream when the handler returns and resets it when it raises."""


class Network(Protocol):
    """What a service needs from a libp2p host."""

    @property
    def peer_id(self) -> PeerId:
        """Our own id."""
        ...

    def serve(self, protocol: str, handler: Handler) -> None:
        """Hand every inbound stream of `protocol` to `handler`, each in its own task."""
        ...

    async def open_stream(self, peer: PeerId, protocol: str, addresses: Sequence[str] = ()) -> Stream:
        """A new stream to `peer`, over a live connection where there is one, else by dialling `addresses`
        (multiaddrs; the trailing /p2p/ part may be absent).

        Raises: PeerUnavailableError with each address tried and why it failed; ConfigError for a malformed address.
        """
        ...
