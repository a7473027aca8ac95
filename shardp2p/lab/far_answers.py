"""What drafting gains on a real ring whose peers are far apart: a real model, prompt lookup alone, and mixed prompts.

`measure_far` is the way in. The arms take turns at every prompt, so that what else the machine does meets all of them
alike, and each answer has a proposer of its own, which knows nothing but the text. See docs/speed.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

import trio

from shardp2p.coordinator.request import GenerationRequest
from shardp2p.identity.keys import Identity
from shardp2p.lab.emulation.profile import Ways
from shardp2p.lab.far_arms import FAR_ARMS, choose_far_arms
from shardp2p.lab.far_figures import Asked, FarAnswer, FarFigures
from shardp2p.lab.far_ring import far_ring
from shardp2p.lab.local_swarm import even_splits, local_swarm
from shardp2p.lab.prompts import MIXED_PROMPTS
from shardp2p.lab.reference_process import open_reference
from shardp2p.lab.replay_drafts import Recorded, Tally, replay
from shardp2p.lab.ring_run import RingRun, run_ring
from shardp2p.node import Node, open_node
from shardp2p.runtime.draft import PromptLookup
from shardp2p.runtime.tokenizer import Tokenizer
from shardp2p.scheduler.plan import Plan
from shardp2p.scheduler.route import route
from shardp2p.vocabulary import DType, SamplingParams, Token
from shardp2p.weights.source import Progress, no_progress
from shardp2p.weights.store import StoredModel

PLAIN_SHARE: Final = 3
LEAST_PLAIN_TOKENS: Final = 24
"""Plain decoding says so much of an answer: its rate does not change on the way."""

BOUND_ROWS: Final = 1024
BOUND_LEVELS: Final = 64
"""Of drafts in a round that costs no more than a plain lap."""


SAMPLING: Final = SamplingParams(temperature=0.8, top_p=0.95)
"""What answers are sampled with, unless it is said; each prompt has a seed of its own."""


@dataclass(frozen=True, slots=True)
class FarOrder:
    """What is to be measured. `names`: of the arms beside plain. `prompts`: (kind, text).

    `sampling`: of the sampled answers beside the greedy ones; if it is greedy, there are none.
    """

    model: StoredModel
    ways: Ways
    names: Sequence[str] = ("tree",)
    rounds: int = 3
    tokens: int = 96
    seed: int = 0
    dtype: DType = "float32"
    threads: int = 1
    fast_layout: bool = False
    prompts: Sequence[tuple[str, str]] = MIXED_PROMPTS
    sampling: SamplingParams = SAMPLING


@dataclass(frozen=True, slots=True)
class _Truth:
    """What the whole model answers to a prompt."""

    prompt: tuple[Token, ...]
    sampling: SamplingParams
    answer: tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class FarResult:
    """What was measured. `bound`: tokens per lap if a lap verified all that prompt lookup knows, at no cost."""

    greedy: FarFigures
    sampled: FarFigures | None
    kinds: tuple[str, ...]
    bound: float

    def report(self) -> dict[str, Any]:
        """Medians over the rounds, in the keys of `bench wan --json`."""
        lap_s = self.greedy.lap_s("plain")
        told: dict[str, Any] = {"lap_ms": round(1e3 * lap_s, 1), "arms": self.greedy.arms()}
        told |= {"bound_tok_s": round(self.bound / lap_s, 2), "kinds": self.greedy.kinds()}
        if "tree" not in told["arms"]:
            return told
        gains = [self.greedy.prompt_gains("tree")]
        told["greedy_over_plain"] = round(self.greedy.gain("tree"), 3)
        if self.sampled is not None:
            gains.append(self.sampled.prompt_gains("tree"))
            told["sampled_arms"] = self.sampled.arms()
            told["sampled_over_plain"] = round(self.sampled.gain("tree"), 3)
        told["worst_prompt_ratio"] = round(min(map(min, gains)), 3)
        told["prompts"] = [
            {"kind": kind, "ratios": [round(ratio, 3) for ratio in ratios]}
            for kind, *ratios in zip(self.kinds, *gains, strict=True)
        ]
        return told


async def measure_far(order: FarOrder, *, data_dir: Path | None = None, progress: Progress = no_progress) -> FarResult:
    """Every arm's answers to every prompt, greedy and sampled, in each round."""
    names = choose_far_arms(order.names)
    tokenizer = Tokenizer(order.model.directory)
    truths = await _truths(order, tokenizer, data_dir, progress)
    answers: list[list[FarAnswer]] = [[] for _ in truths]
    ring = far_ring(
        order.model,
        order.ways,
        dtype=order.dtype,
        threads=order.threads,
        fast_layout=order.fast_layout,
        data_dir=data_dir,
        progress=progress,
    )
    async with ring as (node, plan):
        asker = _Asker(node, plan, tokenizer.stop_tokens, order.model.manifest.vocab_size)
        await asker.ask("plain", truths[0][0], 8)  # what happens once only is not measured
        turns = [(number, prompt) for number in range(order.rounds) for prompt in range(len(order.prompts))]
        for done, (number, prompt) in enumerate(turns):
            progress("measuring", done, len(turns))
            for way, by_prompt in enumerate(truths):
                first = (number + prompt) % len(names)
                for name in [*names[first:], *names[:first]]:
                    truth = by_prompt[prompt]
                    run, is_exact = await asker.ask(name, truth, _length(name, len(truth.answer)))
                    answers[way].append(_answer(number, prompt, name, run, is_exact))
        progress("measuring", len(turns), len(turns))
    kinds = tuple(kind for kind, _ in order.prompts)
    figures = [
        FarFigures([Asked(kind, len(one.answer)) for kind, one in zip(kinds, by_prompt, strict=True)], given)
        for by_prompt, given in zip(truths, answers, strict=True)
    ]
    return FarResult(figures[0], None if order.sampling.is_greedy else figures[1], kinds, _bound(truths[0]))


@dataclass(frozen=True, slots=True)
class _Asker:
    """Who asks a ring."""

    node: Node
    plan: Plan
    stop_tokens: frozenset[Token]
    vocab_size: int

    async def ask(self, name: str, truth: _Truth, tokens: int) -> tuple[RingRun, bool]:
        """An arm's answer of at most so many tokens, and whether it is the whole model's own."""
        arm = FAR_ARMS[name]
        request = GenerationRequest(
            truth.prompt, tokens, self.stop_tokens, sampling=truth.sampling, vocab_size=self.vocab_size
        )
        proposer = PromptLookup(sampling=truth.sampling, branches=arm.branches) if arm.branches else None
        run = await run_ring(self.node, self.plan, request, proposer=proposer, limits=arm.limits)
        return run, run.tokens == truth.answer[:tokens]


async def _truths(
    order: FarOrder, tokenizer: Tokenizer, data_dir: Path | None, progress: Progress
) -> list[list[_Truth]]:
    """What the whole model in one process answers to each prompt, greedily, and sampled."""
    prompts = [tokenizer.encode_chat([{"role": "user", "content": text}]) for _, text in order.prompts]
    done, greedy, sampled = 0, [], []

    def advance() -> None:
        nonlocal done
        done += 1
        progress("asking the whole model", done, len(prompts) * (2 - order.sampling.is_greedy))

    async def ask_greedy() -> None:
        async with open_reference(order.model.directory, order.dtype, threads=order.threads) as reference:
            for prompt in prompts:
                answer = await reference.generate(prompt, order.tokens, tokenizer.stop_tokens)
                greedy.append(_Truth(prompt, SamplingParams(), answer.tokens))
                advance()

    async def ask_sampled() -> None:
        async with _whole(order, tokenizer, data_dir) as asker:
            for number, prompt in enumerate(prompts):
                sampling = replace(order.sampling, seed=order.seed + number)
                run, _ = await asker.ask("plain", _Truth(prompt, sampling, ()), order.tokens)
                sampled.append(_Truth(prompt, sampling, run.tokens))
                advance()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask_greedy)
        if not order.sampling.is_greedy:
            nursery.start_soon(ask_sampled)
    return [greedy] if order.sampling.is_greedy else [greedy, sampled]


@asynccontextmanager
async def _whole(order: FarOrder, tokenizer: Tokenizer, data_dir: Path | None) -> AsyncIterator[_Asker]:
    """A ring of one stage: the whole model in one process, which samples as every ring does."""
    name = order.model.name if order.model.is_imported else str(order.model.directory)
    splits = even_splits(order.model.manifest.layers, 1)
    async with (
        local_swarm(name, splits, dtype=order.dtype, threads=order.threads, data_dir=data_dir) as (stage,),
        open_node(Identity.generate()) as node,
    ):
        plan = route(order.model.name, await node.members(stage.addresses[:1]))
        yield _Asker(node, plan, tokenizer.stop_tokens, order.model.manifest.vocab_size)


def _answer(number: int, prompt: int, name: str, run: RingRun, is_exact: bool) -> FarAnswer:
    lap_s = median(lap.lap_s for lap in run.by_lap[1:])  # the first is the prompt's
    return FarAnswer(number, prompt, name, len(run.tokens), run.tok_s, lap_s, is_exact)


def _length(name: str, tokens: int) -> int:
    """How much an arm says of an answer."""
    return min(tokens, max(tokens // PLAIN_SHARE, LEAST_PLAIN_TOKENS)) if name == "plain" else tokens


def _bound(truths: Sequence[_Truth]) -> float:
    """Tokens per lap if every lap verified whatever prompt lookup knows, as deep as it goes, as fast as one token."""
    total = Tally()
    for truth in truths:
        recorded = Recorded("", truth.prompt, truth.answer)
        total.add(replay(recorded, PromptLookup(), rows=BOUND_ROWS, asked_rounds=BOUND_LEVELS))
    return total.tokens_per_round
