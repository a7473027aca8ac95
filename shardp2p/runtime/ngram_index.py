"""Where the n-grams of a growing text stand, and what followed them there. Pure.

Short n-grams are chained, each occurrence to the one before; how much longer a match is, a comparison tells. So a token
costs ORDERS dictionary entries, whatever the length of the longest match that is told apart, and nothing is ever
undone: a drafted path is looked up, not added.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from shardp2p.vocabulary import Token

ORDERS: Final = 3
"""n-grams of 1 to this many tokens have chains."""

MATCH_LENGTHS: Final = (24, 16, 12, 8, 6, 5, 4, 3, 2, 1)
"""Matches of at least so many tokens are told apart."""

LONGEST_MATCH: Final = MATCH_LENGTHS[0]

SCANNED_OCCURRENCES: Final = 64
"""How many of the latest occurrences of an n-gram are looked at, so that a frequent one costs no more."""

BREAK: Final[Token] = -1
"""Stands between texts that have nothing to do with each other: nothing follows the end of one."""

_TOLD_APART: Final = [max((one for one in MATCH_LENGTHS if one <= n), default=0) for n in range(LONGEST_MATCH + 1)]


@dataclass(slots=True)
class Followers:
    """What followed matches of a length, and no longer one: how often each, and where the latest one stands."""

    index: NgramIndex
    match_tokens: int
    counts: dict[Token, int] = field(default_factory=dict)
    latest: dict[Token, int] = field(default_factory=dict)

    def note(self, token: Token, at: int) -> None:
        """One occurrence more; the later ones are to come first."""
        self.counts[token] = self.counts.get(token, 0) + 1
        self.latest.setdefault(token, at)


class NgramIndex:
    """The tokens of a text so far. What `followers` gives depends on them and the tail alone."""

    def __init__(self, tokens: Iterable[Token] = ()) -> None:
        self.tokens: list[Token] = []
        self._ends: list[dict[tuple[Token, ...], int]] = [{} for _ in range(ORDERS)]  # the latest end of each n-gram
        self._before: list[array[int]] = [array("i", (0,)) for _ in range(ORDERS)]  # by end: the end before; 0: none
        self.extend(tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, tokens: Iterable[Token]) -> None:
        """Add tokens at the end."""
        for token in tokens:
            self.tokens.append(token)
            end = len(self.tokens)
            for order, (ends, before) in enumerate(zip(self._ends, self._before, strict=True), 1):
                ngram = tuple(self.tokens[-order:])
                before.append(ends.get(ngram, 0))
                ends[ngram] = end

    def followers(self, tail: Sequence[Token]) -> list[Followers]:
        """What followed the last tokens of `tail` before, the longest matches first; empty where nothing did.

        The tail may be that of the text itself or of any path below it. Each token is counted where its longest match
        is, and nowhere else.
        """
        found = self._after_long_matches(tail)
        known = {token for one in found for token in one.counts}
        for order in range(min(ORDERS - 1, len(tail)), 0, -1):
            followers = Followers(self, order)
            for end in self._occurrences(tail, order):
                token = self.tokens[end]
                if token not in known:
                    followers.note(token, end)
            if followers.counts:
                found.append(followers)
                known |= followers.counts.keys()
        return found

    def after_gap(self, token: Token) -> set[Token]:
        """What stood two places after the latest occurrences of a token."""
        ends = self._occurrences((token,), 1)
        return {self.tokens[end + 1] for end in ends if end + 1 < len(self.tokens) and self.tokens[end + 1] != BREAK}

    def _after_long_matches(self, tail: Sequence[Token]) -> list[Followers]:
        """What followed matches of at least ORDERS tokens."""
        best: dict[Token, Followers] = {}
        for end in self._occurrences(tail, ORDERS):
            token = self.tokens[end]
            one = best.get(token)
            # What followed a match that is as long as any is taken to have followed others of the kind: no comparing.
            length = LONGEST_MATCH if one and one.match_tokens == LONGEST_MATCH else self._match_length(end, tail)
            if one is None or length > one.match_tokens:
                best[token] = one = Followers(self, length)
            if length == one.match_tokens:
                one.note(token, end)
        by_length: dict[int, Followers] = {}
        for token, one in best.items():
            both = by_length.setdefault(one.match_tokens, Followers(self, one.match_tokens))
            both.counts[token], both.latest[token] = one.counts[token], one.latest[token]
        return [by_length[length] for length in sorted(by_length, reverse=True)]

    def _match_length(self, end: int, tail: Sequence[Token]) -> int:
        """How many tokens before `end` are those of the tail's end, as far as lengths are told apart."""
        tokens, matched, reach = self.tokens, ORDERS, min(LONGEST_MATCH, len(tail), end)
        while matched < reach and tokens[end - matched - 1] == tail[-matched - 1]:
            matched += 1
        return _TOLD_APART[matched]

    def _occurrences(self, tail: Sequence[Token], order: int) -> list[int]:
        """The latest ends of the tail's last `order` tokens, the later first; only those that something follows."""
        if len(tail) < order:
            return []
        tokens, before = self.tokens, self._before[order - 1]
        end = self._ends[order - 1].get(tuple(tail[-order:]), 0)
        ends: list[int] = []
        while end and len(ends) < SCANNED_OCCURRENCES:
            if end < len(tokens) and tokens[end] != BREAK:
                ends.append(end)
            end = before[end]
        return ends
