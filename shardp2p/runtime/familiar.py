"""How probable tokens are that did not follow any of the last ones before: by how usual they are in the text. Pure.

They are what a match leaves to be believed, by the shares that tokens have of the text; more so where a token has stood
two places after the last but one before, whatever was between. Fitted to sampled answers of a small model; how often
such a guess has been right in this very text corrects it.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from shardp2p.runtime.ngram_index import NgramIndex
from shardp2p.runtime.successors import FORGET
from shardp2p.vocabulary import Token

SHARE_FACTOR: Final = 0.7
SHARE_POWER: Final = 1.25
"""A token with a share f of the text is believed in with SHARE_FACTOR * f ** SHARE_POWER of what matches leave."""

GAP_FACTOR: Final = 4.0
"""So much more if it has followed the last token but one at this distance."""

ANSWER_WEIGHT: Final = 2.4
"""What a token of the answer counts beside one of the prompt."""

UNSEEN_WEIGHT: Final = 20.0
"""What a text has not said yet counts as so many tokens of a prompt: shares of a few words say little."""

LEAST_BELIEF: Final = 0.012
"""With less, no noise makes it worth a row."""

LEAST_SHARE: Final = 0.02
"""Tokens with less of the text are believed in after a gap alone. So at most 50 are looked at."""

PRIOR_GUESSES: Final = 2.0
"""So many right guesses weigh as much as what is believed before the first one."""


class Familiar:
    """The tokens of a text by their shares, and how much such guesses are worth."""

    def __init__(self, index: NgramIndex) -> None:
        """`index` is that of the text; what it holds already is a prompt."""
        self._index = index
        self._weights: dict[Token, float] = {}
        self._total = UNSEEN_WEIGHT
        self._usual: list[Token] = []
        self._expected = self._came = 0.0  # guesses that should have been right so far, and those that were
        for token in index.tokens:
            self._count(token, 1.0)
        self._sort_out(self._weights)

    def beliefs(self, before: Token | None, left: float, known: Container[Token]) -> dict[Token, float]:
        """What is believed of tokens not `known`, where these leave `left`; `before` is the last token but one."""
        scale = (self._came + PRIOR_GUESSES) / (self._expected + PRIOR_GUESSES)
        return self._believe(before, left * scale, known)

    def note(self, before: Token | None, left: float, known: Container[Token], token: Token) -> None:
        """Learn from what came: `token`, where all this was so."""
        guesses = self._believe(before, left, known)
        self._expected = self._expected * FORGET + sum(guesses.values())
        self._came = self._came * FORGET + (token in guesses)

    def extend(self, token: Token, *, is_answer: bool) -> None:
        """One token more."""
        self._count(token, ANSWER_WEIGHT if is_answer else 1.0)
        self._sort_out(dict.fromkeys((*self._usual, token)))

    def _count(self, token: Token, weight: float) -> None:
        self._weights[token] = self._weights.get(token, 0.0) + weight
        self._total += weight

    def _sort_out(self, tokens: dict[Token, float] | dict[Token, None]) -> None:
        """A share only rises when its token comes: nothing but that and what was usual is to be looked at."""
        least = LEAST_SHARE * self._total
        self._usual = [token for token in tokens if self._weights[token] >= least]

    def _believe(self, before: Token | None, left: float, known: Container[Token]) -> dict[Token, float]:
        after_gap = set() if before is None else self._index.after_gap(before)
        beliefs = {}
        for token in {*self._usual, *after_gap}:
            if token not in known:
                belief = left * SHARE_FACTOR * (self._weights[token] / self._total) ** SHARE_POWER
                belief *= GAP_FACTOR if token in after_gap else 1.0
                if belief >= LEAST_BELIEF:
                    beliefs[token] = min(belief, left)
        return beliefs
