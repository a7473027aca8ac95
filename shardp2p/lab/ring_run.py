"""One answer of a ring, timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from shardp2p.coordinator.commands import Limits, Proposer
from shardp2p.coordinator.request import GenerationRequest, Lap
from shardp2p.errors import LocalProtocolError
from shardp2p.node import Node
from shardp2p.scheduler.plan import Plan
from shardp2p.vocabulary import Token


@dataclass(frozen=True, slots=True)
class RingRun:
    """An answer and how it came.

    tok_s    tokens per second after the first batch of them; 0 when there was only one batch
    ttft_s   from the request until the first token, the opening of the session included
    laps     verdicts that carried choices, the prompt's own included
    by_lap   every lap, in order
    stages   how many peers the ring has
    overheads_s
             of each stage, what a chunk took it at the mean beside computing, from when it is taken up until its result
             is with the connection
    """

    tokens: tuple[Token, ...]
    tok_s: float
    ttft_s: float
    laps: int
    by_lap: tuple[Lap, ...]
    stages: int
    overheads_s: tuple[float, ...] = ()

    @property
    def accepted_per_lap(self) -> float:
        """Tokens of the answer per lap: 1 without drafts."""
        return len(self.tokens) / self.laps

    def hop_overheads_s(self) -> list[float]:
        """What each lap of the answer took beside computing, per hop; the prompt's laps are left out.

        A lap of n stages has n + 1 hops: to the first stage, between stages, and back from the last.
        """
        answer = self.by_lap[-(self.laps - 1) :] if self.laps > 1 else ()
        return [(lap.lap_s - lap.compute_s) / (self.stages + 1) for lap in answer]


async def run_ring(
    node: Node,
    plan: Plan,
    request: GenerationRequest,
    *,
    proposer: Proposer | None = None,
    limits: Limits | None = None,
    on_tokens: Callable[[Sequence[Token]], None] | None = None,
) -> RingRun:
    """Generate an answer over the ring of `plan`, all of it anew, handing on the tokens as they are committed."""
    tokens: list[Token] = []
    request = replace(request, shares_rows=False)
    async with node.generate(plan, request, proposer=proposer, limits=limits) as stream:
        async for batch in stream:
            tokens.extend(batch)
            if on_tokens is not None:
                on_tokens(batch)
    result = stream.result
    if result.finish is None or result.ttft_s is None:
        raise LocalProtocolError("a generation ended without an end")
    return RingRun(
        tokens=tuple(tokens),
        tok_s=stream.tok_s,
        ttft_s=result.ttft_s,
        laps=result.finish.laps,
        by_lap=tuple(result.laps),
        stages=len(plan.stages),
        overheads_s=tuple(one.overhead_s / one.chunks for one in result.accounts.values() if one.chunks),
    )
