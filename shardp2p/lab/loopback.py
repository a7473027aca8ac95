"""A ring on this machine against the whole model in one process, and against itself with prompt lookup.

The arms take turns within each round, so that what else the machine does meets all of them alike; medians of the
rounds' own ratios are reported. Each arm's processes stand by, blocked, while another one computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from shardp2p.coordinator.commands import Limits
from shardp2p.coordinator.request import GenerationRequest
from shardp2p.identity.keys import Identity
from shardp2p.lab.local_swarm import even_splits, local_swarm
from shardp2p.lab.prompts import OPEN_PROMPTS, REPEAT_PROMPTS
from shardp2p.lab.reference_process import ReferenceProcess, open_reference
from shardp2p.lab.ring_run import RingRun, run_ring
from shardp2p.node import Node, open_node
from shardp2p.runtime.draft import PromptLookup
from shardp2p.runtime.tokenizer import Tokenizer
from shardp2p.scheduler.plan import Plan
from shardp2p.scheduler.route import route
from shardp2p.vocabulary import DType, Token
from shardp2p.weights.source import Progress, no_progress
from shardp2p.weights.store import StoredModel


@dataclass(frozen=True, slots=True)
class Round:
    """One turn of every arm: two of them on an open prompt, two on one that asks for a repetition."""

    single_tok_s: float
    ring: RingRun
    is_identical: bool
    plain: RingRun
    lookup: RingRun


@dataclass(frozen=True, slots=True)
class LoopbackResult:
    """What was measured, round by round."""

    rounds: tuple[Round, ...]

    def report(self) -> dict[str, Any]:
        """Medians over the rounds; hop overheads over every lap of the plain arm but the prompts'."""
        rounds = self.rounds
        hops_ms = [1e3 * value for one in rounds for value in one.ring.hop_overheads_s()]
        return {
            "single_tok_s": round(median(one.single_tok_s for one in rounds), 2),
            "ring_tok_s": round(median(one.ring.tok_s for one in rounds), 2),
            "ratio": round(median(one.ring.tok_s / one.single_tok_s for one in rounds), 3),
            "identical": all(one.is_identical for one in rounds),
            "hop_overhead_ms_p50": round(median(hops_ms), 3),
            "hop_overhead_ms_p99": round(quantiles(hops_ms, n=100, method="inclusive")[-1], 3),
            "repeat_tok_s": round(median(one.plain.tok_s for one in rounds), 2),
            "lookup_tok_s": round(median(one.lookup.tok_s for one in rounds), 2),
            "lookup_ratio": round(median(one.lookup.tok_s / one.plain.tok_s for one in rounds), 3),
            "lookup_accepted_per_lap": round(median(one.lookup.accepted_per_lap for one in rounds), 3),
        }


@dataclass(frozen=True, slots=True)
class _Arms:
    """What stands ready to be asked."""

    reference: ReferenceProcess
    node: Node
    plan: Plan
    tokenizer: Tokenizer
    tokens: int

    async def ask_ring(self, prompt: Sequence[Token], *, uses_lookup: bool) -> RingRun:
        request = GenerationRequest(tuple(prompt), self.tokens)
        if uses_lookup:
            return await run_ring(self.node, self.plan, request, proposer=PromptLookup(), limits=Limits(max_chunks=1))
        return await run_ring(self.node, self.plan, request, limits=Limits(max_chunks=1))

    def encode(self, prompt: str) -> tuple[Token, ...]:
        return self.tokenizer.encode_chat([{"role": "user", "content": prompt}])


async def measure_loopback(
    model: StoredModel,
    *,
    rounds: int,
    tokens: int,
    dtype: DType = "bfloat16",
    stages: int = 2,
    threads: int = 0,
    data_dir: Path | None = None,
    progress: Progress = no_progress,
) -> LoopbackResult:
    """Measure `rounds` rounds of `tokens` tokens an arm. Every answer runs to its full length, past stop tokens."""
    name = str(model.directory) if not model.is_imported else model.name
    splits = even_splits(model.manifest.layers, stages)
    async with AsyncExitStack() as stack:
        swarm = local_swarm(name, splits, dtype=dtype, threads=threads, data_dir=data_dir, progress=progress)
        peers = await stack.enter_async_context(swarm)
        progress("loading the whole model in one process", 0, 0)
        reference = await stack.enter_async_context(open_reference(model.directory, dtype, threads=threads))
        node = await stack.enter_async_context(open_node(Identity.generate()))
        members = await node.members([address for peer in peers for address in peer.addresses])
        arms = _Arms(reference, node, route(model.name, members), Tokenizer(model.directory), tokens)
        await _run_round(arms, 0)  # what happens once only is not measured
        measured = []
        for number in range(rounds):
            progress("measuring", number, rounds)
            measured.append(await _run_round(arms, number))
        progress("measuring", rounds, rounds)
    return LoopbackResult(tuple(measured))


async def _run_round(arms: _Arms, number: int) -> Round:
    """Each pair of arms on one prompt; which of the two begins alternates."""
    open_prompt = arms.encode(OPEN_PROMPTS[number % len(OPEN_PROMPTS)])
    repeat_prompt = arms.encode(REPEAT_PROMPTS[number % len(REPEAT_PROMPTS)])
    if number % 2:
        ring = await arms.ask_ring(open_prompt, uses_lookup=False)
        single = await arms.reference.generate(open_prompt, arms.tokens)
        lookup = await arms.ask_ring(repeat_prompt, uses_lookup=True)
        plain = await arms.ask_ring(repeat_prompt, uses_lookup=False)
    else:
        single = await arms.reference.generate(open_prompt, arms.tokens)
        ring = await arms.ask_ring(open_prompt, uses_lookup=False)
        plain = await arms.ask_ring(repeat_prompt, uses_lookup=False)
        lookup = await arms.ask_ring(repeat_prompt, uses_lookup=True)
    return Round(single.tok_s, ring, ring.tokens == single.tokens, plain, lookup)
