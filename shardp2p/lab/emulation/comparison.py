"""The schemes side by side in simulation."""

from __future__ import annotations

import gc
import random
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

from shardp2p.lab.emulation.arms import arms, tree
from shardp2p.lab.emulation.language import VOCABULARY, Language
from shardp2p.lab.emulation.profile import Profile
from shardp2p.lab.emulation.simulation import simulate
from shardp2p.vocabulary import Token

PROMPT_TOKENS: Final = 16

BOUND_WIDTHS: Final = (4, 8, 12, 16, 24, 32)
"""Widths of chunks among which the best is looked for."""


def prompt(seed: int, number: int) -> tuple[Token, ...]:
    """The prompt of a round: every round has a text of its own."""
    return tuple(random.Random(f"{seed}/{number}").choices(range(VOCABULARY), k=PROMPT_TOKENS))


def bound_tok_s(profile: Profile, language: Language, prompt_tokens: Sequence[Token], tokens: int) -> float:
    """The best rate of the pipelined tree over all widths of chunks: for this text, and known only afterwards."""
    return max(
        simulate(profile, language, tree(width), prompt_tokens=prompt_tokens, max_tokens=tokens).tok_s
        for width in BOUND_WIDTHS
    )


def best_tok_s(
    profile: Profile, language: Language, prompts: Sequence[Sequence[Token]], tokens: int, simulated: Sequence[float]
) -> float:
    """The median of the best rates for these texts, or what a scheme reaches in simulation, where that is more."""
    return max(median(bound_tok_s(profile, language, one, tokens) for one in prompts), *simulated)


def compare_simulated(
    profile: Profile, accept: float, *, names: Sequence[str], rounds: int, tokens: int, seed: int = 0
) -> dict[str, Any]:
    """Medians over `rounds` answers of `tokens` tokens, in the keys of `bench wan --json`.

    `coordinator_ms` besides: the CPU time that the generation machine takes for a token here, in milliseconds.
    """
    language, chosen = Language(accept, seed), arms(accept)
    prompts = [prompt(seed, number) for number in range(rounds)]
    gc.freeze()  # walking through what is here by now would count as the coordinator's work
    told = {}
    for name in names:
        runs = [simulate(profile, language, chosen[name], prompt_tokens=one, max_tokens=tokens) for one in prompts]
        rates = [run.tok_s for run in runs]
        told[name] = {
            "tok_s": round(median(rates), 2),
            "tok_s_min": round(min(rates), 2),
            "tok_s_max": round(max(rates), 2),
            "accepted_per_lap": round(median(rates) * profile.plain_lap_s, 2),
            "coordinator_ms": round(median(1e3 * run.coordinator_s / len(run.tokens) for run in runs), 2),
            "exact": all(
                run.tokens == language.continuation(one, tokens) for run, one in zip(runs, prompts, strict=True)
            ),
        }
    bound = best_tok_s(profile, language, prompts, tokens, [arm["tok_s"] for arm in told.values()])
    return {
        "profile": profile.name,
        "runtime": "simulated",
        "accept": accept,
        "lap_ms": round(1e3 * profile.plain_lap_s, 1),
        "arms": told,
    } | against({name: arm["tok_s"] for name, arm in told.items()}, bound)


def against(tok_s: Mapping[str, float], bound: float) -> dict[str, Any]:
    """`bound_tok_s`, and `tree_over`: how many times as fast as each other scheme the tree is, and as the bound."""
    told: dict[str, Any] = {"bound_tok_s": round(bound, 2)}
    if "tree" in tok_s:
        others = {name: rate for name, rate in tok_s.items() if name != "tree"} | {"bound": bound}
        told["tree_over"] = {name: round(tok_s["tree"] / rate, 3) for name, rate in others.items() if rate}
    return told
