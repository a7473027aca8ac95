"""How often a peer may have us dial: each round is some hundred SYNs to addresses that it names. Pure."""

from __future__ import annotations

from collections import deque
from typing import Final

from shardp2p.vocabulary import PeerId

WINDOW_S: Final = 60.0
MAX_ROUNDS: Final = 10
"""Of one peer in a window: twice what schedule.py makes of two peers that fail."""
MAX_ALL_ROUNDS: Final = 60
"""Of all peers in a window. After an outage many come at once; then the others wait for a minute."""


class Pace:
    """The rounds that peers had of us lately."""

    def __init__(self) -> None:
        self._rounds: deque[tuple[float, PeerId]] = deque()  # at most MAX_ALL_ROUNDS

    def take(self, peer: PeerId, now: float) -> bool:
        """Whether `peer` may have a round now, which then counts."""
        while self._rounds and now - self._rounds[0][0] >= WINDOW_S:
            self._rounds.popleft()
        if len(self._rounds) >= MAX_ALL_ROUNDS or sum(by == peer for _, by in self._rounds) >= MAX_ROUNDS:
            return False
        self._rounds.append((now, peer))
        return True
