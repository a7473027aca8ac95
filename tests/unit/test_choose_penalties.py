from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardp2p.runtime.penalties import RECENT_TOKENS, TokenCounts, apply_penalties
from shardp2p.vocabulary import SamplingParams

TEXTS = st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=3 * RECENT_TOKENS)


def as_dict(counts: TokenCounts) -> dict[int, int]:
    tokens, generated = counts.totals()
    assert tokens.tolist() == sorted(set(tokens.tolist()))
    return dict(zip(tokens.tolist(), generated.tolist(), strict=True))


def naive(text: list[tuple[int, bool]]) -> dict[int, int]:
    generated = Counter(token for token, is_generated in text if is_generated)
    return {token: generated[token] for token, _ in text}


@given(TEXTS)
def test_counts_equal_a_naive_count(text: list[tuple[int, bool]]) -> None:
    counts = TokenCounts()
    for token, is_generated in text:
        counts = counts.after(token, is_generated=is_generated)
    assert as_dict(counts) == naive(text)


@given(TEXTS, TEXTS, TEXTS)
def test_branches_of_a_tree_do_not_disturb_each_other(
    stem: list[tuple[int, bool]], left: list[tuple[int, bool]], right: list[tuple[int, bool]]
) -> None:
    root = TokenCounts()
    for token, is_generated in stem:
        root = root.after(token, is_generated=is_generated)
    ends = []
    for branch in (left, right):
        counts = root
        for token, is_generated in branch:
            counts = counts.after(token, is_generated=is_generated)
        ends.append(counts)
    assert [as_dict(end) for end in ends] == [naive(stem + left), naive(stem + right)]
    assert as_dict(root) == naive(stem)


def test_a_prompt_counted_at_once_equals_one_counted_token_by_token() -> None:
    prompt = [5, 1, 5, 9]
    counts = TokenCounts()
    for token in prompt:
        counts = counts.after(token, is_generated=False)
    assert as_dict(TokenCounts.of_prompt(prompt)) == as_dict(counts) == {1: 0, 5: 0, 9: 0}
    assert as_dict(TokenCounts.of_prompt([])) == {}


def test_frequency_and_presence_concern_the_answer_and_repetition_both() -> None:
    counts = TokenCounts.of_prompt([0, 1]).after(1).after(2).after(2)
    logits = np.array([1.0, -1.0, 4.0, 2.0])
    params = SamplingParams(repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25)
    apply_penalties(logits, params, counts)
    assert logits.tolist() == [0.5, -2.0 - 0.5 - 0.25, 2.0 - 1.0 - 0.25, 2.0]


def test_an_empty_text_changes_nothing() -> None:
    logits = np.array([1.0, -1.0])
    apply_penalties(logits, SamplingParams(repetition_penalty=2.0), TokenCounts())
    assert logits.tolist() == [1.0, -1.0]
