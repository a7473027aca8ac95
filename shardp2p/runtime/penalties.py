"""What a text has already said, and how that changes the logits of what comes next.

Pure; no torch. The last stage keeps one `TokenCounts` per slot: that of the slot's parent and one more token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shardp2p.errors import ConfigError, RemoteProtocolError
from shardp2p.vocabulary import SamplingParams, Token

RECENT_TOKENS = 64
"""How many tokens are copied along a path before they are counted: an append is cheap, and so is a count."""


def _no_tokens() -> NDArray[np.int64]:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class TokenCounts:
    """The tokens of one text and how often each was generated; a value: `after` gives a new one.

    A token of the prompt is known but counts 0, since frequency and presence penalties concern the answer alone.
    """

    _tokens: NDArray[np.int64] = field(default_factory=_no_tokens)
    _generated: NDArray[np.int64] = field(default_factory=_no_tokens)
    _recent: tuple[Token, ...] = ()
    _recent_generated: tuple[bool, ...] = ()

    @classmethod
    def of_prompt(cls, tokens: Sequence[Token]) -> TokenCounts:
        """The counts of a text of which nothing is generated yet."""
        distinct = np.unique(np.array(tokens, dtype=np.int64))
        return cls(distinct, np.zeros_like(distinct))

    def after(self, token: Token, *, is_generated: bool = True) -> TokenCounts:
        """The counts of this text and one more token."""
        recent, generated = (*self._recent, token), (*self._recent_generated, is_generated)
        if len(recent) < RECENT_TOKENS:
            return TokenCounts(self._tokens, self._generated, recent, generated)
        return TokenCounts(*_merge(self._tokens, self._generated, recent, generated))

    def totals(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The distinct tokens [D] in ascending order, and how often each was generated [D]."""
        if not self._recent:
            return self._tokens, self._generated
        return _merge(self._tokens, self._generated, self._recent, self._recent_generated)


def _merge(
    tokens: NDArray[np.int64], generated: NDArray[np.int64], recent: Iterable[Token], recent_generated: Iterable[bool]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    everything = np.concatenate([tokens, np.array(recent, dtype=np.int64)])
    counts = np.concatenate([generated, np.array(recent_generated, dtype=np.int64)])
    distinct, where = np.unique(everything, return_inverse=True)
    totals = np.zeros(len(distinct), dtype=np.int64)
    np.add.at(totals, where, counts)
    return distinct, totals


def apply_bias(logits: NDArray[np.float64], params: SamplingParams) -> None:
    """Add the logit bias to `logits` [V] in place. Raises ConfigError for a token outside the vocabulary."""
    for token, bias in params.logit_bias:
        if token >= len(logits):
            raise ConfigError(f"logit_bias names token {token}; the model has {len(logits)} tokens")
        logits[token] += bias


def apply_penalties(logits: NDArray[np.float64], params: SamplingParams, counts: TokenCounts) -> None:
    """Penalise in place in `logits` [V] what the text already holds.

    The repetition penalty (Keskar et al. 2019, as in transformers) concerns the prompt and the answer; then the
    frequency and presence penalties are subtracted (OpenAI API, as in vLLM), which concern the answer alone.

    Raises: RemoteProtocolError for a token outside the vocabulary: the coordinator sent it.
    """
    tokens, generated = counts.totals()
    if len(tokens) == 0:
        return
    for token in (tokens[0], tokens[-1]):
        if not 0 <= token < len(logits):
            raise RemoteProtocolError(f"the text holds token {token}; the model has {len(logits)} tokens")
    seen = logits[tokens]
    if params.repetition_penalty != 1.0:
        seen = np.where(seen < 0.0, seen * params.repetition_penalty, seen / params.repetition_penalty)
    seen -= params.frequency_penalty * generated
    seen -= params.presence_penalty * (generated > 0)
    logits[tokens] = seen
