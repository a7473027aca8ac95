"""The likeliest choices of a draft model, made as the target makes its own: same filters, same noise."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from shardp2p.runtime import noise
from shardp2p.runtime.choose import candidates
from shardp2p.runtime.penalties import TokenCounts, apply_bias, apply_penalties
from shardp2p.vocabulary import Position, SamplingParams, Token

Ranked = tuple[tuple[Token, float], ...]
"""Tokens with their probabilities, the best first."""


def rank_choices(
    logits: Tensor, params: SamplingParams, position: Position, history: TokenCounts | None, most: int
) -> Ranked:
    """Up to `most` tokens that the target may choose at `position`, going by these logits [V] of another model.

    The first is what `choose` gives for them. A sampled request's noise is known, so its probabilities are those of the
    noisy scores: the further ahead the first one is, the surer that another model's scores leave it there.
    Nothing where the logits hold NaN or infinity, as where float16 overflowed: these tell nothing of the target.
    """
    if params.is_greedy and not params.needs_tokens and not params.logit_bias:
        return _rank_plain(logits, most)
    scores = logits.detach().cpu().to(torch.float64, copy=True).numpy()
    apply_bias(scores, params)
    if history is not None and params.needs_tokens:
        apply_penalties(scores, params, history)
    if not np.isfinite(scores.max()):
        return ()  # all is ruled out; the target says so
    if params.is_greedy:
        return _rank_plain(torch.from_numpy(scores), most)
    tokens, scaled = candidates(scores, params)
    noisy = scaled + noise.gumbel(noise.bits(params.seed, position, tokens))
    order = np.argsort(-noisy, kind="stable")[:most]
    weights = np.exp(noisy - noisy.max())
    shares = weights[order] / weights.sum()
    return tuple(zip(tokens[order].tolist(), shares.tolist(), strict=True))


def _rank_plain(logits: Tensor, most: int) -> Ranked:
    wide = logits.detach().float() if logits.dtype != torch.float64 else logits
    best = torch.topk(wide, min(most, len(wide)))
    if not best.values[0].isfinite():  # NaN and infinity win every maximum
        return ()
    shares = (best.values - torch.logsumexp(wide, dim=-1)).exp()
    ranked = sorted(zip(best.indices.tolist(), shares.tolist(), strict=True), key=lambda one: (-one[1], one[0]))
    return tuple(ranked)
