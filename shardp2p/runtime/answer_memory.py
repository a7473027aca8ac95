"""What this driver has answered before, as far as it is kept: in memory, for a while, and for nobody else. Pure.

Each model and each asker has a shelf of its own, so that how fast an answer comes tells nobody what others were told.
Nothing is written to disk, and nothing leaves the process.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shardp2p.runtime.ngram_index import BREAK, LONGEST_MATCH, Followers, NgramIndex
from shardp2p.vocabulary import Token

SHELF_TOKENS: Final = 32_768
"""Of one model and asker: dozens of long answers."""

MAX_SHELVES: Final = 8
"""All together some 100 MiB at most; the one that was used least lately goes first."""

BYTES_PER_TOKEN: Final = 400
"""What a remembered token takes at most: an entry for each n-gram that ends with it."""


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """How full it is: shelves, tokens on all of them, and at most so many bytes."""

    shelves: int
    tokens: int
    bytes: int


class Shelf:
    """Answers of one model to one asker. Two indexes take turns: when the newer is full, the older is forgotten."""

    def __init__(self, most_tokens: int = SHELF_TOKENS) -> None:
        self._half = most_tokens // 2
        self._newer, self._older = NgramIndex(), NgramIndex()

    def __len__(self) -> int:
        return len(self._newer) + len(self._older)

    def remember(self, prompt_tokens: Sequence[Token], answer_tokens: Sequence[Token]) -> None:
        """Keep an answer, the latest part of one that is too long, with the end of what it answers."""
        kept = [*prompt_tokens[-LONGEST_MATCH:], *answer_tokens]
        kept = kept[max(0, len(kept) + 1 - self._half) :]
        if not answer_tokens or not kept:
            return
        if len(self._newer) + len(kept) + 1 > self._half:
            self._newer, self._older = NgramIndex(), self._newer
        self._newer.extend(kept)
        self._newer.extend((BREAK,))

    def followers(self, tail: Sequence[Token]) -> list[Followers]:
        """What followed the end of `tail` in answers before, as NgramIndex says it; newer ones first."""
        return self._newer.followers(tail) + self._older.followers(tail)


class AnswerMemory:
    """All shelves of a process."""

    def __init__(self, most_shelves: int = MAX_SHELVES, shelf_tokens: int = SHELF_TOKENS) -> None:
        self._most_shelves = most_shelves
        self._shelf_tokens = shelf_tokens
        self._shelves: OrderedDict[tuple[str, str], Shelf] = OrderedDict()  # the one used last comes last

    def shelf(self, model_digest: str, asker: str) -> Shelf:
        """The shelf of that model and asker; a new one may take the place of another."""
        key = model_digest, asker
        shelf = self._shelves.setdefault(key, Shelf(self._shelf_tokens))
        self._shelves.move_to_end(key)
        while len(self._shelves) > self._most_shelves:
            self._shelves.popitem(last=False)
        return shelf

    @property
    def use(self) -> MemoryUse:
        """How full it is now."""
        tokens = sum(len(shelf) for shelf in self._shelves.values())
        return MemoryUse(len(self._shelves), tokens, tokens * BYTES_PER_TOKEN)
