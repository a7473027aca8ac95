from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardp2p.runtime import noise
from shardp2p.runtime.draft import PromptLookup
from shardp2p.runtime.familiar import GAP_FACTOR, Familiar
from shardp2p.runtime.known_noise import MAX_POSITIONS, KnownNoise
from shardp2p.runtime.ngram_index import NgramIndex
from shardp2p.runtime.noisy_belief import CERTAIN_SHARE, MIDDLING, chance, under_noise
from shardp2p.runtime.proposing import DraftWish, Proposers
from shardp2p.runtime.sampled_ranking import LEAST_GUESS
from shardp2p.vocabulary import Branch, Position, SamplingParams

SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, seed=7)
TEXTS = st.lists(st.integers(0, 4), max_size=40)


def continuations(lookup: PromptLookup, text: list[int], depth: int = 4) -> tuple[Branch, ...]:
    return lookup.propose(text, [()], depth)[0]


# What noise says of a belief


@pytest.mark.parametrize("probability", [0.03, 0.3, 0.9])
def test_the_chance_of_a_token_is_how_often_it_wins_with_such_noise(probability: float) -> None:
    rest = np.array([0.5, 0.3, 0.2]) * (1 - probability)
    gumbels = np.random.default_rng(1).gumbel(size=(200_000, 4))
    wins = (np.log([probability, *rest]) + gumbels).argmax(axis=1) == 0
    for least, most in ((-1.0, 0.0), (0.0, 1.0), (1.0, 2.0), (2.0, 4.0)):
        drawn = (least <= gumbels[:, 0]) & (gumbels[:, 0] < most)
        expected = np.mean([chance(probability, gumbel) for gumbel in gumbels[drawn, 0].tolist()])
        assert wins[drawn].mean() == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("belief", [0.05, 0.3])
def test_a_belief_under_noise_holds_where_some_tokens_are_certain_and_others_middling(belief: float) -> None:
    certain = belief * CERTAIN_SHARE
    open_share = (belief - certain) / MIDDLING
    rng = np.random.default_rng(2)
    kinds = rng.choice([1.0, MIDDLING, 0.0], p=[certain, open_share, 1 - certain - open_share], size=60_000)
    gumbels = rng.gumbel(size=60_000)
    comes = [p > 0 and rng.random() < chance(p, g) for p, g in zip(kinds.tolist(), gumbels.tolist(), strict=True)]
    stated = np.array([under_noise([belief], [gumbel])[0] for gumbel in gumbels.tolist()])
    for among in (gumbels < 0, (gumbels >= 0) & (gumbels < 1), gumbels >= 1):
        assert stated[among].mean() == pytest.approx(np.array(comes)[among].mean(), rel=0.25)


@given(st.lists(st.tuples(st.floats(0.0, 0.3), st.floats(-3.0, 30.0)), min_size=2, max_size=3))
def test_more_noise_makes_a_token_more_probable_and_the_others_less(believed: list[tuple[float, float]]) -> None:
    beliefs, gumbels = [one for one, _ in believed], [one for _, one in believed]
    before, after = under_noise(beliefs, gumbels), under_noise(beliefs, [gumbels[0] + 1, *gumbels[1:]])
    assert 0 <= sum(before) <= 1 + 1e-9
    assert after[0] >= before[0] - 1e-12
    assert all(now <= then + 1e-12 for now, then in zip(after[1:], before[1:], strict=True))


@given(st.lists(st.lists(st.integers(0, 50_000), max_size=6), max_size=6))
def test_noise_that_is_kept_is_that_of_the_choice(asked: list[list[int]]) -> None:
    known = KnownNoise(5)
    for tokens in asked:
        for position in (Position(3), Position(9)):
            expected = [float(noise.gumbel(noise.bits(5, position, np.array([one])))[0]) for one in tokens]
            assert known.gumbels(position, tokens) == expected


def test_noise_is_kept_for_so_many_positions() -> None:
    known = KnownNoise(5)
    first = known.gumbels(Position(0), [1])
    for position in range(3 * MAX_POSITIONS):
        known.gumbels(Position(position), [1, 2])
    assert len(known._known) == MAX_POSITIONS
    assert known.gumbels(Position(0), [1]) == first


# Tokens that followed nothing


def familiar(prompt: list[int]) -> Familiar:
    return Familiar(NgramIndex(prompt))


def test_what_is_usual_in_a_text_is_believed_in_more() -> None:
    beliefs = familiar([1] * 20 + [2] * 10 + list(range(100, 140))).beliefs(None, 1.0, ())
    assert set(beliefs) == {1, 2}
    assert beliefs[1] > beliefs[2]


def test_a_token_that_came_after_such_a_gap_is_believed_in_more() -> None:
    text = [1, 2] * 10 + [8, 5, 1, 8, 6, 2, *range(100, 200)]
    usual, after_gap = (familiar(text).beliefs(before, 1.0, ()) for before in (None, 8))
    assert after_gap == {token: pytest.approx(GAP_FACTOR * belief) for token, belief in usual.items()}
    assert familiar(text).beliefs(8, 1.0, {1}) == {2: after_gap[2]}
    assert familiar(text).beliefs(8, 0.5, ())[2] == pytest.approx(after_gap[2] / 2)


def test_guesses_that_fail_in_an_answer_are_believed_in_less_and_those_that_hold_more() -> None:
    for token, is_more in ((1, True), (77, False)):
        learnt = familiar([1, 2] * 10)
        before = learnt.beliefs(None, 1.0, ())[1]
        for _ in range(60):
            learnt.note(None, 1.0, (), token)
        assert (learnt.beliefs(None, 1.0, ()).get(1, 0.0) > before) is is_more


@given(TEXTS, TEXTS)
def test_an_answer_that_grows_is_counted_as_one_that_was_there(prompt: list[int], answer: list[int]) -> None:
    grown, index = familiar(prompt), NgramIndex([*prompt, *answer])
    for token in answer:
        grown.extend(token, is_answer=False)
    assert grown.beliefs(None, 1.0, ()) == pytest.approx(Familiar(index).beliefs(None, 1.0, ()))


# Prompt lookup under noise


@given(TEXTS, st.lists(st.integers(0, 4), max_size=4))
def test_a_greedy_request_is_drafted_as_without_any_noise(text: list[int], path: list[int]) -> None:
    greedy = PromptLookup(sampling=SamplingParams(seed=7, repetition_penalty=1.2))
    assert greedy.propose(text, [(), path], 6) == PromptLookup().propose(text, [(), path], 6)


@given(TEXTS, st.lists(st.integers(0, 4), max_size=4), st.integers(1, 8))
def test_sampled_branches_are_few_different_and_stated_soundly(text: list[int], path: list[int], depth: int) -> None:
    for branches in PromptLookup(sampling=SAMPLED).propose(text, [(), path], depth):
        firsts = [branch.tokens[0] for branch in branches]
        assert len(firsts) == len(set(firsts)) <= 4
        stated = [branch.probability for branch in branches]
        assert stated == sorted(stated, reverse=True)
        assert sum(stated) <= 1 + 1e-9
        for branch in branches:
            assert 1 <= len(branch.tokens) <= depth
            assert 0 < branch.continues <= 1


def test_of_two_tokens_that_followed_as_often_the_one_with_more_noise_is_likelier() -> None:
    text = [9, 1, 2, 5, 8, 1, 2, 6, 7, 1, 2]
    for seed in range(6):
        sampling = SamplingParams(temperature=0.8, seed=seed)
        gumbels = KnownNoise(seed).gumbels(Position(len(text)), [5, 6])
        stated = {one.tokens[0]: one.probability for one in continuations(PromptLookup(sampling=sampling), text)}
        assert (stated[5] > stated[6]) is (gumbels[0] > gumbels[1])


def test_a_copy_for_a_sampled_answer_ends_where_it_becomes_improbable() -> None:
    text = [1, 2, 3, 4, 5, 20, 6, 7, 30, 6, 8, 40, 6, 9, 1, 2, 3, 4]
    (greedy, *_), (sampled, *_) = (
        continuations(PromptLookup(sampling=one), text, 6) for one in (SamplingParams(), SAMPLED)
    )
    assert greedy.tokens[: len(sampled.tokens)] == sampled.tokens
    assert sampled.tokens[0] == 5
    assert len(sampled.tokens) < len(greedy.tokens) == 6


def test_a_usual_token_with_much_noise_is_guessed_at_where_nothing_is_repeated() -> None:
    text = [*(token for other in range(100, 200, 7) for token in (3, *range(other, other + 7))), 1, 2]
    assert continuations(PromptLookup(), text) == ()
    guessed = []
    for seed in range(40):
        branches = continuations(PromptLookup(sampling=SamplingParams(temperature=1.0, seed=seed)), text)
        assert all(branch.tokens == (3,) and branch.probability >= LEAST_GUESS for branch in branches)
        guessed.append((KnownNoise(seed).gumbels(Position(len(text)), [3])[0], len(branches)))
    numbers = [number for _, number in sorted(guessed)]
    assert numbers == sorted(numbers)
    assert set(numbers) == {0, 1}


def test_stated_probabilities_hold_in_a_sampled_text() -> None:
    """Each token has two that usually follow, chosen under the request's own noise: so says the lookup that saw it."""
    rng, text, sampling = Random(5), [0] * 3, SamplingParams(temperature=1.0, seed=11)
    lookup, known = PromptLookup(sampling=sampling), KnownNoise(11)
    stated = right = 0.0
    for step in range(1500):
        branches = continuations(lookup, text, 1)
        follow = [(text[-1] * 7 + 1) % 40, (text[-1] * 11 + 3) % 40, rng.randrange(40)]
        gumbels = known.gumbels(Position(len(text)), follow)
        scores = np.log([0.6, 0.3, 0.1]) + gumbels
        token = follow[int(scores.argmax())]
        if step > 500:
            stated += sum(branch.probability for branch in branches)
            right += any(branch.tokens == (token,) for branch in branches)
        text.append(token)
    assert stated == pytest.approx(right, rel=0.2)


def test_a_driver_gives_the_lookup_the_noise_of_the_request() -> None:
    text = [9, 1, 2, 5, 8, 1, 2, 6, 7, 1, 2]
    for kind in ("lookup", "text", "model"):
        own = Proposers().make(DraftWish(kind, "digest", sampling=SAMPLED))
        assert own is not None
        assert own.propose(text, [()], 4) == PromptLookup(sampling=SAMPLED).propose(text, [()], 4)
