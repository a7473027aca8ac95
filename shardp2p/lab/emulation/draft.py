"""A draft that takes its time: a language's guesses, one level's time for each request."""

from __future__ import annotations

import time
from collections.abc import Sequence

from shardp2p.lab.emulation.language import RANKS, Language, extend
from shardp2p.lab.emulation.waiting import Lateness, wait_s
from shardp2p.vocabulary import Branch, Token


class EmulatedDraft:
    """A proposer of one answer; `text` of one call continues that of the call before."""

    def __init__(self, language: Language, level_s: float, guesses: int = RANKS) -> None:
        self._language = language
        self._level_s = level_s
        self._guesses = guesses
        self._lateness = Lateness()
        self._length = 0
        self._digest = language.digest(())

    @property
    def is_instant(self) -> bool:
        """It is not: it sleeps in a thread as long as a draft model would compute."""
        return False

    def propose(
        self, text: Sequence[Token], paths: Sequence[Sequence[Token]], depth_tokens: int
    ) -> list[tuple[Branch, ...]]:
        """One level below each path, whatever the depth asked for."""
        due = time.perf_counter() + self._level_s
        for token in text[self._length :]:
            self._digest = extend(self._digest, token)
        self._length = len(text)
        branches = self._language.propose(self._digest, paths, self._guesses)
        if (left_s := due - time.perf_counter()) > 0:
            wait_s(left_s - self._lateness.seconds)
            self._lateness.note(time.perf_counter() - due)
        return branches

    def finish(self, text: Sequence[Token]) -> None:
        """Nothing is learnt from answers."""
