from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardp2p.errors import ConfigError
from shardp2p.runtime.draft import SCANNED_OCCURRENCES, NoDraft, PromptLookup
from shardp2p.vocabulary import Branch
from tests.support.proposers import OracleMix, RandomWrong

TEXTS = st.lists(st.integers(0, 4), max_size=60)


def naive_lookup(text: list[int], depth: int, ngram: int, branches: int) -> list[Branch]:
    """The definition: search the whole text anew for every length, latest occurrence first."""
    found: list[tuple[float, int, int]] = []
    left = 1.0
    for length in range(min(ngram, len(text) - 1), 0, -1):
        ends = [end for end in range(length, len(text)) if text[end - length : end] == text[-length:]]
        known = {token for _, token, _ in found}
        followers = [(text[end], end) for end in ends[::-1][:SCANNED_OCCURRENCES] if text[end] not in known]
        counts = Counter(token for token, _ in followers)
        if counts:
            share = left / (counts.total() + len(counts))
            latest = {token: max(end for other, end in followers if other == token) for token in counts}
            found += [(counts[token] * share, token, end) for token, end in latest.items()]
            left = share * len(counts)
    result = []
    for probability, _, end in sorted(found, key=lambda entry: -entry[0])[:branches]:
        longer = list(text)
        for step in range(depth):
            longer.append(longer[end + step])
        result.append(Branch(tuple(longer[len(text) :]), probability))
    return result


@given(TEXTS, st.integers(1, 9), st.integers(1, 4), st.integers(1, 5))
def test_a_lookup_equals_a_naive_search(text: list[int], depth: int, ngram: int, branches: int) -> None:
    assert list(PromptLookup(ngram, branches, 0.0).continuations(text, depth)) == naive_lookup(
        text, depth, ngram, branches
    )


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 60), st.lists(st.integers(0, 3), max_size=20)), max_size=12))
def test_texts_that_grow_shrink_and_diverge_are_followed(edits: list[tuple[int, list[int]]]) -> None:
    lookup = PromptLookup(least_probability=0.0)
    text: list[int] = []
    for kept, added in edits:
        text = text[:kept] + added
        assert list(lookup.continuations(tuple(text), 6)) == naive_lookup(text, 6, 3, 3)


def test_a_frequent_token_is_scanned_as_the_naive_search_does() -> None:
    text = [0, 1] * SCANNED_OCCURRENCES + [0, 2] * SCANNED_OCCURRENCES + [0]
    assert list(PromptLookup(1).continuations(text, 3)) == naive_lookup(text, 3, 1, 3)
    assert [branch.tokens for branch in PromptLookup(1).continuations(text, 3)] == [(2, 0, 2)]


@given(TEXTS, st.integers(1, 9))
def test_every_proposal_has_followed_the_end_of_the_text_before(text: list[int], depth: int) -> None:
    for branch in PromptLookup(least_probability=0.0).continuations(text, depth):
        assert len(branch.tokens) == depth
        occurrences = [end for end in range(1, len(text)) if text[end - 1] == text[-1]]
        assert any(text[end : end + depth] == list(branch.tokens)[: len(text) - end] for end in occurrences)


@given(TEXTS, st.integers(1, 9))
def test_branches_differ_in_their_first_token_and_come_best_first(text: list[int], depth: int) -> None:
    branches = PromptLookup(branches=4, least_probability=0.0).continuations(text, depth)
    assert len({branch.tokens[0] for branch in branches}) == len(branches) <= 4
    probabilities = [branch.probability for branch in branches]
    assert probabilities == sorted(probabilities, reverse=True)
    assert all(0.0 < probability < 1.0 for probability in probabilities)
    assert sum(probabilities) < 1.0


def test_the_longest_match_and_then_the_latest_come_first() -> None:
    text = [1, 2, 3, 7, 9, 3, 8, 6, 3, 5, 1, 2, 3]
    every = PromptLookup(least_probability=0.0)
    assert [branch.tokens for branch in every.continuations(text, 2)] == [(7, 9), (5, 1), (8, 6)]
    assert [branch.tokens for branch in PromptLookup(branches=1).continuations(text, 2)] == [(7, 9)]


@given(TEXTS, st.floats(0.0, 1.0))
def test_a_branch_that_is_not_probable_enough_is_left_out(text: list[int], least: float) -> None:
    every = PromptLookup(least_probability=0.0).continuations(text, 4)
    assert PromptLookup(least_probability=least).continuations(text, 4) == tuple(
        b for b in every if b.probability >= least
    )


def test_where_next_to_nothing_repeats_nothing_is_proposed() -> None:
    often_followed_by_others = [7, 1, 7, 2, 7, 3, 7, 4, 7, 5, 7, 6, 7]
    assert len(PromptLookup(least_probability=0.0).continuations(often_followed_by_others, 4)) == 3
    assert PromptLookup().continuations(often_followed_by_others, 4) == ()


def test_a_repetition_is_continued_to_the_full_depth() -> None:
    assert PromptLookup().continuations([4, 4], 5)[0].tokens == (4, 4, 4, 4, 4)
    assert PromptLookup().continuations([1, 2, 3, 1, 2, 3], 7)[0].tokens == (1, 2, 3, 1, 2, 3, 1)


def test_what_repeats_becomes_more_probable() -> None:
    once, often = [PromptLookup().continuations([1, 2, 3] * times, 1)[0].probability for times in (2, 9)]
    assert once == pytest.approx(0.5)
    assert often > 0.85


def test_nothing_is_proposed_without_a_match_or_depth() -> None:
    for text in ([], [1], [1, 2, 3]):
        assert PromptLookup().continuations(text, 4) == ()
    assert PromptLookup().continuations([1, 1, 1], 0) == ()
    assert NoDraft().propose([1, 1, 1], [(), (2,)], 4) == ((), ())


def test_a_growing_text_costs_its_new_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    lookup = PromptLookup()
    extended, retracted = Counter[str](), Counter[str]()
    extend, retract = lookup._extend, lookup._retract

    def count_extend(token: int) -> None:
        extended["tokens"] += 1
        extend(token)

    def count_retract() -> None:
        retracted["tokens"] += 1
        retract()

    monkeypatch.setattr(lookup, "_extend", count_extend)
    monkeypatch.setattr(lookup, "_retract", count_retract)
    text = list(range(500)) * 2
    lookup.continuations(text, 4)
    assert (extended.pop("tokens"), retracted["tokens"]) == (1000, 0)
    lookup.continuations([*text, 7, 8], 4)
    assert (extended.pop("tokens"), retracted["tokens"]) == (2, 0)
    lookup.continuations([*text, 7, 9, 9], 4)
    assert (extended.pop("tokens"), retracted["tokens"]) == (2, 1)


@pytest.mark.parametrize(("ngram", "branches"), [(0, 1), (1, 0)])
def test_a_lookup_of_nothing_is_refused(ngram: int, branches: int) -> None:
    with pytest.raises(ConfigError):
        PromptLookup(ngram, branches)


def test_drafting_needs_no_tensor_library() -> None:
    program = "import sys, shardp2p.runtime.draft; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# The proposers of the tests


@given(TEXTS, st.integers(0, 6), st.integers(0, 9))
def test_random_branches_are_distinct_and_repeatable(text: list[int], depth: int, seed: int) -> None:
    branches = RandomWrong(seed, vocab_size=50).continuations(text, depth)
    assert branches == RandomWrong(seed, vocab_size=50).continuations(tuple(text), depth)
    assert len(branches) == (3 if depth else 0)
    assert len({branch.tokens[0] for branch in branches}) == len(branches)
    assert all(1 <= len(branch.tokens) <= depth and max(branch.tokens) < 50 for branch in branches)


def test_an_oracle_is_right_as_often_as_asked() -> None:
    reference = [(7 * i * i + 3 * i) % 101 for i in range(900)]
    for accept, low, high in ((0.0, 0.0, 0.0), (0.6, 0.55, 0.65), (1.0, 1.0, 1.0)):
        oracle = OracleMix(reference, accept, seed=5)
        right = [
            any(branch.tokens[0] == reference[end] for branch in oracle.continuations(reference[:end], 4))
            for end in range(10, 890)
        ]
        assert low <= sum(right) / len(right) <= high
    whole = OracleMix(reference, 1.0, seed=5).continuations(reference[:20], 4)
    assert tuple(reference[20:24]) in {branch.tokens for branch in whole}


def test_an_oracle_guesses_below_a_text_that_left_the_reference() -> None:
    oracle = OracleMix([1, 2, 3, 4, 5, 6], 1.0, seed=0)
    for text in ([1, 2, 9], [1, 2, 3, 4, 5, 6]):
        branches = oracle.continuations(text, 3)
        assert len({branch.tokens[0] for branch in branches}) == 3
