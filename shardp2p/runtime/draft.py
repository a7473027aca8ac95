"""Proposers that need no model: prompt lookup, and one that never proposes.

Pure; no torch, so that a driver without layers can use it. They satisfy `coordinator.commands.Proposer`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shardp2p.errors import ConfigError
from shardp2p.runtime.answer_memory import Shelf
from shardp2p.runtime.known_noise import KnownNoise
from shardp2p.runtime.ngram_index import BREAK, LONGEST_MATCH, Followers, NgramIndex
from shardp2p.runtime.sampled_ranking import SampledRanking
from shardp2p.runtime.successors import Successor, Successors
from shardp2p.vocabulary import Branch, SamplingParams, Token

LEAST_PROBABILITY: Final = 0.02
"""Below this a branch hardly ever becomes worth a row before it is dead."""

LEAST_REACH: Final = 0.2
"""A copy for a sampled answer ends where it is less probable that all of it is right: from there others may be."""

LEARNT_TOKENS: Final = 512
"""So many tokens at the end of a prompt teach which matches hold; the rest is indexed, which takes less time."""


class NoDraft:
    """Never proposes: plain decoding."""

    @property
    def is_instant(self) -> bool:
        return True

    def propose(
        self, text: Sequence[Token], paths: Sequence[Sequence[Token]], depth_tokens: int
    ) -> tuple[tuple[Branch, ...], ...]:
        return ((),) * len(paths)

    def finish(self, text: Sequence[Token]) -> None:
        pass


class PromptLookup:
    """Proposes what followed earlier occurrences of the text's last tokens (prompt lookup, Saxena 2023).

    The index follows the text, which costs as much as it has grown; a path below it costs nothing but its look-up.
    Proposals depend on the texts that were asked for alone, and are best where each continues the one before.
    """

    def __init__(
        self,
        shelf: Shelf | None = None,
        *,
        sampling: SamplingParams | None = None,
        branches: int = 4,
        least_probability: float = LEAST_PROBABILITY,
    ) -> None:
        """With a `shelf`, what followed in answers before is proposed as well.

        For a sampled request, given by `sampling`, its noise is taken into account, and tokens that are usual in the
        text are guessed at; a greedy one is the same as none.
        """
        if branches < 1:
            raise ConfigError(f"prompt lookup with {branches} branches; it needs at least 1")
        if not 0.0 <= least_probability <= 1.0:
            raise ConfigError(f"prompt lookup with a least probability of {least_probability}; it is between 0 and 1")
        self._shelf = shelf
        self._noise = None if sampling is None or sampling.is_greedy else KnownNoise(sampling.seed)
        self._branches = branches
        self._least_probability = least_probability
        self._prompt_length = 0
        self._start([])

    @property
    def is_instant(self) -> bool:
        return True

    def propose(
        self, text: Sequence[Token], paths: Sequence[Sequence[Token]], depth_tokens: int
    ) -> tuple[tuple[Branch, ...], ...]:
        """Up to `branches` continuations of each path that differ in their first token, the most probable first.

        None is less probable than `least_probability`, so where nothing repeats there is often none at all. Each
        continues as the text did after the latest occurrence of the longest match that its first token followed; one
        that reaches the end of the text goes on through itself, as a repetition would. For a sampled request that
        ends where it becomes improbable, and tokens that are usual in the text come alone.
        """
        self._follow(text)
        return tuple(self._continue(path, depth_tokens) for path in paths)

    def finish(self, text: Sequence[Token]) -> None:
        """Keep the answer on the shelf, where there is one."""
        if self._shelf is not None and self._prompt_length:
            self._shelf.remember(text[: self._prompt_length], text[self._prompt_length :])

    def _follow(self, text: Sequence[Token]) -> None:
        known = len(self._index)
        if known == 0 or list(text[:known]) != self._index.tokens:
            self._start(text)
            known = len(self._index)
        for at, token in enumerate(text[known:], known):
            followers = self._followers(())
            if self._sampled is not None:
                is_answer = at >= self._prompt_length
                if is_answer:
                    self._sampled.note(self._successors.rank(followers), token)
                self._sampled.extend(token, is_answer=is_answer)
            self._successors.note(followers, token)
            self._index.extend((token,))

    def _start(self, text: Sequence[Token]) -> None:
        self._prompt_length = len(text)
        self._index = NgramIndex(text[: max(0, len(text) - LEARNT_TOKENS)])
        self._successors = Successors(self._index)
        self._sampled = None if self._noise is None else SampledRanking(self._index, self._noise)

    def _followers(self, path: Sequence[Token]) -> list[Followers]:
        tail = [*self._index.tokens[-LONGEST_MATCH:], *path][-LONGEST_MATCH:]
        own = self._index.followers(tail)
        return own if self._shelf is None else own + self._shelf.followers(tail)

    def _continue(self, path: Sequence[Token], depth_tokens: int) -> tuple[Branch, ...]:
        if depth_tokens < 1:
            return ()
        ranked = self._successors.rank(self._followers(path))
        if self._sampled is not None:
            ranked = self._sampled.rank(ranked, path)
        return tuple(
            self._branch(one, path, depth_tokens)
            for one in ranked[: self._branches]
            if one.probability >= self._least_probability
        )

    def _branch(self, one: Successor, path: Sequence[Token], depth_tokens: int) -> Branch:
        if one.match_tokens == 0:
            return Branch((one.token,), one.probability)
        copied = self._copy(one, path, depth_tokens)
        if self._sampled is None:
            return Branch(copied, one.probability, self._successors.continues(one))
        reach, length = one.probability, 1
        while length < len(copied):
            ranked = self._successors.rank(self._followers((*path, *copied[:length])))
            follows = next((one.probability for one in ranked if one.token == copied[length]), 0.0)
            if reach * follows < LEAST_REACH:
                break
            reach, length = reach * follows, length + 1
        continues = (reach / one.probability) ** (1 / (length - 1)) if length > 1 else 1.0
        return Branch(copied[:length], one.probability, continues)

    def _copy(self, one: Successor, path: Sequence[Token], depth_tokens: int) -> tuple[Token, ...]:
        """Up to `depth_tokens` tokens as they stand where the successor does."""
        copied = one.index.tokens[one.end : one.end + depth_tokens]
        if one.index is self._index:
            copied = [*copied, *path]
            period = len(one.index) + len(path) - one.end
            while len(copied) < depth_tokens:
                copied.append(copied[-period])
        elif BREAK in copied:
            copied = copied[: copied.index(BREAK)]
        return tuple(copied[:depth_tokens])
