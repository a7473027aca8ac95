"""What may come next in a sampled answer: what followed matches, and what is familiar, under its noise. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shardp2p.runtime.familiar import Familiar
from shardp2p.runtime.known_noise import KnownNoise
from shardp2p.runtime.ngram_index import NgramIndex
from shardp2p.runtime.noisy_belief import under_noise
from shardp2p.runtime.successors import Successor
from shardp2p.vocabulary import Position, Token

LEAST_BELIEF: Final = 0.006
"""With less, no noise makes a token worth a row."""

LEAST_GUESS: Final = 0.04
"""A token that followed nothing is not proposed with less."""

MOST_BELIEF: Final = 0.999
"""Nothing that is only believed is certain."""


class SampledRanking:
    """The successors of a text and of paths below it, corrected by the noise that is known of each token."""

    def __init__(self, index: NgramIndex, noise: KnownNoise) -> None:
        self._index = index
        self._familiar = Familiar(index)
        self._noise = noise

    def rank(self, ranked: Sequence[Successor], path: Sequence[Token]) -> list[Successor]:
        """The successors after `path` and familiar tokens, the most probable first, now that their noise is known.

        A familiar token has followed nothing: a match of no tokens.
        """
        guesses = self._familiar.beliefs(*_place([*self._index.tokens[-2:], *path], ranked))
        every = [one for one in ranked if one.probability >= LEAST_BELIEF]
        every += [Successor(token, belief, 0, 0, self._index, 0) for token, belief in guesses.items()]
        position = Position(len(self._index) + len(path))
        gumbels = self._noise.gumbels(position, [one.token for one in every])
        noisy = under_noise([min(MOST_BELIEF, one.probability) for one in every], gumbels)
        found = [
            Successor(one.token, probability, one.match_tokens, one.occurrences, one.index, one.end)
            for one, probability in zip(every, noisy, strict=True)
            if one.match_tokens or probability >= LEAST_GUESS
        ]
        found.sort(key=lambda one: -one.probability)
        return found

    def note(self, ranked: Sequence[Successor], token: Token) -> None:
        """Learn from what came: `token`, where `ranked` was to be expected after the text."""
        self._familiar.note(*_place(self._index.tokens[-2:], ranked), token)

    def extend(self, token: Token, *, is_answer: bool) -> None:
        """One token more."""
        self._familiar.extend(token, is_answer=is_answer)


def _place(tail: Sequence[Token], ranked: Sequence[Successor]) -> tuple[Token | None, float, set[Token]]:
    """The last token but one, what the successors leave to be believed, and who they are."""
    left = max(0.0, 1.0 - sum(one.probability for one in ranked))
    return (tail[-2] if len(tail) > 1 else None), left, {one.token for one in ranked}
