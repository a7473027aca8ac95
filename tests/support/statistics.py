"""Chi-square tests of choices against the distribution they should have, at fixed seeds."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import torch
from numpy.typing import NDArray

from shardp2p.runtime.choose import choose
from shardp2p.vocabulary import Position, SamplingParams

ROWS = 2_000
PROBABILITIES = (0.22, 0.16, 0.12, 0.1, 0.08, 0.07, 0.06, 0.05, 0.04, 0.03, 0.025, 0.02, 0.012, 0.008, 0.004, 0.001)


def expected_probabilities(params: SamplingParams) -> NDArray[np.float64]:
    """What `params` make of PROBABILITIES, by the plainest reading of each filter."""
    weights: NDArray[np.float64] = np.array(PROBABILITIES) ** (1.0 / params.temperature)
    if params.top_k:
        weights[params.top_k :] = 0.0
    weights /= weights.sum()
    before = np.concatenate([[0.0], np.cumsum(weights)[:-1]])
    weights[before >= params.top_p] = 0.0
    weights[weights < params.min_p * weights.max()] = 0.0
    weights /= weights.sum()
    return weights


def chi_square_of_choices(params: SamplingParams, draws: int) -> tuple[float, int]:
    """The statistic and its degrees of freedom, half of the draws over positions, half over seeds."""
    logits = torch.tensor(PROBABILITIES, dtype=torch.float64).log().repeat(ROWS, 1)
    counts = np.zeros(len(PROBABILITIES))
    for first in range(0, draws // 2, ROWS):
        at = [Position(position) for position in range(first, min(first + ROWS, draws // 2))]
        np.add.at(counts, choose(logits[: len(at)], params, at), 1)
    for seed in range(draws - draws // 2):
        seeded = SamplingParams(params.temperature, params.top_k, params.top_p, params.min_p, seed=1_000_000 + seed)
        counts[choose(logits[:1], seeded, [Position(9)])] += 1
    expected = expected_probabilities(params) * draws
    possible = expected > 0
    assert counts.sum() == draws
    assert counts[~possible].sum() == 0
    statistic = ((counts - expected)[possible] ** 2 / expected[possible]).sum()
    return float(statistic), int(possible.sum()) - 1


def chi_square_limit(freedom: int, probability: float = 0.001) -> float:
    """What a chi-square variable exceeds with `probability` (Wilson and Hilferty 1931)."""
    spread = 2.0 / (9.0 * freedom)
    return float(freedom * (1.0 - spread + NormalDist().inv_cdf(1.0 - probability) * spread**0.5) ** 3)
