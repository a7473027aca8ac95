"""Replayable noise: a number for every (seed, position, token), the same on every machine and in any order.

The generator is Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011; the Random123
library), which NumPy implements and keeps stable. Key words: seed, position. Token t is word t % 4 of the block whose
counter is t // 4 + 1 (docs/decisions/0004-replayable-sampling.md; golden vectors in tests/vectors/noise).
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Context, Decimal

import numpy as np
from numpy.typing import NDArray

from shardp2p.vocabulary import Position, Token

WORDS_PER_BLOCK = 4
SEEKING_COSTS_TOKENS = 512
"""Seeking to one token costs about as much as generating this many in a row."""

FAST_GUMBEL_ERROR = 1e-12
"""`gumbel` is nearer than this to `exact_gumbel`, with a wide margin for any machine's logarithm."""

_DIGITS = Context(prec=60)
"""Enough for every number that `uniform` can give; never the thread's own context."""

_SHIFT = np.uint64(12)


def bits(seed: int, position: Position, tokens: NDArray[np.int64]) -> NDArray[np.uint64]:
    """64 uniform bits for each of `tokens` [N], which ascend and are not negative."""
    if len(tokens) == 0:
        return np.empty(0, dtype=np.uint64)
    generator = np.random.Philox(key=np.array([seed, position], dtype=np.uint64))
    last = int(tokens[-1])
    if last < SEEKING_COSTS_TOKENS * len(tokens):
        words: NDArray[np.uint64] = generator.random_raw(last + 1)
        return words if len(words) == len(tokens) else words[tokens]
    blocks, where = np.unique(tokens // WORDS_PER_BLOCK, return_inverse=True)
    found = np.empty((len(blocks), WORDS_PER_BLOCK), dtype=np.uint64)
    for row, skipped in enumerate((np.diff(blocks, prepend=-1) - 1).tolist()):
        generator.advance(skipped)
        found[row] = generator.random_raw(WORDS_PER_BLOCK)
    chosen: NDArray[np.uint64] = found[where, tokens % WORDS_PER_BLOCK]
    return chosen


def uniform(noise_bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Numbers strictly between 0 and 1: the middles of 2^52 equal cells, all of them exact float64 values."""
    numbers = (noise_bits >> _SHIFT).astype(np.float64)
    numbers += 0.5
    numbers *= 2.0**-52
    return numbers


def gumbel(noise_bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Standard Gumbel noise -log(-log(u)), as exact as the machine's logarithm (see FAST_GUMBEL_ERROR)."""
    numbers = uniform(noise_bits)
    np.log(numbers, out=numbers)
    np.negative(numbers, out=numbers)
    np.log(numbers, out=numbers)
    np.negative(numbers, out=numbers)
    return numbers


def gumbels(seed: int, position: Position, tokens: Sequence[Token]) -> list[float]:
    """The Gumbel noise of each of a few tokens, which ascend."""
    found: list[float] = gumbel(bits(seed, position, np.array(tokens, dtype=np.int64))).tolist()
    return found


def exact_gumbel(noise_bits: int) -> float:
    """The same noise for one token, bit for bit the same on every machine: it is computed in decimal arithmetic."""
    number = _DIGITS.divide(Decimal((noise_bits >> 12) * 2 + 1), Decimal(2**53))
    exponential = _DIGITS.ln(number).copy_negate()
    return float(_DIGITS.ln(exponential).copy_negate())
