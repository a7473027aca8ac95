"""Several proposers as one: their branches merged, each one's probabilities taken for as much as they have held. Pure.

A source is told what the text became and so how often what it said with some probability was right. What it says next
is corrected by that (its calibration), and where several speak, by how well each foretold the latest tokens (its
weight).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, log
from typing import Final, Protocol

from shardp2p.runtime.successors import Odds
from shardp2p.vocabulary import Branch, Token

LEVELS: Final = 8
"""Ranges of stated probabilities that are judged apart."""

MAX_PENDING: Final = 256
"""Statements whose outcome is not known yet: more than are drafted in a lap; the oldest are dropped."""

SURPRISE_FORGET: Final = 0.95
"""A source's weight follows its last 20 or so statements."""

LEAST_STATED: Final = 0.01
"""What a token is taken to have been given by a source that did not name it."""

MAX_BRANCHES: Final = 8
"""Of one path: what is less probable hardly ever gets a row."""


class Source(Protocol):
    """A proposer, as coordinator.commands.Proposer says it."""

    @property
    def is_instant(self) -> bool: ...

    def propose(
        self, text: Sequence[Token], paths: Sequence[Sequence[Token]], depth_tokens: int
    ) -> Sequence[Sequence[Branch]]: ...

    def finish(self, text: Sequence[Token]) -> None: ...


@dataclass(slots=True)
class Record:
    """How one source has done in this session."""

    levels: list[Odds] = field(default_factory=lambda: [Odds((at + 0.5) / LEVELS) for at in range(LEVELS)])
    surprise: float = 0.0
    """Fading sum of what the tokens that came cost it, in nats, less what they would have cost an even guess."""

    @property
    def weight(self) -> float:
        """What its word counts beside that of others."""
        return exp(-self.surprise)  # between -14 and 92: a fading sum

    def corrected(self, stated: float) -> float:
        """What a stated probability has been worth; within its range of probabilities the order is kept."""
        level = _level(stated)
        return min(1.0, stated * self.levels[level].share * LEVELS / (level + 0.5))

    def note(self, stated: dict[Token, float], token: Token) -> None:
        """The token is here that all of this was stated about."""
        for one, probability in stated.items():
            self.levels[_level(probability)].note(holds=one == token)
        told = max(LEAST_STATED, min(1.0, stated.get(token, 0.0)))
        self.surprise = self.surprise * SURPRISE_FORGET - log(told) + log(0.5)


@dataclass(frozen=True, slots=True)
class _Pending:
    """What each source stated about the token after `path` below the first `length` tokens of the text."""

    length: int
    path: tuple[Token, ...]
    stated: tuple[dict[Token, float], ...]


class Blend:
    """The sources as one proposer; instant if all of them are."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = tuple(sources)
        self._records = tuple(Record() for _ in sources)
        self._pending: deque[_Pending] = deque(maxlen=MAX_PENDING)

    @property
    def is_instant(self) -> bool:
        return all(source.is_instant for source in self._sources)

    @property
    def weights(self) -> tuple[float, ...]:
        """What the word of each source counts now."""
        return tuple(record.weight for record in self._records)

    def propose(
        self, text: Sequence[Token], paths: Sequence[Sequence[Token]], depth_tokens: int
    ) -> tuple[tuple[Branch, ...], ...]:
        """For each path, the branches of all sources that differ in their first token, the most probable first."""
        self._judge(text)
        proposed = [source.propose(text, paths, depth_tokens) for source in self._sources]
        merged = []
        for path, *by_source in zip(paths, *proposed, strict=True):
            stated = tuple(
                {one.tokens[0]: _share(one.probability) for one in branches if one.tokens} for branches in by_source
            )
            self._pending.append(_Pending(len(text), tuple(path), stated))
            merged.append(self._merge(by_source))
        return tuple(merged)

    def finish(self, text: Sequence[Token]) -> None:
        """Tell every source that the answer is complete."""
        for source in self._sources:
            source.finish(text)

    def _judge(self, text: Sequence[Token]) -> None:
        """Learn from the statements whose outcome the text shows; those about another text are void."""
        waiting = []
        for pending in self._pending:
            at = pending.length + len(pending.path)
            known = text[pending.length : at]
            if tuple(known) != pending.path[: len(known)] or len(text) < pending.length:
                continue
            if at >= len(text):
                waiting.append(pending)
                continue
            for record, stated in zip(self._records, pending.stated, strict=True):
                if stated:
                    record.note(stated, text[at])
        self._pending = deque(waiting, MAX_PENDING)

    def _merge(self, by_source: Sequence[Sequence[Branch]]) -> tuple[Branch, ...]:
        """The mean over the sources that know anything about this path, by their weights; the likelier copy goes on."""
        total = sum(record.weight for record, branches in zip(self._records, by_source, strict=True) if branches)
        probability: dict[Token, float] = {}
        best: dict[Token, tuple[float, Branch]] = {}
        for record, branches in zip(self._records, by_source, strict=True):
            for branch in branches:
                if not branch.tokens:
                    continue
                first, share = branch.tokens[0], record.weight / total
                probability[first] = probability.get(first, 0.0) + share * record.corrected(_share(branch.probability))
                reach = share * sum(_share(branch.continues) ** step for step in range(1, len(branch.tokens)))
                if first not in best or reach > best[first][0]:
                    best[first] = reach, branch
        merged = [Branch(branch.tokens, probability[first], branch.continues) for first, (_, branch) in best.items()]
        merged.sort(key=lambda one: -one.probability)
        return tuple(merged[:MAX_BRANCHES])


def _share(stated: float) -> float:
    """What was stated as a probability as one; 0 where it is none."""
    return min(1.0, max(0.0, stated))  # in this order: NaN loses


def _level(probability: float) -> int:
    return min(LEVELS - 1, int(probability * LEVELS))
