"""An iterative Kademlia lookup as a pure machine: whom to ask next, and when the nearest have answered.

Source: Maymounkov and Mazières, Kademlia (2002), section 2.3, with libp2p's key space: the SHA-256 of the key and of
the peer id's bytes (libp2p specs, kad-dht). Only peers that answered count as found, so the dead are nobody's result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import base58

from shardp2p.vocabulary import PeerId

WIDTH: Final = 20
"""Kademlia's k: the lookup ends when this many of the nearest have answered."""
PARALLEL: Final = 8
"""Queries under way at once: a few that hang must not hold up the others."""
MAX_CLOSER: Final = 20
"""Taken from one answer, as many as the protocol promises."""
MAX_QUERIES: Final = 96
"""A lookup among thousands of peers takes some thirty; liars may invent nearer peers for ever."""


@lru_cache(8192)
def place_of(peer: PeerId) -> int:
    """A peer's place in the key space, in [0, 2^256)."""
    return int.from_bytes(hashlib.sha256(base58.b58decode(peer)).digest(), "big")


class Lookup:
    """One lookup of `key`, from the peers of `start` onwards; `ours` is never asked."""

    def __init__(self, key: bytes, start: Iterable[PeerId], ours: PeerId, width: int = WIDTH) -> None:
        self._target = int.from_bytes(hashlib.sha256(key).digest(), "big")
        self._width = width
        self._excluded = {ours}
        self._distances: dict[PeerId, int] = {}  # of those that have not failed, hence bounded by the queries
        self._asked: set[PeerId] = set()
        self._answered: set[PeerId] = set()
        self._asking: set[PeerId] = set()
        for peer in start:
            self._add(peer)

    @property
    def is_done(self) -> bool:
        """Whether nobody is left to ask and no answer that matters is awaited."""
        if len(self._asked) >= MAX_QUERIES:
            return not self._asking
        return all(peer in self._answered for peer in self._nearest())

    def next_peers(self) -> tuple[PeerId, ...]:
        """Whom to ask now; each must be reported with `answer` or `fail`."""
        room = min(PARALLEL - len(self._asking), MAX_QUERIES - len(self._asked))
        chosen = [peer for peer in self._nearest() if peer not in self._asked][: max(room, 0)]
        self._asked.update(chosen)
        self._asking.update(chosen)
        return tuple(chosen)

    def answer(self, peer: PeerId, closer: Iterable[PeerId] = ()) -> None:
        """`peer` answered, and names peers that are closer to the key."""
        self._asking.discard(peer)
        self._answered.add(peer)
        for number, other in enumerate(closer):
            if number >= MAX_CLOSER:
                break
            self._add(other)

    def fail(self, peer: PeerId) -> None:
        """`peer` did not answer: the next nearest takes its place."""
        self._asking.discard(peer)
        self._excluded.add(peer)
        self._distances.pop(peer, None)

    def found(self) -> tuple[PeerId, ...]:
        """The peers nearest to the key that answered, nearest first; at most the lookup's width."""
        return tuple(sorted(self._answered, key=self._distances.__getitem__)[: self._width])

    def _add(self, peer: PeerId) -> None:
        if peer not in self._excluded and peer not in self._distances:
            self._distances[peer] = self._target ^ place_of(peer)

    def _nearest(self) -> list[PeerId]:
        return sorted(self._distances, key=self._distances.__getitem__)[: self._width]
