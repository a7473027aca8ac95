"""The noise of a sampled request, kept for the tokens that were asked about: they are asked about again. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shardp2p.vocabulary import Position, Token

MAX_POSITIONS: Final = 64
"""Drafts are seldom deeper; the position that was met first goes first."""


class KnownNoise:
    """Gumbel noise by position and token, for one seed."""

    def __init__(self, seed: int) -> None:
        from shardp2p.runtime.noise import gumbels  # it needs numpy, which a driver of greedy requests does without

        self._draw, self._seed = gumbels, seed
        self._known: dict[Position, dict[Token, float]] = {}  # a few dozen tokens each

    def gumbels(self, position: Position, tokens: Sequence[Token]) -> list[float]:
        """The noise of each of the tokens at `position`, as `choose` would add it there."""
        known = self._known.get(position)
        if known is None:
            while len(self._known) >= MAX_POSITIONS:
                del self._known[next(iter(self._known))]
            known = self._known[position] = {}
        missing = sorted({token for token in tokens if token not in known})
        if missing:
            known.update(zip(missing, self._draw(self._seed, position, missing), strict=True))
        return [known[token] for token in tokens]
