"""Proposers for tests: drafts that are wrong, or right as often as a test asks for.

What they propose is a function of the seed and the text, so a schedule can be replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from shardp2p.vocabulary import Branch, Token


class RandomWrong:
    """Random branches of random lengths: next to always wrong, now and then right in a small vocabulary."""

    def __init__(self, seed: int, vocab_size: int, branches: int = 3) -> None:
        self._seed = seed
        self._vocab_size = vocab_size
        self._branches = min(branches, vocab_size)

    @property
    def is_instant(self) -> bool:
        return True

    def propose(
        self, text: Sequence[Token], paths: Sequence[Sequence[Token]], depth_tokens: int
    ) -> tuple[tuple[Branch, ...], ...]:
        return tuple(self.continuations([*text, *path], depth_tokens) for path in paths)

    def finish(self, text: Sequence[Token]) -> None:
        pass

    def continuations(self, text: Sequence[Token], depth_tokens: int) -> tuple[Branch, ...]:
        if depth_tokens < 1:
            return ()
        random = _random_of(self._seed, text)
        firsts = random.sample(range(self._vocab_size), self._branches)
        return _ranked([_grow(first, random, depth_tokens, self._vocab_size) for first in firsts], random)


class OracleMix:
    """The true continuation, each of its tokens right with probability `accept`, among random wrong branches.

    `reference_tokens` is the whole text, prompt and answer. Below a text that has left it everything is random.
    """

    def __init__(self, reference_tokens: Sequence[Token], accept: float, seed: int, branches: int = 3) -> None:
        self._reference = tuple(reference_tokens)
        self._accept = accept
        self._seed = seed
        self._branches = branches
        self._vocab_size = max(*self._reference, 1) + 1

    @property
    def is_instant(self) -> bool:
        return True

    def propose(
        self, text: Sequence[Token], paths: Sequence[Sequence[Token]], depth_tokens: int
    ) -> tuple[tuple[Branch, ...], ...]:
        return tuple(self.continuations([*text, *path], depth_tokens) for path in paths)

    def finish(self, text: Sequence[Token]) -> None:
        pass

    def continuations(self, text: Sequence[Token], depth_tokens: int) -> tuple[Branch, ...]:
        random = _random_of(self._seed, text)
        truth = self._reference[len(text) : len(text) + depth_tokens]
        if depth_tokens < 1 or not truth or tuple(text) != self._reference[: len(text)]:
            return RandomWrong(self._seed, self._vocab_size, self._branches).continuations(text, depth_tokens)
        tokens = [token if random.random() < self._accept else self._wrong(token, random) for token in truth]
        taken = {truth[0], tokens[0]}
        firsts: list[Token] = []
        while len(firsts) < min(self._branches - 1, self._vocab_size - len(taken)):
            first = random.randrange(self._vocab_size)
            if first not in taken and first not in firsts:
                firsts.append(first)
        wrong = [_grow(first, random, depth_tokens, self._vocab_size) for first in firsts]
        return _ranked([tuple(tokens), *wrong], random)

    def _wrong(self, token: Token, random: Random) -> Token:
        return (token + random.randrange(1, self._vocab_size)) % self._vocab_size


def _random_of(seed: int, text: Sequence[Token]) -> Random:
    """A generator seeded by text, which Python hashes alike on every machine."""
    return Random(f"{seed}:{','.join(map(str, text))}")


def _grow(first: Token, random: Random, depth_tokens: int, vocab_size: int) -> tuple[Token, ...]:
    return first, *(random.randrange(vocab_size) for _ in range(random.randrange(depth_tokens)))


def _ranked(branches: list[tuple[Token, ...]], random: Random) -> tuple[Branch, ...]:
    """The branches in random order, with falling probabilities that add up to less than 1."""
    random.shuffle(branches)
    return tuple(Branch(tokens, 0.5 ** (rank + 1)) for rank, tokens in enumerate(branches))
