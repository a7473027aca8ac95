from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from transformers.generation.logits_process import (
    LogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from shardp2p.errors import ConfigError, IntegrityError, LocalProtocolError, RemoteProtocolError
from shardp2p.runtime import noise
from shardp2p.runtime.choose import candidates, choose
from shardp2p.runtime.penalties import TokenCounts, apply_penalties
from shardp2p.vocabulary import Position, SamplingParams

VOCABULARY = 500
SAMPLED = [
    SamplingParams(temperature=0.8, seed=1),
    SamplingParams(temperature=0.8, top_p=0.95, seed=2),
    SamplingParams(temperature=1.3, top_k=20, top_p=0.9, min_p=0.01, seed=3),
    SamplingParams(temperature=1.0, repetition_penalty=1.2, frequency_penalty=0.5, presence_penalty=0.3, seed=4),
    SamplingParams(temperature=0.7, logit_bias=((3, 5.0), (7, -100.0)), seed=2**64 - 1),
]


def positions(*numbers: int) -> list[Position]:
    return [Position(number) for number in numbers]


def random_logits(rows: int, *, seed: int = 0, scale: float = 3.0, vocabulary: int = VOCABULARY) -> torch.Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * scale


def counts_of(prompt: Sequence[int], answer: Sequence[int] = ()) -> TokenCounts:
    counts = TokenCounts.of_prompt(prompt)
    for token in answer:
        counts = counts.after(token)
    return counts


# Greedy


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_greedy_takes_the_lowest_token_of_equal_logits(dtype: torch.dtype) -> None:
    logits = torch.zeros(4, 50_000, dtype=dtype)
    logits[1, 40_000] = logits[1, 12_345] = logits[1, 49_999] = 7.0
    logits[2] = -3.0
    logits[3, 49_998:] = 1.0
    penalised = SamplingParams(presence_penalty=0.1)
    history = [TokenCounts()] * 4
    assert choose(logits, SamplingParams(), positions(0, 1, 2, 3)) == [0, 12_345, 0, 49_998]
    assert choose(logits, penalised, positions(0, 1, 2, 3), history) == [0, 12_345, 0, 49_998]


def test_greedy_is_the_argmax_of_each_row() -> None:
    logits = random_logits(16)
    assert choose(logits, SamplingParams(), positions(*range(16))) == logits.argmax(-1).tolist()


def test_no_rows_give_no_choices() -> None:
    for params in (SamplingParams(), SAMPLED[0]):
        assert choose(torch.empty(0, VOCABULARY), params, []) == []


def test_greedy_heeds_bias_and_penalties() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.5, -1.0]])
    at = positions(5)
    assert choose(logits, SamplingParams(logit_bias=((1, -1.0),)), at) == [2]
    assert choose(logits, SamplingParams(logit_bias=((3, 9.0),)), at) == [3]
    assert choose(logits, SamplingParams(repetition_penalty=2.0), at, [counts_of([1])]) == [2]
    assert choose(logits, SamplingParams(presence_penalty=2.0), at, [counts_of([1])]) == [1]
    assert choose(logits, SamplingParams(presence_penalty=2.0), at, [counts_of([], [1])]) == [2]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_penalties_that_leave_no_finite_score_are_refused(temperature: float) -> None:
    logits = torch.full((1, 4), -1e307, dtype=torch.float64)
    params = SamplingParams(temperature=temperature, repetition_penalty=100.0)
    with pytest.raises(ConfigError, match="leave no token"):
        choose(logits, params, positions(1), [counts_of([0, 1, 2, 3])])


# A row's choice depends on the row alone


@pytest.mark.parametrize("params", SAMPLED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_choice_is_the_same_alone_and_in_any_batch(params: SamplingParams, dtype: torch.dtype) -> None:
    rows = 12
    logits = random_logits(rows, seed=5).to(dtype)
    at = positions(*range(100, 100 + rows))
    history = [counts_of([1, 2, 3], range(row)) for row in range(rows)]
    together = choose(logits, params, at, history)
    alone = [choose(logits[i : i + 1], params, at[i : i + 1], history[i : i + 1])[0] for i in range(rows)]
    strided = torch.stack([logits, logits], dim=1)[:, 0]
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(0)).tolist()
    shuffled = choose(logits[order], params, [at[i] for i in order], [history[i] for i in order])
    assert together == alone == choose(strided, params, at, history)
    assert shuffled == [together[i] for i in order]


def test_choosing_leaves_the_logits_as_they_were() -> None:
    logits = random_logits(2).double()
    before = logits.clone()
    for params in SAMPLED:
        choose(logits, params, positions(1, 2), [counts_of([1], [2])] * 2)
    assert torch.equal(logits, before)


def test_logits_that_require_a_gradient_are_welcome() -> None:
    logits = random_logits(1).requires_grad_()
    assert choose(logits, SamplingParams(), positions(1)) == logits.argmax(-1).tolist()
    assert len(choose(logits, SAMPLED[0], positions(1))) == 1


def test_seed_and_position_decide_a_flat_choice() -> None:
    flat = torch.zeros(1, 50_000)
    chosen = {
        (seed, position): choose(flat, SamplingParams(temperature=1.0, seed=seed), positions(position))[0]
        for seed, position in itertools.product((0, 1, 2**40), (0, 1, 77))
    }
    assert len(set(chosen.values())) == len(chosen)
    for (seed, position), token in chosen.items():
        assert choose(flat, SamplingParams(temperature=1.0, seed=seed), positions(position)) == [token]


def test_the_sampled_token_maximises_logit_plus_noise() -> None:
    logits = random_logits(1, seed=8).double()
    gumbel = noise.gumbel(noise.bits(6, Position(31), np.arange(VOCABULARY)))
    expected = int((logits[0].numpy() / 0.9 + gumbel).argmax())
    assert choose(logits, SamplingParams(temperature=0.9, seed=6), positions(31)) == [expected]


def test_a_near_tie_is_decided_alike_by_machines_whose_logarithms_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(temperature=1.0, seed=12)
    words = noise.bits(12, Position(3), np.array([0, 1])).tolist()
    gap = noise.exact_gumbel(words[0]) - noise.exact_gumbel(words[1])
    fast = noise.gumbel
    chosen = set()
    for error in (0.0, 4e-15, -4e-15):

        def other_machine(bits: NDArray[np.uint64], error: float = error) -> NDArray[np.float64]:
            perturbed: NDArray[np.float64] = np.add(fast(bits), [error, -error])
            return perturbed

        monkeypatch.setattr(noise, "gumbel", other_machine)
        logits = torch.tensor([[-gap, 0.0]] if gap > 0 else [[0.0, gap]], dtype=torch.float64)
        chosen.add(choose(logits, params, positions(3))[0])
    assert len(chosen) == 1


# Filters, against transformers


def kept_by(processors: Sequence[LogitsProcessor], logits: torch.Tensor) -> tuple[list[int], torch.Tensor]:
    scores = logits[None]
    for processor in processors:
        scores = processor(torch.zeros(1, 0, dtype=torch.long), scores)
    kept = torch.isfinite(scores[0]).nonzero().flatten()
    return kept.tolist(), scores[0][kept].softmax(-1)


@pytest.mark.parametrize("scale", [0.5, 3.0, 8.0])
@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [
        (0, 0.9, 0.0),
        (0, 0.999, 0.0),
        (0, 0.01, 0.0),
        (40, 1.0, 0.0),
        (0, 1.0, 0.05),
        (50, 0.8, 0.02),
        (10**6, 1.0, 0.0),
    ],
)
def test_filters_keep_what_transformers_keeps(
    scale: float, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    processors: list[LogitsProcessor] = [TemperatureLogitsWarper(temperature)]
    processors += [TopKLogitsWarper(top_k)] if top_k else []
    processors += [TopPLogitsWarper(top_p)] if top_p < 1 else []
    processors += [MinPLogitsWarper(min_p)] if min_p else []
    for seed in range(5):
        logits = random_logits(1, seed=seed, scale=scale)[0].double()
        tokens, scores = candidates(logits.numpy(), params)
        expected, probabilities = kept_by(processors, logits)
        assert tokens.tolist() == expected
        assert np.allclose(np.exp(scores) / np.exp(scores).sum(), probabilities.numpy(), rtol=1e-12)


@pytest.mark.parametrize("penalty", [0.7, 1.0, 1.3])
def test_the_repetition_penalty_is_that_of_transformers(penalty: float) -> None:
    logits = random_logits(1).double()
    prompt, answer = [4, 9, 9, 100], [9, 77, 4]
    expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([prompt + answer]), logits.clone())
    penalised = logits[0].numpy().copy()
    apply_penalties(penalised, SamplingParams(repetition_penalty=penalty), counts_of(prompt, answer))
    assert np.allclose(penalised, expected[0].numpy(), rtol=1e-15)


def full_sort_top_p(logits: NDArray[np.float64], params: SamplingParams) -> list[int]:
    """The definition: sort all by falling probability and rising token, keep what has less than top_p before it."""
    weights = np.exp((logits - logits.max()) / params.temperature)
    total = weights.sum()
    kept, before = [], 0.0
    for token in sorted(range(len(weights)), key=lambda t: (-weights[t], t)):
        if not before < params.top_p * total:
            break
        kept.append(token)
        before += weights[token]
    return sorted(kept)


@settings(max_examples=150)
@given(
    st.lists(st.sampled_from([-40.0, -3.0, -1.0, 0.0, 0.5, 2.0]) | st.floats(-50, 50), min_size=1, max_size=60),
    st.sampled_from([1e-9, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1 - 1e-12]),
    st.sampled_from([0.3, 1.0, 2.0]),
)
def test_top_p_equals_the_full_sort(values: list[float], top_p: float, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, top_p=top_p)
    logits = np.array(values)
    assert candidates(logits, params)[0].tolist() == full_sort_top_p(logits, params)


@pytest.mark.parametrize("scale", [0.01, 1.0, 4.0])
def test_top_p_equals_the_full_sort_on_a_large_vocabulary(scale: float) -> None:
    params = SamplingParams(temperature=0.9, top_p=0.95)
    logits = random_logits(1, scale=scale, vocabulary=20_000)[0].bfloat16().double().numpy()
    assert candidates(logits, params)[0].tolist() == full_sort_top_p(logits, params)


# Edges


def test_a_tiny_temperature_is_greedy() -> None:
    logits = random_logits(20)
    expected = logits.argmax(-1).tolist()
    for temperature in (1e-5, 1e-300, 5e-324):
        assert choose(logits, SamplingParams(temperature=temperature), positions(*range(20))) == expected


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0, top_k=1),
        SamplingParams(temperature=1.0, top_p=1e-300),
        SamplingParams(temperature=1.0, min_p=1.0),
        SamplingParams(temperature=1.0, logit_bias=((17, 1000.0),)),
    ],
)
def test_a_filter_that_leaves_one_token_gives_it(params: SamplingParams) -> None:
    logits = random_logits(10)
    logits[:, 17] = 30.0
    assert choose(logits, params, positions(*range(10))) == [17] * 10


def test_top_k_keeps_all_that_equal_the_last() -> None:
    tokens, _ = candidates(np.array([1.0, 2.0, 1.0, 0.0, 1.0]), SamplingParams(temperature=1.0, top_k=2))
    assert tokens.tolist() == [0, 1, 2, 4]


def test_huge_logits_are_sampled() -> None:
    logits = torch.tensor([[3e38, -3e38, 3e38, 0.0]])
    chosen = {choose(logits, SamplingParams(temperature=0.5), positions(at))[0] for at in range(40)}
    assert chosen == {0, 2}


@pytest.mark.parametrize("params", [SamplingParams(), *SAMPLED[:2], SamplingParams(temperature=1.0, top_k=5)])
def test_a_token_of_logit_minus_infinity_is_never_chosen(params: SamplingParams) -> None:
    logits = torch.full((30, 9), -torch.inf)
    logits[:, 4] = -5.0
    logits[:, 6] = -5.5
    assert set(choose(logits, params, positions(*range(30)))) <= {4, 6}


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(logit_bias=((0, 1.0),)), *SAMPLED[:3]])
def test_nan_and_infinity_are_no_choice(value: float, params: SamplingParams) -> None:
    logits = random_logits(3)
    logits[1, 123] = value
    with pytest.raises(IntegrityError, match="position 71"):
        choose(logits, params, positions(70, 71, 72))


@pytest.mark.parametrize("params", [SamplingParams(), SAMPLED[0]])
def test_a_row_without_any_possible_token_is_no_choice(params: SamplingParams) -> None:
    with pytest.raises(IntegrityError, match="position 4"):
        choose(torch.full((1, 5), -torch.inf), params, positions(4))


def test_misuse_is_our_own_error() -> None:
    penalised = SamplingParams(presence_penalty=1.0)
    with pytest.raises(LocalProtocolError):
        choose(random_logits(2), SamplingParams(), positions(1))
    with pytest.raises(LocalProtocolError):
        choose(random_logits(2)[0], SamplingParams(), positions(1))
    with pytest.raises(LocalProtocolError):
        choose(random_logits(1), penalised, positions(1))
    with pytest.raises(LocalProtocolError):
        choose(random_logits(2), penalised, positions(1, 2), [TokenCounts()])


def test_tokens_outside_the_vocabulary_are_refused() -> None:
    with pytest.raises(ConfigError, match="token 500"):
        choose(random_logits(1), SamplingParams(logit_bias=((500, 1.0),)), positions(1))
    for token in (500, -1):
        with pytest.raises(RemoteProtocolError, match=f"token {token}"):
            choose(random_logits(1), SamplingParams(presence_penalty=1.0), positions(1), [counts_of([1, 2], [token])])
