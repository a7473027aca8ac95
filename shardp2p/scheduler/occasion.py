"""Until when a serving peer asks whether it should sit elsewhere for speed: noise alone is no reason. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shardp2p.scheduler.holders import Holder
from shardp2p.vocabulary import PeerId

FRESH_S: Final = 120.0
"""For so long after somebody came, went or moved: time to measure links, and for the next of several moves."""

QUIET_S: Final = 25.0
"""For so long nobody has moved: everybody has looked, and none of them could help alone."""

MOST_MOVES: Final = 3
"""How often one peer moves after somebody came or went: to relieve another, back, and where layers are scarce."""


class Occasion:
    """One peer's, for one model. Each move opens the way for the next, so those that belong together are all made."""

    def __init__(self) -> None:
        self._holders: frozenset[tuple[object, ...]] = frozenset()
        self._peers: frozenset[PeerId] = frozenset()
        self._changed_at = float("-inf")
        self._moves = 0

    def note(self, holders: Sequence[Holder], now: float) -> None:
        """Who holds what of the model at this moment."""
        held = frozenset((holder.peer_id, holder.layers, holder.state) for holder in holders)
        peers = frozenset(holder.peer_id for holder in holders)
        if held != self._holders:
            self._holders, self._changed_at = held, now
        if peers != self._peers:
            self._peers, self._moves = peers, 0

    def moved(self) -> None:
        """We move, for speed or for scarce layers."""
        self._moves += 1

    def is_open(self, now: float) -> bool:
        """Whether there is reason to look for a better seat."""
        return self._moves < MOST_MOVES and now - self._changed_at < FRESH_S

    def is_quiet(self, now: float) -> bool:
        """Whether whoever had reason to move has had the time to."""
        return now - self._changed_at >= QUIET_S
