"""What is told of answers over long ways: rates of whole answers, and ratios of the rounds' own."""

from __future__ import annotations

import pytest

from shardp2p.errors import ConfigError
from shardp2p.lab.emulation.profile import parse_profile, parse_ways
from shardp2p.lab.far_arms import FAR_ARMS, choose_far_arms
from shardp2p.lab.far_figures import Asked, FarAnswer, FarFigures
from shardp2p.lab.network.catalog import read_text

PROMPTS = (Asked("list", 90), Asked("chat", 10))


def figures(*rates: tuple[int, int, str, float]) -> FarFigures:
    return FarFigures(PROMPTS, [FarAnswer(at, prompt, arm, 8, rate, 0.1, True) for at, prompt, arm, rate in rates])


def test_a_rate_over_prompts_is_that_of_saying_all_of_them() -> None:
    one = figures((0, 0, "plain", 10.0), (0, 1, "plain", 10.0), (0, 0, "tree", 30.0), (0, 1, "tree", 10.0))
    told = one.arms()
    assert told["plain"]["tok_s"] == 10.0
    assert told["tree"]["tok_s"] == pytest.approx(100 / (90 / 30 + 10 / 10))
    assert told["tree"]["accepted_per_lap"] == 2.5
    assert one.gain("tree") == pytest.approx(2.5)
    assert one.kinds() == {"list": {"plain": 10.0, "tree": 30.0}, "chat": {"plain": 10.0, "tree": 10.0}}
    assert one.prompt_gains("tree") == [pytest.approx(3.0), pytest.approx(1.0)]


def test_a_ratio_is_of_one_round_and_the_median_of_them_counts() -> None:
    answers = [(at, prompt, "plain", 10.0 + at) for at in range(3) for prompt in range(2)]
    answers += [
        (at, prompt, "tree", gain * (10.0 + at)) for at, gain in enumerate((1.2, 2.0, 1.4)) for prompt in (0, 1)
    ]
    assert figures(*answers).gain("tree") == pytest.approx(1.4)
    assert figures(*answers).prompt_gains("tree") == [pytest.approx(1.4)] * 2


def test_one_wrong_answer_makes_an_arm_inexact() -> None:
    right, wrong = (FarAnswer(0, at, "plain", 8, 10.0, 0.1, not at) for at in range(2))
    assert FarFigures(PROMPTS, [right, wrong]).arms()["plain"]["exact"] is False


def test_plain_is_always_among_the_arms() -> None:
    assert choose_far_arms(["tree"]) == ["plain", "tree"]
    assert choose_far_arms(list(reversed(FAR_ARMS))) == list(FAR_ARMS)
    with pytest.raises(ConfigError, match="no scheme 'bush'"):
        choose_far_arms(["bush"])


def test_ways_need_no_emulated_work() -> None:
    ways = parse_ways("three-50ms", read_text("three-50ms"))
    assert (ways.driver, ways.stages) == ("client", ("s0", "s1", "s2"))
    assert ways.hops_s == pytest.approx(0.1)
    with pytest.raises(ConfigError, match="stage_ms is missing"):
        parse_profile("three-50ms", read_text("three-50ms"))
