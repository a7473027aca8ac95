"""Caches of sessions that have ended, whose rows later sessions of the same coordinator begin with. Pure.

They lie in memory that no session wants: whoever opens one takes what it needs, and the oldest of these are dropped.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from shardp2p.vocabulary import LayerRange
from shardp2p.wire.prefixes import Prefixes

MAX_KEPT: Final = 64
"""Caches at once: as many as there may be sessions."""

KEPT_S: Final = 1_800.0
"""Unused for so long, a cache serves nobody any more: a chat's reader is gone by then."""

Cache = TypeVar("Cache")


class KeptPlace(NamedTuple):
    """Where and whose a session was. Only sessions of an equal place use its rows; `owner` is what holds the layers."""

    owner: Hashable
    coordinator: str
    layers: LayerRange


@dataclass(frozen=True, slots=True)
class Kept(Generic[Cache]):
    """One ended session. `rows`: the cache rows of the text's first tokens, in their order."""

    place: KeptPlace
    prefixes: Prefixes
    rows: tuple[int, ...]
    size_bytes: int
    cache: Cache

    def shares(self, wanted: Prefixes) -> int:
        """How many of the first tokens are the same, as far as both have digests of them."""
        there = self.prefixes.lengths
        lengths = wanted.lengths
        return max(
            (lengths[one] for one in there.keys() & lengths.keys() if there[one] == lengths[one] <= len(self.rows)),
            default=0,
        )


class KeptCaches(Generic[Cache]):
    """What is kept on one device, at most `MAX_KEPT`."""

    def __init__(self) -> None:
        self._kept: list[tuple[float, Kept[Cache]]] = []  # by when they were last of use, the oldest first

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def size_bytes(self) -> int:
        """What all of them take."""
        return sum(kept.size_bytes for _, kept in self._kept)

    def find(self, place: KeptPlace, wanted: Prefixes, now: float) -> tuple[Kept[Cache], int] | None:
        """The one that shares most tokens with a text, and how many; it is now the last to be dropped."""
        self._expire(now)
        found = max(
            ((kept.shares(wanted), at) for at, (_, kept) in enumerate(self._kept) if kept.place == place),
            default=(0, -1),
        )
        shared, at = found
        if not shared:
            return None
        _, kept = self._kept.pop(at)
        self._kept.append((now, kept))
        return kept, shared

    def has(self, kept: Kept[Cache]) -> bool:
        """Whether it is still there."""
        return any(other is kept for _, other in self._kept)

    def add(self, kept: Kept[Cache], free_bytes: int, now: float) -> None:
        """Keep one more; `free_bytes` is what no session has, its own memory included. What it continues is dropped."""
        self._expire(now)
        longer = set(kept.prefixes.digests)
        self._kept = [
            (at, other)
            for at, other in self._kept
            if other.place != kept.place or other.prefixes.digests[-1] not in longer
        ]
        self._kept.append((now, kept))
        self.fit(free_bytes)

    def fit(self, free_bytes: int) -> None:
        """Drop the oldest until the others fit into what no session has."""
        while self._kept and (len(self._kept) > MAX_KEPT or self.size_bytes > free_bytes):
            self._kept.pop(0)

    def drop(self, owner: Hashable) -> None:
        """Drop all of `owner`'s."""
        self._kept = [(at, kept) for at, kept in self._kept if kept.place.owner is not owner]

    def _expire(self, now: float) -> None:
        self._kept = [(at, kept) for at, kept in self._kept if now - at < KEPT_S]
