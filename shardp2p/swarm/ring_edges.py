"""Which peers are next to us in rings: their connections are kept warm for the next request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import trio

from shardp2p.vocabulary import PeerId
from shardp2p.wire.protocols import CONTROL, RING
from shardp2p.wire.stream import Handler, Network, Stream

WARM_S: Final = 600.0
"""How long after its last request an edge is kept: dialling anew, over a relay and through a hole, takes seconds."""
MAX_EDGES: Final = 64
"""More than the rings that one peer can be in at once; the one used longest ago is let go."""

_OF_RINGS: Final = frozenset({RING, CONTROL})


class RingEdges:
    """Implements `Network` over another one, and remembers with whom ring streams were opened."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._used_at: dict[PeerId, float] = {}  # the longest ago first

    @property
    def peer_id(self) -> PeerId:
        """Our own id."""
        return self._network.peer_id

    def serve(self, protocol: str, handler: Handler) -> None:
        """As the network below."""
        self._network.serve(protocol, handler)

    async def open_stream(self, peer: PeerId, protocol: str, addresses: Sequence[str] = ()) -> Stream:
        """As the network below."""
        if protocol in _OF_RINGS:
            self.note(peer)
        return await self._network.open_stream(peer, protocol, addresses)

    def note(self, peer: PeerId) -> None:
        """A ring stream joins us with `peer` now."""
        if peer == self.peer_id:
            return
        self._used_at.pop(peer, None)
        self._used_at[peer] = trio.current_time()
        while len(self._used_at) > MAX_EDGES:
            del self._used_at[next(iter(self._used_at))]

    def warm(self) -> tuple[PeerId, ...]:
        """The peers whose edges are to be kept, the one used last first."""
        since = trio.current_time() - WARM_S
        return tuple(peer for peer, at in reversed(self._used_at.items()) if at >= since)
