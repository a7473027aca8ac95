"""The target's choice of a token from logits: greedy, or sampled with noise that can be replayed.

A row's choice is a function of its logits, the parameters, its position and what stands before it: neither the batch
nor chance has a part in it (docs/decisions/0004-replayable-sampling.md). Everything after the argmax of a plain greedy
request is computed row by row in float64.

Order, as in transformers: logit bias, penalties, temperature, top-k, top-p, min-p, noise. Equal scores: the lowest
token id wins.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shardp2p.errors import ConfigError, IntegrityError, LocalProtocolError
from shardp2p.runtime import noise
from shardp2p.runtime.penalties import TokenCounts, apply_bias, apply_penalties
from shardp2p.vocabulary import Position, SamplingParams, Token

MASS_SLACK = 1e-9
"""More than rounding can add to or take from a sum of a vocabulary's probabilities."""


def choose(
    logits: Tensor,
    params: SamplingParams,
    positions: Sequence[Position],
    history: Sequence[TokenCounts] | None = None,
) -> list[Token]:
    """The chosen token for each row of `logits` [T, V], of any float type and on any device.

    `positions` [T] are those of the tokens that are chosen. `history` [T] holds what stands before each of them; it is
    needed when `params.needs_tokens`.

    Raises: IntegrityError for logits that hold NaN or infinity or rule out every token; ConfigError for a logit bias
    outside the vocabulary; RemoteProtocolError for such a token in the history.
    """
    _check_rows(logits, params, positions, history)
    if params.is_greedy and not params.needs_tokens and not params.logit_bias:
        return _choose_greedily(logits, positions)
    on_cpu = logits.detach().cpu()
    chosen = []
    for row, position in enumerate(positions):
        scores: NDArray[np.float64] = on_cpu[row].to(torch.float64, copy=True).numpy()
        _check_finite(scores.max(), position)
        apply_bias(scores, params)
        if history is not None and params.needs_tokens:
            with np.errstate(over="ignore"):
                apply_penalties(scores, params, history[row])
        _check_range(scores, position)
        chosen.append(int(scores.argmax()) if params.is_greedy else _sample(scores, params, position))
    return chosen


def _check_rows(
    logits: Tensor, params: SamplingParams, positions: Sequence[Position], history: Sequence[TokenCounts] | None
) -> None:
    if logits.dim() != 2 or len(positions) != len(logits):
        raise LocalProtocolError(f"logits of shape {tuple(logits.shape)} do not fit {len(positions)} positions")
    if params.needs_tokens and (history is None or len(history) != len(positions)):
        raise LocalProtocolError("penalties need the token counts before every position")


def _check_finite(largest: float, position: Position) -> None:
    """NaN and infinity win every maximum, so the largest logit tells."""
    if not np.isfinite(largest):
        raise IntegrityError(
            f"the largest logit for position {position} is {largest}: a stage computed nonsense, its weights are"
            " damaged, or float16 overflowed; check the model, or use bfloat16 or float32"
        )


def _check_range(scores: NDArray[np.float64], position: Position) -> None:
    """Bias and penalties may rule tokens out (-inf); what they must not do is leave none, or make one infinite."""
    if not np.isfinite(scores.max()):
        raise ConfigError(
            f"the penalties and the logit bias leave no token to choose at position {position}; use milder ones"
        )


def _choose_greedily(logits: Tensor, positions: Sequence[Position]) -> list[Token]:
    """The first of the largest logits of each row: torch.argmax promises it, and takes NaN for the largest."""
    best = logits.detach().argmax(dim=-1, keepdim=True)
    largest = logits.detach().gather(-1, best)
    if not largest.isfinite().all():
        for value, position in zip(largest.flatten().tolist(), positions, strict=True):
            _check_finite(value, position)
    return [int(token) for token in best.flatten().tolist()]


def _sample(logits: NDArray[np.float64], params: SamplingParams, position: Position) -> Token:
    """The argmax of filtered logits / temperature + Gumbel noise (the Gumbel-max trick) for `logits` [V]."""
    tokens, scores = candidates(logits, params)
    if len(tokens) == 1:
        return int(tokens[0])
    bits = noise.bits(params.seed, position, tokens)
    noisy = scores + noise.gumbel(bits)
    close = np.flatnonzero(noisy >= noisy.max() - 2 * noise.FAST_GUMBEL_ERROR)
    if len(close) == 1:
        return int(tokens[close[0]])
    # Too close for logarithms that differ between machines.
    exact = [scores[i] + noise.exact_gumbel(int(bits[i])) for i in close]
    return int(tokens[close[np.argmax(exact)]])


def candidates(logits: NDArray[np.float64], params: SamplingParams) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The tokens [N] that pass top-k, top-p and min-p, ascending, and their logits / temperature less the largest [N].

    At least one token passes: the most probable. A sampled token's probability is the softmax of what is given here.
    """
    with np.errstate(over="ignore"):
        scores = (logits - logits.max()) / params.temperature
    tokens = np.flatnonzero(scores > -np.inf)
    scores = scores[tokens]
    for keep in (_top_k, _top_p, _min_p):
        kept = keep(scores, params)
        if kept is not None:
            tokens, scores = tokens[kept], scores[kept]
    return tokens, scores


def _top_k(scores: NDArray[np.float64], params: SamplingParams) -> NDArray[np.bool_] | None:
    """Which scores are among the k largest, all that equal the k-th included."""
    if not 0 < params.top_k < len(scores):
        return None
    rank = len(scores) - params.top_k
    kept: NDArray[np.bool_] = scores >= np.partition(scores, rank)[rank]
    return kept


def _top_p(scores: NDArray[np.float64], params: SamplingParams) -> NDArray[np.bool_] | None:
    """Which tokens have less than top_p of the mass before them, by falling probability, then rising token id."""
    if params.top_p >= 1.0:
        return None
    weights = np.exp(scores)
    total = weights.sum()
    # A token this light, and all that are no heavier, hold less than 1 - top_p together: no need to sort them.
    least = (1.0 - params.top_p - MASS_SLACK) * total / len(weights)
    falling = np.sort(weights[weights >= least])[::-1]
    before = np.concatenate([[0.0], np.cumsum(falling[:-1])])
    count = int(np.count_nonzero(before < params.top_p * total))
    last = falling[count - 1]
    kept: NDArray[np.bool_] = weights > last
    equal = np.flatnonzero(weights == last)
    kept[equal[: count - int(np.count_nonzero(kept))]] = True
    return kept


def _min_p(scores: NDArray[np.float64], params: SamplingParams) -> NDArray[np.bool_] | None:
    """Which tokens have at least min_p of the largest probability."""
    if params.min_p <= 0.0:
        return None
    kept: NDArray[np.bool_] = np.exp(scores) >= params.min_p
    return kept
