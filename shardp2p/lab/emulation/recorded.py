"""A language that says one recorded answer, so that a real model's words are simulated under a virtual clock. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shardp2p.lab.emulation.language import Language, extend
from shardp2p.vocabulary import Token

ASTRAY: Final[Token] = 0
"""What is said after any text but a beginning of the recorded one."""


class RecordedLanguage(Language):
    """Says `answer` after `prompt`; its own guesses are those of any language, and mean nothing."""

    def __init__(self, prompt: Sequence[Token], answer: Sequence[Token]) -> None:
        super().__init__(0.5)
        self._said: dict[int, Token] = {}
        digest = self.digest(prompt)
        for token in answer:
            self._said[digest] = token
            digest = extend(digest, token)

    def next_token(self, digest: int) -> Token:
        return self._said.get(digest, ASTRAY)
