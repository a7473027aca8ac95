"""Several proposers as one: what each says counts for as much as it has held."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

import pytest

from shardp2p.runtime.blend import MAX_BRANCHES, MAX_PENDING, Blend
from shardp2p.runtime.draft import PromptLookup
from shardp2p.vocabulary import Branch, Token


class Says:
    """Says the same of everything; notes what it finished with."""

    def __init__(self, *branches: Branch, is_instant: bool = True) -> None:
        self.branches = branches
        self.is_instant = is_instant
        self.finished: list[Token] = []

    def propose(
        self, text: Sequence[Token], paths: Sequence[Sequence[Token]], depth_tokens: int
    ) -> Sequence[Sequence[Branch]]:
        return [self.branches for _ in paths]

    def finish(self, text: Sequence[Token]) -> None:
        self.finished = list(text)


def say(probabilities: dict[int, float]) -> Says:
    return Says(*(Branch((token,), probability) for token, probability in probabilities.items()))


def probabilities(blend: Blend, text: list[int]) -> dict[int, float]:
    return {branch.tokens[0]: branch.probability for branch in blend.propose(text, [()], 4)[0]}


def test_equal_first_tokens_merge_and_the_most_probable_come_first() -> None:
    blend = Blend([say({1: 0.5, 2: 0.3}), say({2: 0.6, 3: 0.1})])
    assert list(probabilities(blend, [0])) == [2, 1, 3]
    assert sum(probabilities(blend, [0]).values()) < 1.0


def test_the_copy_that_reaches_further_goes_on() -> None:
    long, short = Branch((1, 2, 3, 4), 0.5, 0.9), Branch((1,), 0.5)
    for sources in ((long, short), (short, long)):
        (merged,) = Blend([Says(one) for one in sources]).propose([0], [()], 4)[0]
        assert (merged.tokens, merged.continues) == ((1, 2, 3, 4), 0.9)


def test_who_knows_nothing_about_a_path_takes_nothing_from_who_does() -> None:
    alone = probabilities(Blend([say({1: 0.8})]), [0])
    assert probabilities(Blend([say({1: 0.8}), Says()]), [0]) == alone


def test_it_is_instant_only_if_all_are() -> None:
    assert Blend([Says(), Says()]).is_instant
    assert not Blend([Says(), Says(is_instant=False)]).is_instant


def test_probabilities_come_to_what_has_held() -> None:
    rng, blend, text = Random(1), Blend([say({1: 0.9, 2: 0.05})]), [0]
    for _ in range(400):
        probabilities(blend, text)
        text.append(1 if rng.random() < 0.4 else 3)
    said = probabilities(blend, text)
    assert said[1] == pytest.approx(0.4, abs=0.15)
    assert said[2] < 0.02


def test_who_is_right_more_often_counts_for_more() -> None:
    rng, blend, text = Random(2), Blend([say({1: 0.7}), say({2: 0.7})]), [0]
    for _ in range(60):
        probabilities(blend, text)
        text.append(1 if rng.random() < 0.7 else 2)
    good, bad = blend.weights
    assert good > 5 * bad
    said = probabilities(blend, text)
    assert said[1] > 0.5 > 0.2 > said[2]


def test_statements_about_paths_are_judged_when_the_text_has_come_that_far() -> None:
    blend = Blend([say({1: 0.5})])
    for _ in range(30):
        blend.propose([7], [(), (5,), (5, 1), (6,)], 1)
        blend.propose([7, 5, 1, 9], [()], 1)
    # After 7 came 5, after 5 came 1, after 1 came 9; of what follows 6 nothing was learnt.
    assert probabilities(blend, [7])[1] == pytest.approx(1 / 3, abs=0.05)


def test_every_source_hears_of_the_end() -> None:
    sources = [say({1: 0.5}), say({2: 0.5})]
    Blend(sources).finish([7, 8])
    assert [source.finished for source in sources] == [[7, 8], [7, 8]]


def test_what_waits_for_its_outcome_is_bounded() -> None:
    blend = Blend([say({1: 0.5})])
    for _ in range(3):
        blend.propose([7], [(token,) for token in range(MAX_PENDING)], 1)
    assert len(blend._pending) == MAX_PENDING
    many = Blend([say(dict.fromkeys(range(20), 0.04))])
    assert len(many.propose([7], [()], 1)[0]) == MAX_BRANCHES


def test_a_lookup_beside_a_poor_source_keeps_its_proposals() -> None:
    text = [1, 2, 3, 4] * 12
    blend = Blend([PromptLookup(), say({9: 0.8})])
    for length in range(8, len(text) - 1):
        blend.propose(text[:length], [()], 4)
    branches = blend.propose(text[:-1], [()], 4)[0]
    assert branches[0].tokens == (4, 1, 2, 3)
    assert branches[0].probability > 0.8


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, 1e300, -3.0])
def test_what_is_no_probability_is_merged_as_one(odd: float) -> None:
    blend = Blend([Says(Branch((1, 2, 3), odd, odd), Branch((4,), 0.25)), say({5: 0.5})])
    text = [0]
    for token in (1, 2, 4, 5):
        (merged,) = blend.propose(text, [()], 4)[:1]
        assert {one.tokens[0] for one in merged} == {1, 4, 5}
        assert all(0.0 <= one.probability <= 1.0 for one in merged)
        assert all(0.0 < weight < math.inf for weight in blend.weights)
        text.append(token)
