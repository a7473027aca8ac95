"""Proposers that need no model: prompt lookup, and one that never proposes.

Pure; no torch, so that a driver without layers can use it. They satisfy `coordinator.generation.Proposer`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from shardp2p.errors import ConfigError
from shardp2p.vocabulary import Branch, Token
from shardp2p.wire.driving import DraftKind

SCANNED_OCCURRENCES = 64
"""How many of the latest occurrences of an n-gram are looked at, so that a frequent one costs no more."""

LEAST_PROBABILITY = 0.2
"""Below this a branch costs more computing, where that is what costs, than the tokens that it saves now and then."""


class NoDraft:
    """Never proposes: plain decoding."""

    @property
    def is_instant(self) -> bool:
        return True

    def propose(
        self, text: Sequence[Token], paths: Sequence[Sequence[Token]], depth_tokens: int
    ) -> tuple[tuple[Branch, ...], ...]:
        return ((),) * len(paths)


def make_proposer(kind: DraftKind) -> PromptLookup | None:
    """A fresh proposer of that kind; None where nobody is to propose."""
    return PromptLookup() if kind == "lookup" else None


class PromptLookup:
    """Proposes what followed earlier occurrences of the text's last tokens (prompt lookup, Saxena 2023).

    The index follows the text that was asked for last: a longer text costs its new tokens, another branch costs the
    tokens up to where it diverges. Proposals depend on the text alone.
    """

    def __init__(self, ngram: int = 3, branches: int = 3, least_probability: float = LEAST_PROBABILITY) -> None:
        if ngram < 1 or branches < 1:
            raise ConfigError(f"prompt lookup with ngram {ngram} and {branches} branches; both must be at least 1")
        if not 0.0 <= least_probability <= 1.0:
            raise ConfigError(f"prompt lookup with a least probability of {least_probability}; it is between 0 and 1")
        self._ngram = ngram
        self._branches = branches
        self._least_probability = least_probability
        self._text: list[Token] = []
        self._ends: dict[tuple[Token, ...], list[int]] = {}
        """For each n-gram of the text, how many tokens the text has up to the end of each occurrence, ascending."""

    @property
    def is_instant(self) -> bool:
        return True

    def propose(
        self, text: Sequence[Token], paths: Sequence[Sequence[Token]], depth_tokens: int
    ) -> tuple[tuple[Branch, ...], ...]:
        """What `continuations` says of each path below `text`."""
        return tuple(self.continuations([*text, *path], depth_tokens) for path in paths)

    def continuations(self, text: Sequence[Token], depth_tokens: int) -> tuple[Branch, ...]:
        """Up to `branches` continuations that differ in their first token, the most probable first.

        None is less probable than `least_probability`, so where nothing repeats there is often none at all.
        Each continues as the text did after the latest occurrence of the longest n-gram that its first token
        followed; a continuation that reaches the end of the text goes on through itself, as a repetition would.
        """
        if depth_tokens < 1:
            return ()
        self._follow(list(text))
        ranked = sorted(self._successors().items(), key=lambda item: -item[1][1])
        return tuple(
            Branch(self._copy(end, depth_tokens), probability)
            for _, (end, probability) in ranked[: self._branches]
            if probability >= self._least_probability
        )

    def _successors(self) -> dict[Token, tuple[int, float]]:
        """Each possible next token with where its latest occurrence stands and its probability.

        The estimate is that of PPM, method C, with exclusion (Moffat 1990): an n-gram gives each successor its count
        and leaves to the shorter n-grams a share that grows with the number of different successors.
        """
        found: dict[Token, tuple[int, float]] = {}
        left = 1.0
        for length in range(min(self._ngram, len(self._text) - 1), 0, -1):
            ends = self._ends[tuple(self._text[-length:])][:-1]
            latest: dict[Token, int] = {}
            counts: Counter[Token] = Counter()
            for end in ends[: -SCANNED_OCCURRENCES - 1 : -1]:
                token = self._text[end]
                if token not in found:
                    latest.setdefault(token, end)
                    counts[token] += 1
            if not counts:
                continue
            share = left / (counts.total() + len(counts))
            found |= {token: (end, counts[token] * share) for token, end in latest.items()}
            left = share * len(counts)
        return found

    def _copy(self, start: int, length: int) -> tuple[Token, ...]:
        """`length` tokens from `start` on, repeated from there where the text ends."""
        period = self._text[start : start + length]
        repeats = -(-length // len(period))
        return tuple((period * repeats)[:length])

    def _follow(self, text: list[Token]) -> None:
        shared = _common_prefix(self._text, text)
        while len(self._text) > shared:
            self._retract()
        for token in text[shared:]:
            self._extend(token)

    def _extend(self, token: Token) -> None:
        self._text.append(token)
        for ngram in self._last_ngrams():
            self._ends.setdefault(ngram, []).append(len(self._text))

    def _retract(self) -> None:
        for ngram in self._last_ngrams():
            ends = self._ends[ngram]
            ends.pop()
            if not ends:
                del self._ends[ngram]
        self._text.pop()

    def _last_ngrams(self) -> list[tuple[Token, ...]]:
        return [tuple(self._text[-length:]) for length in range(1, min(self._ngram, len(self._text)) + 1)]


def _common_prefix(first: list[Token], second: list[Token]) -> int:
    """How many tokens two texts share at their start: whole slices are compared, so a long text costs little."""
    low, high = 0, min(len(first), len(second))
    if first[:high] == second[:high]:
        return high
    while low < high - 1:
        middle = (low + high) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle
    return low
