"""What drafting gains over a wide-area ring: every scheme in turn over one emulated ring, beside a simulation.

Real are the processes, the peers, their streams, the messages and every decision; emulated are the layers, the draft,
and the ways between the peers. See docs/speed.md.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from shardp2p.coordinator.request import GenerationRequest
from shardp2p.lab.emulation.arms import arms
from shardp2p.lab.emulation.comparison import against, best_tok_s, prompt
from shardp2p.lab.emulation.draft import EmulatedDraft
from shardp2p.lab.emulation.language import Language
from shardp2p.lab.emulation.profile import Profile
from shardp2p.lab.emulation.ring import emulated_ring
from shardp2p.lab.emulation.simulation import simulate
from shardp2p.lab.ring_run import run_ring
from shardp2p.vocabulary import Token
from shardp2p.weights.source import Progress, no_progress

PLAIN_SHARE: Final = 4
"""Plain decoding answers in so many times fewer tokens: its rate does not change on the way."""

PROBE_TOKENS: Final = 16
"""So few where it is not asked for: its laps alone tell what a hop takes beside its way."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One answer of one arm, to the text of a round."""

    number: int
    tokens: tuple[Token, ...]
    tok_s: float
    lap_s: float
    hop_s: float
    overheads_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class WanResult:
    """Every arm's answers, what the simulation says of the same texts, and the best rate that it finds for them.

    It is told what a hop took beside its way (`hop_s`), as plain decoding in the same run shows (`plain_lap_s`).
    """

    profile: str
    accept: float
    rounds: dict[str, list[Measured]]
    is_exact: dict[str, bool]
    plain_lap_s: float
    hop_s: float
    simulated_tok_s: dict[str, float]
    bound_tok_s: float

    def report(self) -> dict[str, Any]:
        """Medians over the rounds, in the keys of `bench wan --json`."""
        told: dict[str, dict[str, Any]] = {}
        for name, measured in self.rounds.items():
            rates = [one.tok_s for one in measured]
            told[name] = {
                "tok_s": round(median(rates), 2),
                "tok_s_min": round(min(rates), 2),
                "tok_s_max": round(max(rates), 2),
                "accepted_per_lap": round(median(rates) * self.plain_lap_s, 2),
                "exact": self.is_exact[name],
                "stage_overhead_ms": _overhead_ms(measured),
                "simulated_tok_s": round(self.simulated_tok_s[name], 2),
            }
        return {
            "profile": self.profile,
            "runtime": "emulated",
            "accept": self.accept,
            "lap_ms": round(1e3 * self.plain_lap_s, 1),
            "hop_ms": round(1e3 * self.hop_s, 2),
            "arms": told,
        } | against({name: arm["tok_s"] for name, arm in told.items()}, self.bound_tok_s)


async def measure_wan(
    profile: Profile,
    accept: float,
    *,
    names: Sequence[str],
    rounds: int,
    tokens: int,
    seed: int = 0,
    progress: Progress = no_progress,
) -> WanResult:
    """`rounds` answers of `tokens` tokens by each of the arms, in turn; each round has a text of its own."""
    language, chosen = Language(accept, seed), arms(accept)
    measured: dict[str, list[Measured]] = {name: [] for name in dict.fromkeys(("plain", *names))}
    lengths = {name: tokens // PLAIN_SHARE if name == "plain" else tokens for name in names}
    async with emulated_ring(profile, accept, seed) as (node, plan):
        for number in range(rounds):
            order, first = [*measured], number % len(measured)
            for name in [*order[first:], *order[:first]]:
                progress(f"round {number + 1}: {name}", number, rounds)
                arm, length = chosen[name], lengths.get(name, PROBE_TOKENS)
                request = GenerationRequest(prompt(seed, number), length)
                draft = EmulatedDraft(language, profile.draft_level_s, arm.guesses) if arm.limits.draft_tokens else None
                gc.freeze()  # what is here by now would be walked through in the middle of the answer
                run = await run_ring(node, plan, request, proposer=draft, limits=arm.limits)
                lap_s, hop_s = median(lap.lap_s for lap in run.by_lap), median(run.hop_overheads_s())
                measured[name].append(Measured(number, run.tokens, run.tok_s, lap_s, hop_s, run.overheads_s))
    # Only now: whoever computes for long does not answer its peers.
    texts = [prompt(seed, number) for number in range(rounds)]
    hop_s = _hop_s(profile, measured["plain"])
    simulated, is_exact, ring = {}, {}, profile.slowed(hop_s)
    for name in names:
        progress(f"simulating {name}", 0, 0)
        length = lengths[name]
        runs = [simulate(ring, language, chosen[name], prompt_tokens=text, max_tokens=length) for text in texts]
        simulated[name] = median(run.tok_s for run in runs)
        said = [language.continuation(text, length) for text in texts]
        is_exact[name] = all(list(one.tokens) == said[one.number] for one in measured[name])
    bound = best_tok_s(ring, language, texts, tokens, [*simulated.values()])
    lap_s = median(one.lap_s for one in measured["plain"])
    told = {name: measured[name] for name in names}
    return WanResult(profile.name, accept, told, is_exact, lap_s, hop_s, simulated, bound)


def _overhead_ms(measured: Sequence[Measured]) -> float | None:
    """A stage's own part of a hop; None where no stage told what it did in time."""
    overheads_s = [value for one in measured for value in one.overheads_s]
    return round(1e3 * median(overheads_s), 3) if overheads_s else None


def _hop_s(profile: Profile, plain: Sequence[Measured]) -> float:
    """What a hop took beside its way, by plain decoding."""
    way_s = profile.hops_s / (len(profile.stages) + 1)
    return max(0.0, median(one.hop_s for one in plain) - way_s)
