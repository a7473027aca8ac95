"""Choices over 100,000 seeds and positions against the softmax that they should follow."""

from __future__ import annotations

import pytest

from shardp2p.vocabulary import SamplingParams
from tests.support.statistics import chi_square_limit, chi_square_of_choices

DRAWS = 100_000


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.7, top_k=6),
        SamplingParams(temperature=0.8, top_p=0.9),
        SamplingParams(temperature=1.4, min_p=0.1),
    ],
    ids=["temperature", "top_k", "top_p", "min_p"],
)
def test_choices_follow_the_softmax_of_the_candidates(params: SamplingParams) -> None:
    statistic, freedom = chi_square_of_choices(params, DRAWS)
    assert statistic < chi_square_limit(freedom)
