"""How probable each next token is, from what followed the same last tokens before. Pure.

The estimate is that of PPM with exclusion (Cleary and Witten 1984; Moffat 1990): a match gives each token that followed
it a share by its count, and leaves the rest, the escape, to the shorter matches. How much that is, is not a formula but
what was seen (secondary escape estimation, Bloom 1998): of all matches of that length, in this text, which were
followed by something that had followed them before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from shardp2p.runtime.ngram_index import MATCH_LENGTHS, Followers, NgramIndex
from shardp2p.vocabulary import Token

FORGET: Final = 0.98
"""What an observation weighs when one more of its kind has been made: a text changes its ways."""

PRIOR_WEIGHT: Final = 8.0
"""So many observations weigh as much as what is believed before the first one."""

KINDS: Final = 3
"""Numbers of different followers, and of occurrences, that are told apart: 1, 2 and more."""

_LATER_MATCH: Final = {length: MATCH_LENGTHS[max(0, place - 2)] for place, length in enumerate(MATCH_LENGTHS)}
"""How long a match has become, on average, when the tokens that are copied on from it are to come."""


class Odds:
    """How often something held, of how many times; old observations fade."""

    def __init__(self, believed: float, weight: float = PRIOR_WEIGHT) -> None:
        self._held = believed * weight
        self._seen = weight

    @property
    def share(self) -> float:
        """An estimate that it holds the next time."""
        return self._held / self._seen

    def note(self, *, holds: bool) -> None:
        """Count one observation."""
        self._seen = self._seen * FORGET + 1
        self._held = self._held * FORGET + holds


@dataclass(frozen=True, slots=True)
class Successor:
    """A token that may come next: its longest match and how often it followed there, last at `end` of `index`."""

    token: Token
    probability: float
    match_tokens: int
    occurrences: int
    index: NgramIndex
    end: int


class Successors:
    """What is believed of matches in `own`, the text itself, and in others, and learnt of them as the text grows."""

    def __init__(self, own: NgramIndex) -> None:
        self._own = own
        self._odds: dict[tuple[bool, int, int, int], Odds] = {}  # at most 2 × MATCH_LENGTHS × KINDS × KINDS

    def rank(self, followers: Sequence[Followers]) -> list[Successor]:
        """Every token that followed some match, the most probable first; their probabilities add up to less than 1."""
        found: list[Successor] = []
        left = 1.0
        for one, counts in _without_known(followers):
            held = left * self._odds_of(one, counts).share
            total = sum(counts.values())
            found += [
                Successor(token, held * count / total, one.match_tokens, count, one.index, one.latest[token])
                for token, count in counts.items()
            ]
            left -= held
        found.sort(key=lambda one: -one.probability)
        return found

    def note(self, followers: Sequence[Followers], token: Token) -> None:
        """Learn from what came: `token`, where `followers` were to be expected."""
        for one, counts in _without_known(followers):
            self._odds_of(one, counts).note(holds=token in counts)
            if token in counts:
                return

    def continues(self, one: Successor) -> float:
        """An estimate that a copy from `one` on goes on to be right once it has been: its match is longer by then."""
        longer = _LATER_MATCH[one.match_tokens]
        return self._of(one.index is self._own, longer, 1, min(one.occurrences, KINDS)).share

    def _odds_of(self, one: Followers, counts: dict[Token, int]) -> Odds:
        return self._of(
            one.index is self._own, one.match_tokens, min(len(counts), KINDS), min(sum(counts.values()), KINDS)
        )

    def _of(self, is_own: bool, match_tokens: int, different: int, occurrences: int) -> Odds:
        key = is_own, match_tokens, different, occurrences
        odds = self._odds.get(key)
        if odds is None:
            odds = self._odds[key] = Odds(_believed(match_tokens, different, occurrences))
        return odds


def _without_known(followers: Sequence[Followers]) -> Iterator[tuple[Followers, dict[Token, int]]]:
    """Longer matches first, each with those of its counts that no longer match has; none without any."""
    known: set[Token] = set()
    for one in sorted(followers, key=lambda one: -one.match_tokens):
        counts = one.counts if known.isdisjoint(one.counts) else {t: n for t, n in one.counts.items() if t not in known}
        if counts:
            yield one, counts
            known |= counts.keys()


def _believed(match_tokens: int, different: int, occurrences: int) -> float:
    """What is believed of a kind of match before any was seen: fitted to answers of a small model."""
    odds: float = match_tokens**1.3 / 3 * (occurrences / different) ** 2
    return odds / (1 + odds)
