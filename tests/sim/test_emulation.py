"""Emulated rings: the language, the profile, and the simulation that the benchmarks stand beside."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import pairwise

import pytest

from shardp2p.coordinator.commands import Limits
from shardp2p.errors import ConfigError, RemoteProtocolError
from shardp2p.lab.emulation.arms import Arm, arms, choose_arms, tree
from shardp2p.lab.emulation.comparison import against, best_tok_s, compare_simulated, prompt
from shardp2p.lab.emulation.language import RANKS, VOCABULARY, Language, extend
from shardp2p.lab.emulation.layers import digests_of, frame_of
from shardp2p.lab.emulation.profile import Profile, parse_profile
from shardp2p.lab.emulation.simulation import simulate
from shardp2p.lab.network.catalog import read_text
from shardp2p.wire.tensor_frame import TensorFrame

PROFILES = ("glm52", "gpt-oss")


def profile(name: str = "gpt-oss") -> Profile:
    return parse_profile(name, read_text(name))


# the language


@pytest.mark.parametrize("accept", [0.6, 0.74, 0.95])
def test_the_draft_is_right_as_often_as_asked_and_as_sure_as_it_is_right(accept: float) -> None:
    language = Language(accept, seed=1)
    digest, texts, firsts, others, sure = language.digest((1, 2, 3)), 20_000, 0, 0, 0.0
    for _ in range(texts):
        token, guesses = language.next_token(digest), language.guesses(digest)
        firsts += token == guesses[0].tokens[0]
        others += token in [guess.tokens[0] for guess in guesses[1:]]
        sure += guesses[0].probability
        digest = extend(digest, token)
    # Where the first share is small another guess may be the most probable: then the first is right more often.
    assert firsts / texts == pytest.approx(sure / texts, abs=0.012)
    assert accept - 0.012 < firsts / texts < accept + 0.06
    assert others / (texts - firsts) > 0.75


def test_a_text_has_one_continuation_whatever_was_asked_before() -> None:
    language, again = Language(0.74, seed=3), Language(0.74, seed=3)
    said = language.continuation((5, 6), 50)
    assert again.next_token(again.digest((9,))) is not None
    assert again.continuation((5, 6), 50) == said
    assert again.continuation((5, 6, *said[:20]), 30) == said[20:]
    assert Language(0.74, seed=4).continuation((5, 6), 50) != said


def test_guesses_are_proposed_below_each_path() -> None:
    language = Language(0.74)
    text = language.digest((1, 2))
    below = language.propose(text, [(), (7, 8)], guesses=3)
    assert [len(branches) for branches in below] == [3, 3]
    assert below[1] == language.guesses(language.digest((1, 2, 7, 8)))[:3]
    probabilities = [branch.probability for branch in language.guesses(text)]
    assert len(probabilities) == RANKS
    assert probabilities == sorted(probabilities, reverse=True)
    assert sum(probabilities) < 1.0


@pytest.mark.parametrize("accept", [0.0, 1.0, -1.0, 2.0])
def test_no_draft_is_always_or_never_right(accept: float) -> None:
    with pytest.raises(ConfigError, match="acceptance"):
        Language(accept)
    with pytest.raises(ConfigError, match="acceptance"):
        arms(accept)


# hidden rows


def test_hidden_rows_have_a_models_size_and_hold_digests() -> None:
    frame = frame_of([1, 2**64 - 1], 5760)
    assert frame is not None
    assert (frame.shape, len(frame.data)) == ((2, 2880), 2 * 5760)
    assert digests_of(frame) == [1, 2**64 - 1]
    assert (frame_of([], 5760), digests_of(None)) == (None, [])
    with pytest.raises(RemoteProtocolError, match="cannot be of an emulated model"):
        digests_of(TensorFrame("raw", "bfloat16", (1, 2), bytes(4)))


# profiles


@pytest.mark.parametrize("name", PROFILES)
def test_the_shipped_profiles_are_read(name: str) -> None:
    raw, read = json.loads(read_text(name)), profile(name)
    ring = [*raw["peers"], raw["peers"][0]]
    rtts = [raw["rtt_ms"][f"{a}-{b}"] for a, b in pairwise(ring)]
    assert read.hops_s == pytest.approx(sum(rtts) / 2e3)
    assert read.one_way_s[raw["peers"][0], raw["peers"][2]] == pytest.approx(raw["default_rtt_ms"] / 2e3)
    assert read.row_bytes == raw["hidden_size"] * raw["activation_bytes"]
    assert read.stage_s(10) == pytest.approx((raw["stage_ms"]["base"] + 10 * raw["stage_ms"]["per_token"]) / 1e3)
    assert read.stage_s(0) == 0.0


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"stage_ms": None}, "stage_ms of profile mine"),
        ({"stage_ms": {"base": -1, "per_token": 1}}, "base is -1"),
        ({"stage_ms": {}}, "it needs base"),
        ({"stage_ms": {"base": 3}}, "and per_token"),
        ({"stage_ms": {"base": 3, "per_token": 1, "per_row": 1}}, "'per_row' is not known here"),
        (
            {"stage_ms": {"base": 0, "per_token": 0}, "rtt_ms": {}, "default_rtt_ms": 0},
            "a lap takes no time",
        ),
        (
            {"stage_ms": {"base": 5e-324, "per_token": 1e-9}, "rtt_ms": {}, "default_rtt_ms": 1e-300},
            "a lap takes no time",
        ),
        ({"layers": "all"}, "layers is not a list of 3 ranges"),
        ({"layers": [[0, 36]]}, "layers is not a list of 3 ranges"),
        ({"draft_ms_per_level": "fast"}, "draft_ms_per_level"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"peers": ["driver"], "rtt_ms": {}}, "fewer than two peers"),
        ({"rtt_ms": {"driver-nobody": 3}}, "driver-nobody"),
    ],
)
def test_a_profile_that_makes_no_sense_is_the_users_error(change: dict[str, object], told: str) -> None:
    raw = json.loads(read_text("gpt-oss")) | change
    with pytest.raises(ConfigError, match=told):
        parse_profile("mine", json.dumps(raw))


def test_a_profile_that_is_no_network_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^profile mine: the network is not JSON"):
        parse_profile("mine", "{")


def test_an_empty_name_is_called_that() -> None:
    with pytest.raises(ConfigError, match=r"^an empty name is neither"):
        read_text("")


def test_a_profile_without_work_says_what_is_missing() -> None:
    with pytest.raises(ConfigError, match=r"stage_ms is missing.*glm52"):
        parse_profile("three-50ms", read_text("three-50ms"))


# the simulation


def test_plain_decoding_takes_a_lap_for_each_token() -> None:
    ring = profile()
    run = simulate(ring, Language(0.74), arms(0.74)["plain"], prompt_tokens=prompt(0, 0), max_tokens=30)
    assert 1 / run.tok_s == pytest.approx(ring.plain_lap_s, rel=1e-6)


def test_slower_hops_lengthen_every_lap() -> None:
    ring = profile()
    hops = len(ring.stages) + 1
    assert ring.slowed(0.002).plain_lap_s == pytest.approx(ring.plain_lap_s + hops * 0.002)


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize(("accept", "tokens"), [(0.6, 120), (0.95, 500)])
def test_every_scheme_gives_the_targets_text_and_the_pipelined_tree_is_the_fastest(
    name: str, accept: float, tokens: int
) -> None:
    told = compare_simulated(profile(name), accept, names=choose_arms((), accept), rounds=1, tokens=tokens)
    rates = {name: arm["tok_s"] for name, arm in told["arms"].items()}
    assert all(arm["exact"] for arm in told["arms"].values())
    assert rates["plain"] == min(rates.values())
    assert rates["tree"] > 1.4 * rates["flush"]
    assert rates["tree"] > 1.25 * rates["sync_tree"]
    assert rates["tree"] >= 0.9 * told["bound_tok_s"]


def test_what_the_tree_gains_is_told_against_the_others_and_the_bound() -> None:
    told = against({"plain": 2.0, "tree": 9.0}, 10.0)
    assert told == {"bound_tok_s": 10.0, "tree_over": {"plain": 4.5, "bound": 0.9}}
    assert against({"plain": 2.0}, 10.0) == {"bound_tok_s": 10.0}
    assert against({"plain": 0.0, "tree": 9.0}, 10.0)["tree_over"] == {"bound": 0.9}  # too slow to say how much


def test_the_bound_is_not_below_any_scheme() -> None:
    ring, language = profile(), Language(0.5)
    assert best_tok_s(ring, language, [prompt(0, 0)], 20, [3.0, 1e6]) == 1e6


@pytest.mark.parametrize("accept", [0.02, 0.2])
def test_a_draft_that_is_nearly_always_wrong_costs_next_to_nothing(accept: float) -> None:
    ring = profile()
    plain, drafted = (
        simulate(ring, Language(accept), arm, prompt_tokens=prompt(0, 0), max_tokens=100)
        for arm in (arms(accept)["plain"], tree())
    )
    assert drafted.tok_s >= 0.97 * plain.tok_s


def test_a_ring_without_distance_is_no_slower_with_drafts() -> None:
    ring = replace(profile(), one_way_s=dict.fromkeys(profile().one_way_s, 0.0))
    plain, drafted = (
        simulate(ring, Language(0.74), arm, prompt_tokens=prompt(0, 0), max_tokens=100)
        for arm in (arms(0.74)["plain"], tree())
    )
    assert drafted.tok_s > plain.tok_s


@pytest.mark.parametrize("prompt_tokens", [16, 1500])
@pytest.mark.parametrize("base_s", [0.005, 0.010])
def test_where_each_row_costs_as_much_as_a_chunk_a_poor_draft_slows_nothing_down(
    base_s: float, prompt_tokens: int
) -> None:
    """Stages side by side whose rows are never cheaper together: what waits behind a prompt or drafts is no way."""
    near = dict.fromkeys(profile().one_way_s, 0.001)
    ring = replace(profile(), one_way_s=near, stage_base_s=base_s, stage_row_s=base_s, draft_level_s=0.005)
    text = random.Random(1).choices(range(VOCABULARY), k=prompt_tokens)
    plain, drafted = (
        simulate(ring, Language(0.15), Arm(limits), prompt_tokens=text, max_tokens=100)
        for limits in (Limits(max_chunks=1, draft_tokens=0), Limits(draft_tokens=1))
    )
    assert drafted.tok_s >= 0.97 * plain.tok_s


def test_schemes_are_chosen_by_name() -> None:
    assert choose_arms((), 0.74) == ["plain", "flush", "sync_tree", "tree"]
    assert choose_arms(("tree", "plain"), 0.74) == ["plain", "tree"]
    with pytest.raises(ConfigError, match="no scheme 'chain'; choose among plain, flush"):
        choose_arms(("chain",), 0.74)
