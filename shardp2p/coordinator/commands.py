"""What a generation is given and what it asks for: limits, a proposer, and its commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from shardp2p.errors import ConfigError
from shardp2p.vocabulary import Branch, Token
from shardp2p.wire.messages import Chunk, Commit
from shardp2p.wire.protocols import MAX_ROWS

FinishReason = Literal["stop", "length", "cancelled"]


class Proposer(Protocol):
    """Something that guesses how a text goes on. `runtime.draft` has some."""

    @property
    def is_instant(self) -> bool:
        """Whether a proposal costs so little that a chunk should wait for it. Others are asked in a thread."""
        ...

    def propose(
        self, text: Sequence[Token], paths: Sequence[Sequence[Token]], depth_tokens: int
    ) -> Sequence[Sequence[Branch]]:
        """For each of `paths` below `text` a few continuations, each at most `depth_tokens` long, the best first."""
        ...

    def finish(self, text: Sequence[Token]) -> None:
        """The answer is complete, and `text` all of it, prompt included. Nothing is asked afterwards."""
        ...


PROMPT_CHUNKS = 8
"""Chunks of committed text in the ring at once, at least: every stage works on its own, whatever drafts may do."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a generation may use.

    max_chunks      chunks in the ring at once (the depth of the pipeline); of a prompt PROMPT_CHUNKS if that is more
    chunk_tokens    tokens in a chunk of drafts
    prefill_tokens  tokens in a chunk of committed text
    draft_tokens    length of one branch asked of the proposer; 0 asks for none
    cache_rows      rows that every stage keeps for the session
    draft_rounds    answers of the proposer that a chunk of drafts waits for; 0 sends what is there
    is_paced        send as the ring takes it up, and only what is worth its cost; else as soon and as much as possible
    """

    max_chunks: int = 4
    chunk_tokens: int = 16
    prefill_tokens: int = 256
    draft_tokens: int = 8
    cache_rows: int = 8192
    draft_rounds: int = 0
    is_paced: bool = True

    def __post_init__(self) -> None:
        for name, least, most in (
            ("max_chunks", 1, None),
            ("chunk_tokens", 1, MAX_ROWS),
            ("prefill_tokens", 1, MAX_ROWS),
            ("draft_tokens", 0, None),
            ("cache_rows", 1, None),
            ("draft_rounds", 0, None),
        ):
            value = getattr(self, name)
            if value < least or (most is not None and value > most):
                raise ConfigError(
                    f"{name} is {value}; it must be at least {least}" + (f", at most {most}" if most else "")
                )

    @property
    def ring_chunks(self) -> int:
        """Chunks that may be in the ring at once, of whatever kind."""
        return max(self.max_chunks, PROMPT_CHUNKS)


@dataclass(frozen=True, slots=True)
class SendChunk:
    """Send this into the ring."""

    chunk: Chunk


@dataclass(frozen=True, slots=True)
class SendCommit:
    """Send this to every stage over its control stream: it overtakes the chunks."""

    commit: Commit


@dataclass(frozen=True, slots=True)
class NeedDraft:
    """Ask the proposer to continue the text, and answer with `receive_draft(request, …)`: branches for each path.

    A path continues the first `committed_tokens` tokens of `Generation.text`, which only ever grows.
    """

    request: int
    committed_tokens: int
    paths: tuple[tuple[Token, ...], ...]
    depth_tokens: int


@dataclass(frozen=True, slots=True)
class Emit:
    """These tokens are committed."""

    tokens: tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """It is over; `laps` counts the verdicts that came back with choices, `tokens` what was generated."""

    reason: FinishReason
    tokens: int
    laps: int


Command = SendChunk | SendCommit | NeedDraft | Emit | Finish
