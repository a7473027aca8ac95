"""How a text begins, in a form that says nothing of it: one digest for each of its beginnings, evenly spaced.

Rules: docs/protocols/control.md. Only whoever has the key can make a digest; equal digests are equal beginnings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LEAST_STEP_TOKENS: Final = 64
"""Beginnings that are closer together would save next to nothing."""

MAX_PREFIXES: Final = 512
"""Digests of one text: 8 KiB. A text of 32,768 tokens has that many; a longer one has them further apart."""

PREFIX_BYTES: Final = 16
"""A digest, of which no two are equal by chance."""


@dataclass(frozen=True, slots=True)
class Prefixes:
    """The digest number i is that of a text's first (i + 1) * `step_tokens` tokens."""

    step_tokens: int
    digests: tuple[bytes, ...]

    @property
    def lengths(self) -> dict[bytes, int]:
        """How many tokens each digest stands for."""
        return {digest: (at + 1) * self.step_tokens for at, digest in enumerate(self.digests)}

    def has_length(self, tokens: int) -> bool:
        """Whether there is a digest of that many tokens."""
        return tokens > 0 and tokens % self.step_tokens == 0 and tokens <= self.step_tokens * len(self.digests)


def step_tokens(tokens: int) -> int:
    """How far apart the digests of a text of so many tokens are: 64, or so often doubled that they are few enough."""
    step = LEAST_STEP_TOKENS
    while tokens // step > MAX_PREFIXES:
        step *= 2
    return step
