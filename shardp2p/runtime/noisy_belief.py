"""What becomes of a belief that a token comes next when its noise is known. Pure.

A sampled token is the argmax of score + Gumbel noise (docs/decisions/0004-replayable-sampling.md). One of probability p
with noise g is chosen with probability exp(-(1 - p) / p * e^-g): the largest of all others is Gumbel noise of mass
1 - p.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from typing import Final

CERTAIN_SHARE: Final = 0.65
"""Of the guesses that come true so many would have with any noise: the token was certain."""

MIDDLING: Final = 0.15
"""What a token's probability is in the others. Both are fitted to sampled answers of a small model."""


def chance(probability: float, gumbel: float) -> float:
    """How probable it is that a token is chosen whose probability, above 0, and whose noise are known."""
    return exp(-(1 - probability) / probability * exp(-gumbel))


def under_noise(beliefs: Sequence[float], gumbels: Sequence[float]) -> list[float]:
    """The beliefs in different tokens, below 1 and all together at most 1, now that the noise of each is known.

    A belief in a token is not its probability: it may also be doubt whether a nearly certain token is the right one, of
    which noise says nothing. So it is taken for a mixture of the two. What one token gains the others lose.
    """
    noisy = [belief * _evidence(belief, gumbel) for belief, gumbel in zip(beliefs, gumbels, strict=True)]
    total = sum(noisy) + max(0.0, 1.0 - sum(beliefs))
    return [belief / total for belief in noisy] if total > 0 else noisy


def _evidence(belief: float, gumbel: float) -> float:
    """How much more often the noise of a token that comes is like this than that of any token."""
    open_share = 1 - CERTAIN_SHARE
    middling = max(MIDDLING, belief * open_share / (1 - belief * CERTAIN_SHARE))
    return CERTAIN_SHARE + open_share * chance(middling, gumbel) / middling
