"""One gossip stream that stands, as gossip_service.py keeps it."""

from __future__ import annotations

import trio

from shardp2p.swarm.neighbours import Connected
from shardp2p.vocabulary import PeerId


class Conversation:
    """With `peer`, since `since`; `farewell` is set once we are to say goodbye, with the reason."""

    def __init__(self, peer: PeerId, is_chosen: bool, since: float) -> None:
        self.peer = peer
        self.state = Connected(is_chosen, since)
        self.scope = trio.CancelScope()
        self.wake = trio.Event()
        self.farewell: str | None = None
