from __future__ import annotations

import subprocess
import sys
from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardp2p.errors import ConfigError
from shardp2p.runtime.answer_memory import AnswerMemory, Shelf
from shardp2p.runtime.draft import NoDraft, PromptLookup
from shardp2p.runtime.ngram_index import LONGEST_MATCH, MATCH_LENGTHS, SCANNED_OCCURRENCES, NgramIndex
from shardp2p.runtime.successors import Successors
from shardp2p.vocabulary import Branch
from tests.support.proposers import OracleMix, RandomWrong

TEXTS = st.lists(st.integers(0, 4), max_size=60)


def continuations(lookup: PromptLookup, text: list[int], depth: int) -> tuple[Branch, ...]:
    return lookup.propose(text, [()], depth)[0]


def naive_followers(text: list[int], tail: list[int]) -> dict[int, tuple[int, int, int]]:
    """By token: its longest match as far as told apart, how often it followed one like it, and where it did last."""
    found: dict[int, tuple[int, int, int]] = {}
    for length in [one for one in MATCH_LENGTHS if one <= len(tail)]:
        ends = [end for end in range(length, len(text)) if text[end - length : end] == tail[-length:]]
        known = set(found)
        for end in ends[::-1]:
            token = text[end]
            if token not in known:
                _, count, latest = found.get(token, (length, 0, end))
                found[token] = length, count + 1, latest
    return found


def followers(index: NgramIndex, tail: list[int]) -> dict[int, tuple[int, int, int]]:
    return {t: (one.match_tokens, n, one.latest[t]) for one in index.followers(tail) for t, n in one.counts.items()}


@given(TEXTS, st.lists(st.integers(0, 4), max_size=5))
def test_the_index_finds_what_a_search_of_the_whole_text_does(text: list[int], path: list[int]) -> None:
    tail = [*text, *path][-LONGEST_MATCH:]
    assert followers(NgramIndex(text), tail) == naive_followers(text, tail)


def test_of_a_frequent_ngram_the_latest_occurrences_are_looked_at() -> None:
    index = NgramIndex([0, 1] * SCANNED_OCCURRENCES + [2, 2, 2] + [0, 3] * SCANNED_OCCURRENCES + [0])
    assert followers(index, [9, 0]) == {3: (1, SCANNED_OCCURRENCES, len(index) - 2)}


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 60), st.lists(st.integers(0, 3), max_size=20)), max_size=12))
def test_texts_that_grow_shrink_and_diverge_are_followed(edits: list[tuple[int, list[int]]]) -> None:
    lookup = PromptLookup(least_probability=0.0)
    text: list[int] = []
    for kept, added in edits:
        text = text[:kept] + added
        proposed = continuations(lookup, text, 6)
        assert {branch.tokens[0] for branch in proposed} <= naive_followers(text, text[-LONGEST_MATCH:]).keys()
        fresh = continuations(PromptLookup(least_probability=0.0), text, 6)
        assert {branch.tokens for branch in proposed} == {branch.tokens for branch in fresh}


@given(TEXTS, st.lists(st.integers(0, 4), max_size=5), st.integers(1, 9))
def test_a_path_is_continued_as_the_longer_text_would_be(text: list[int], path: list[int], depth: int) -> None:
    """But for what the path itself repeats, which is no text yet."""
    for branch in PromptLookup(least_probability=0.0).propose(text, [path], depth)[0]:
        assert len(branch.tokens) == depth
        whole = [*text, *path]
        ends = [end for end in range(1, len(text)) if text[end - 1] == whole[-1]]
        longer = [*whole, *branch.tokens]
        assert any(longer[end : end + depth] == list(branch.tokens) for end in ends)


@given(TEXTS, st.integers(1, 9))
def test_branches_differ_in_their_first_token_and_come_best_first(text: list[int], depth: int) -> None:
    branches = continuations(PromptLookup(branches=3, least_probability=0.0), text, depth)
    assert len({branch.tokens[0] for branch in branches}) == len(branches) <= 3
    probabilities = [branch.probability for branch in branches]
    assert probabilities == sorted(probabilities, reverse=True)
    assert all(0.0 < branch.probability < 1.0 and 0.0 < branch.continues < 1.0 for branch in branches)
    assert sum(probabilities) < 1.0


def test_the_longest_match_and_then_the_latest_come_first() -> None:
    text = [1, 2, 3, 7, 9, 3, 8, 6, 3, 5, 1, 2, 3]
    assert [branch.tokens for branch in continuations(PromptLookup(), text, 2)] == [(7, 9), (5, 1), (8, 6)]
    assert [branch.tokens for branch in continuations(PromptLookup(branches=1), text, 2)] == [(7, 9)]


@given(TEXTS, st.floats(0.0, 1.0))
def test_a_branch_that_is_not_probable_enough_is_left_out(text: list[int], least: float) -> None:
    every = continuations(PromptLookup(least_probability=0.0), text, 4)
    assert continuations(PromptLookup(least_probability=least), text, 4) == tuple(
        b for b in every if b.probability >= least
    )


def test_a_repetition_is_continued_to_the_full_depth() -> None:
    assert continuations(PromptLookup(), [4, 4], 5)[0].tokens == (4, 4, 4, 4, 4)
    text = [1, 2, 3, 1, 2, 3]
    assert [one[0].tokens for one in PromptLookup().propose(text, [(), (1,), (1, 2, 3)], 4)] == [
        (1, 2, 3, 1), (2, 3, 1, 2), (1, 2, 3, 1)
    ]  # fmt: skip


def test_longer_and_more_frequent_matches_are_surer() -> None:
    once, longer, often = [
        continuations(PromptLookup(), text, 1)[0].probability
        for text in ([7, 1, 8, 7], [1, 2, 3, 4, 5, 6, 8, 1, 2, 3, 4, 5, 6], [1, 2, 3] * 9)
    ]
    assert once < 0.5 < longer < often


def test_matches_that_fail_in_a_text_lose_their_probability_and_those_that_hold_gain_it() -> None:
    rng = Random(3)
    index = NgramIndex()
    believed = Successors(index).rank(NgramIndex([1, 2, 5, 1, 2]).followers([1, 2]))[0].probability
    for holds in (True, False):
        learnt = Successors(index)
        for _ in range(60):
            learnt.note(NgramIndex([1, 2, 5, 1, 2]).followers([1, 2]), 5 if holds else rng.randrange(6, 99))
        probability = learnt.rank(NgramIndex([1, 2, 5, 1, 2]).followers([1, 2]))[0].probability
        assert (probability > 0.9 > believed) if holds else (probability < 0.1 < believed)


def test_stated_probabilities_hold() -> None:
    """A text that goes on as it did before in two cases of three: so says the lookup before it has seen it all."""
    rng, text, lookup = Random(5), [0] * 3, PromptLookup()
    stated = right = 0.0
    for step in range(3000):
        branches = continuations(lookup, text, 1)
        token = (text[-1] * 7 + text[-2] + 1) % 40 if rng.random() < 0.67 else rng.randrange(40)
        if step > 1000:
            stated += sum(branch.probability for branch in branches)
            right += any(branch.tokens == (token,) for branch in branches)
        text.append(token)
    assert stated == pytest.approx(right, rel=0.2)


def test_nothing_is_proposed_without_a_match_or_depth() -> None:
    for text in ([], [1], [1, 2, 3]):
        assert continuations(PromptLookup(), text, 4) == ()
    assert continuations(PromptLookup(), [1, 1, 1], 0) == ()
    assert NoDraft().propose([1, 1, 1], [(), (2,)], 4) == ((), ())


def test_a_growing_text_costs_its_new_tokens_and_a_path_none(monkeypatch: pytest.MonkeyPatch) -> None:
    added = Counter[str]()
    extend = NgramIndex.extend

    def count(index: NgramIndex, tokens: list[int]) -> None:
        added["tokens"] += len(tokens)
        extend(index, tokens)

    monkeypatch.setattr(NgramIndex, "extend", count)
    lookup, text = PromptLookup(), list(range(500)) * 2
    lookup.propose(text, [()], 4)
    assert added.pop("tokens") == 1000
    lookup.propose([*text, 7, 8], [(), (9, 9), (9,)], 4)
    assert added.pop("tokens") == 2


def test_a_lookup_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError):
        PromptLookup(branches=0)
    with pytest.raises(ConfigError):
        PromptLookup(least_probability=1.5)


# What was answered before


def test_an_answer_before_is_proposed_again_after_the_same_question() -> None:
    shelf = Shelf()
    shelf.remember([1, 2, 3], [10, 11, 12, 13])
    assert continuations(PromptLookup(shelf), [9, 1, 2, 3], 3)[0].tokens == (10, 11, 12)
    assert continuations(PromptLookup(shelf), [9, 1, 2, 3, 10, 11], 3)[0].tokens == (12, 13)
    assert continuations(PromptLookup(), [9, 1, 2, 3], 3) == ()


def test_a_finished_answer_helps_the_next_one_to_the_same_question() -> None:
    shelf, question, answer = Shelf(), [1, 2, 3], [10, 11, 12]
    lookup = PromptLookup(shelf)
    assert continuations(lookup, question, 2) == ()
    lookup.finish([*question, *answer])
    assert continuations(PromptLookup(shelf), question, 2)[0].tokens == (10, 11)


def test_the_text_itself_is_preferred_and_both_are_merged() -> None:
    shelf = Shelf()
    shelf.remember([1, 2, 3], [10, 11])
    branches = continuations(PromptLookup(shelf), [1, 2, 3, 20, 21, 1, 2, 3], 2)
    assert {branch.tokens for branch in branches} == {(20, 21), (10, 11)}
    same = continuations(PromptLookup(shelf), [1, 2, 3, 10, 8, 1, 2, 3], 2)
    assert [branch.tokens for branch in same] == [(10, 8)]


def test_nothing_is_taken_across_the_end_of_an_answer() -> None:
    shelf = Shelf()
    shelf.remember([1], [2, 3])
    shelf.remember([4], [5, 6])
    assert continuations(PromptLookup(shelf), [2, 3], 4) == ()
    assert continuations(PromptLookup(shelf), [9, 2], 4)[0].tokens == (3,)


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(2, 60))
def test_a_shelf_never_holds_more_than_it_may(lengths: list[int], most: int) -> None:
    shelf = Shelf(most)
    for at, length in enumerate(lengths):
        shelf.remember([at], list(range(length)))
        assert len(shelf) <= most


def test_old_answers_are_forgotten_first() -> None:
    shelf = Shelf(24)
    for first in (10, 20, 30):
        shelf.remember([first], [first + 1, *range(first + 2, first + 9)])
    assert continuations(PromptLookup(shelf), [10], 1) == ()
    assert continuations(PromptLookup(shelf), [30], 1)[0].tokens == (31,)


def test_models_and_askers_have_shelves_of_their_own_and_the_least_used_goes() -> None:
    memory = AnswerMemory(most_shelves=2, shelf_tokens=100)
    first = memory.shelf("a", "me")
    first.remember([1, 2], [3, 4])
    assert memory.shelf("a", "me") is first
    assert len(memory.shelf("b", "me")) == 0
    memory.shelf("a", "me")
    assert len(memory.shelf("a", "you")) == 0
    assert memory.shelf("a", "me") is first
    assert (memory.use.shelves, memory.use.tokens) == (2, 5)
    memory.shelf("c", "me"), memory.shelf("d", "me")
    assert len(memory.shelf("a", "me")) == 0


def test_a_remembered_token_takes_no_more_than_is_said() -> None:
    import tracemalloc

    from shardp2p.runtime.answer_memory import BYTES_PER_TOKEN

    rng = Random(1)
    tokens = [rng.randrange(50_000) for _ in range(10_000)]
    tracemalloc.start()
    shelf = Shelf()
    shelf.remember([], tokens)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert used < len(shelf) * BYTES_PER_TOKEN


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
