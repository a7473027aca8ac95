"""A language that costs nothing to speak: what an emulated target says after any text, and what its draft thinks.

Pure. A text is known by a 64-bit digest, which one more token changes into that of the longer text. Both the target's
next token and the draft's guesses are functions of it, so a stage needs no model, and a draft is as good as asked:

- at each text the draft is sure of its first guess by a, drawn from a Beta distribution with mean `accept`;
- the rest 1 - a is shared by its further guesses as RANK_SHARES says, and by none of them;
- the target says the guess that a draw by these very probabilities picks. So they are calibrated.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Final

from shardp2p.errors import ConfigError
from shardp2p.vocabulary import Branch, Token

RANK_SHARES: Final = (0.42, 0.18, 0.10, 0.06, 0.045, 0.035, 0.03)
"""Of what the first guess leaves: the shares of the second to the eighth. Where the first misses, one of them is right
in 87 of 100 cases."""

RANKS: Final = 1 + len(RANK_SHARES)
"""How many guesses the draft has."""

CONCENTRATION: Final = 2.0
"""Of the Beta distribution: texts differ much in how predictable they are."""

VOCABULARY: Final = 32_000

QUANTILES: Final = 4096

_MASK: Final = 2**64 - 1


class Language:
    """A language whose draft's first guess is right with probability `accept` on average."""

    def __init__(self, accept: float, seed: int = 0) -> None:
        if not 0.0 < accept < 1.0:
            raise ConfigError(f"the acceptance is {accept}; it must be between 0 and 1")
        self._sureness = _quantiles(accept)
        self._start = _mix(seed + 1)
        # Two of them: what a text is followed by is numbers, which Python's collector of garbage need not walk through.
        self._next_token = lru_cache(maxsize=1 << 16)(self._draw)
        self._guesses = lru_cache(maxsize=1 << 12)(self._guess)

    def digest(self, text: Iterable[Token]) -> int:
        """The digest of a text, below 2^64."""
        digest = self._start
        for token in text:
            digest = extend(digest, token)
        return digest

    def next_token(self, digest: int) -> Token:
        """What the target says after the text."""
        return self._next_token(digest)

    def continuation(self, text: Iterable[Token], tokens: int) -> list[Token]:
        """What the target alone says after a text."""
        digest, said = self.digest(text), []
        for _ in range(tokens):
            said.append(self.next_token(digest))
            digest = extend(digest, said[-1])
        return said

    def guesses(self, digest: int) -> tuple[Branch, ...]:
        """What the draft thinks comes after the text, the most probable first."""
        return self._guesses(digest)

    def propose(self, text: int, paths: Sequence[Sequence[Token]], guesses: int = RANKS) -> list[tuple[Branch, ...]]:
        """The first guesses after each of `paths` below the text of a digest."""
        answers = []
        for path in paths:
            digest = text
            for token in path:
                digest = extend(digest, token)
            answers.append(self.guesses(digest)[:guesses])
        return answers

    def _draw(self, digest: int) -> Token:
        sure = self._sureness[digest % QUANTILES]
        drawn = (_mix(digest) >> 11) / 2**53
        rank = bisect_right(tuple(accumulate(_probabilities(sure))), drawn)
        return (_first_token(digest) + rank) % VOCABULARY

    def _guess(self, digest: int) -> tuple[Branch, ...]:
        first = _first_token(digest)
        ranked = _ranked(self._sureness[digest % QUANTILES])
        return tuple([Branch(((first + at) % VOCABULARY,), probability) for at, probability in ranked])


def _probabilities(sure: float) -> tuple[float, ...]:
    """Of the token that `_first_token` gives, and of those that follow it by number."""
    return (sure, *((1 - sure) * share for share in RANK_SHARES))


@lru_cache(maxsize=QUANTILES)
def _ranked(sure: float) -> tuple[tuple[int, float], ...]:
    """How far from the first token, and how probable, the most probable first."""
    return tuple(sorted(enumerate(_probabilities(sure)), key=_least_sure_last))


@lru_cache(maxsize=1 << 18)
def extend(digest: int, token: int) -> int:
    """The digest of the text that goes on with `token`."""
    return _mix(digest ^ ((token + 1) * 0x9E3779B97F4A7C15 & _MASK))


def _first_token(digest: int) -> Token:
    return (digest >> 20) % VOCABULARY


def _least_sure_last(ranked: tuple[int, float]) -> float:
    return -ranked[1]


@lru_cache(maxsize=8)
def _quantiles(accept: float) -> tuple[float, ...]:
    """How sure the draft is, at evenly spaced quantiles."""
    rng = random.Random(f"how sure, {accept}")
    a, b = accept * CONCENTRATION, (1 - accept) * CONCENTRATION
    drawn = sorted(rng.betavariate(a, b) for _ in range(8 * QUANTILES))
    return tuple(drawn[4::8])


def _mix(value: int) -> int:
    """A bijection of 64-bit numbers that scatters them (splitmix64)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
