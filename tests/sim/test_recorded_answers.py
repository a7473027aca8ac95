"""What SmolLM2 said, said again over a simulated ring of three stages 50 ms apart, drafted by prompt lookup alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from shardp2p.coordinator.commands import Limits
from shardp2p.lab.emulation.arms import Arm
from shardp2p.lab.emulation.profile import Profile
from shardp2p.lab.emulation.recorded import RecordedLanguage
from shardp2p.lab.emulation.simulation import simulate
from shardp2p.lab.replay_drafts import Recorded
from shardp2p.runtime.draft import PromptLookup
from shardp2p.vocabulary import SamplingParams

ANSWERS = Path(__file__).parents[1] / "support" / "smollm2_answers.json"
"""To the prompts of `lab/prompts.py`, up to 80 tokens."""

PEERS = ("client", "s0", "s1", "s2")
WAYS = {(a, b): 0.0 if a == b else 0.025 for a in PEERS for b in PEERS}
PLAIN = Arm(Limits(max_chunks=1, draft_tokens=0))
TREE = Arm(Limits())


CHOOSING = {"greedy": (0.0, 1.0), "sampled at 0.2": (0.2, 0.9), "sampled at 0.5": (0.5, 0.95), "sampled": (0.8, 0.95)}
"""Temperature and top-p. The model's own card says 0.2 and 0.9."""


@cache
def answers(way: str) -> tuple[tuple[Recorded, SamplingParams], ...]:
    """With what each was asked for: `lab/far_answers.py` gives every prompt its number as the seed."""
    said = json.loads(ANSWERS.read_text(encoding="utf-8"))[way]
    temperature, top_p = CHOOSING[way]
    return tuple(
        (
            Recorded(one["kind"], tuple(one["prompt"]), tuple(one["answer"])),
            SamplingParams(temperature=temperature, top_p=top_p, seed=number),
        )
        for number, one in enumerate(said)
    )


class SteepProfile(Profile):
    """Where one row alone is a cheaper kind of product than two: everything else takes twice the time."""

    def stage_s(self, rows: int) -> float:
        return super().stage_s(rows) + (self.stage_base_s if rows > 1 else 0.0)


@cache
def times_s(
    one: Recorded, sampling: SamplingParams, row_s: float, kind: type[Profile] = Profile
) -> tuple[float, float]:
    """What the answer takes plainly, and with drafts."""
    ring = kind("three", PEERS, WAYS, 1152, 0.010, row_s, 0.0)
    language, length = RecordedLanguage(one.prompt, one.answer), len(one.answer)
    proposer = PromptLookup(sampling=sampling)
    plain = simulate(ring, language, PLAIN, prompt_tokens=one.prompt, max_tokens=length)
    drafted = simulate(ring, language, TREE, prompt_tokens=one.prompt, max_tokens=length, proposer=proposer)
    assert tuple(plain.tokens) == tuple(drafted.tokens) == one.answer
    return length / plain.tok_s, length / drafted.tok_s


def gain(times: Sequence[tuple[float, float]]) -> float:
    return sum(plain for plain, _ in times) / sum(drafted for _, drafted in times)


@pytest.mark.parametrize(("way", "row_s"), [("greedy", 0.003), ("sampled", 0.001), ("sampled", 0.003)])
def test_drafts_slow_no_answer_down(way: str, row_s: float) -> None:
    for one, sampling in answers(way):
        plain_s, drafted_s = times_s(one, sampling, row_s)
        assert drafted_s <= plain_s / 0.97, one


@pytest.mark.parametrize("way", CHOOSING)
def test_drafts_slow_no_answer_down_where_a_second_row_doubles_the_time(way: str) -> None:
    for one, sampling in answers(way):
        plain_s, drafted_s = times_s(one, sampling, 0.0005, SteepProfile)
        assert drafted_s <= plain_s / 0.97, one


def test_drafts_gain_most_where_an_answer_repeats() -> None:
    times: dict[str, list[tuple[float, float]]] = {}
    for one, sampling in answers("greedy"):
        times.setdefault(one.kind, []).append(times_s(one, sampling, 0.001))
    assert gain(times["repeat"]) >= 3.3
    assert gain(times["list"]) >= 1.8
    assert gain([both for of_kind in times.values() for both in of_kind]) >= 1.5


@pytest.mark.parametrize(("row_s", "least"), [(0.001, 1.4), (0.003, 1.3)])
def test_sampled_answers_gain_nearly_as_much_as_greedy_ones(row_s: float, least: float) -> None:
    assert gain([times_s(*one, row_s) for one in answers("sampled")]) >= least


@pytest.mark.parametrize("row_s", [0.001, 0.003])
def test_answers_at_lower_temperatures_gain_as_much_as_greedy_ones(row_s: float) -> None:
    greedy, cold, warm = (
        gain([times_s(*one, row_s) for one in answers(way)]) for way in ("greedy", "sampled at 0.2", "sampled at 0.5")
    )
    assert cold >= greedy
    assert 0.9 <= warm / greedy <= 1.1
