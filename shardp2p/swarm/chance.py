"""Chance as an argument: what pure code needs of a seeded generator. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class Chance(Protocol):
    """Satisfied by `random.Random`; the caller seeds it."""

    def random(self) -> float:
        """A number in [0, 1)."""
        ...

    def sample(self, population: Sequence[T], k: int) -> list[T]:
        """`k` different members in random order."""
        ...
