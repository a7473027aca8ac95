"""Many sessions over one ring of real processes: what they gain together, and how long one holds up another.

`measure_sessions` is the way in. Every answer is decoded plainly and read as it comes, so that each token's time is
known; figures of one run are compared with each other and never with those of another.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import trio

from shardp2p.coordinator.request import SPARE_ROWS, GenerationRequest
from shardp2p.errors import ConfigError
from shardp2p.identity.keys import Identity
from shardp2p.lab.children import open_children
from shardp2p.lab.local_swarm import StageProcess, even_splits, local_swarm
from shardp2p.lab.prompts import OPEN_PROMPTS
from shardp2p.lab.session_figures import Prefill, Queue, Together, together
from shardp2p.node import Node, open_node
from shardp2p.runtime.tokenizer import Tokenizer
from shardp2p.scheduler.plan import Plan
from shardp2p.scheduler.route import route
from shardp2p.vocabulary import DType, Token, WireScheme
from shardp2p.weights.source import Progress, no_progress
from shardp2p.weights.store import StoredModel
from shardp2p.wire.messages import Closed

WAIT_S: Final = 600.0
"""How long a client of the queue may wait: none is to be declined."""

QUEUED_ANSWERS: Final = 4
"""Of each client of the queue, one after the other: how evenly they come is seen while all ask for more."""

SHARE_ROWS: Final = 2048
"""Of a stage's cache for each session that is to fit: the long prompt fits, too."""

QUESTION_TOKENS: Final = 256
"""More than any of the questions has, and the rows that are spare."""

BEFORE_TOKENS: Final = 24
"""What a session says undisturbed before a prompt comes beside it: its usual pace."""

BESIDE_TOKENS: Final = 600
"""More than it says while a prompt is computed; it is ended when that is."""


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be measured. `round_trip_s` lies between any two peers.

    `queued`: so many clients at once ask for a ring that has room for `sessions` of them; 0 leaves that out.
    """

    model: StoredModel
    sessions: int = 8
    queued: int = 0
    tokens: int = 48
    rounds: int = 3
    stages: int = 3
    prompt_tokens: int = 1500
    dtype: DType = "bfloat16"
    threads: int = 1
    round_trip_s: float = 0.0
    wire_scheme: WireScheme = "raw"


def check_lengths(model: StoredModel, tokens: int, prompt_tokens: int) -> None:
    """Raises: ConfigError when the model does not take so many tokens, where options are named."""
    most = model.manifest.context_tokens
    for option, value, beside in (("--prompt-tokens", prompt_tokens, 1), ("--tokens", tokens, QUESTION_TOKENS)):
        if value > most - beside:
            raise ConfigError(f"{option} is {value}; {model.name} takes {most} in all, so at most {most - beside} here")


@dataclass(frozen=True, slots=True)
class Said:
    """An answer. `times` has when each token came, by trio's clock; `laps_s` how long each lap took."""

    tokens: tuple[Token, ...]
    times: tuple[float, ...]
    ttft_s: float
    laps_s: tuple[float, ...]
    accounts: dict[int, Closed]


@dataclass(frozen=True, slots=True)
class SessionsResult:
    """What was measured, round by round."""

    rounds: tuple[tuple[Together, Prefill], ...]
    queue: Queue | None

    def report(self) -> dict[str, Any]:
        """Medians over the rounds, and of gaps the worst."""
        at_once, prefills = [one for one, _ in self.rounds], [one for _, one in self.rounds]
        return {
            "one_tok_s": round(median(one.alone_tok_s for one in at_once), 2),
            "all_tok_s": round(median(one.together_tok_s for one in at_once), 2),
            "ratio": round(median(one.ratio for one in at_once), 3),
            "identical": all(one.is_identical for one in at_once),
            "fairness": round(min(one.fairness for one in at_once), 4),
            "gap_usual_ms": round(1e3 * median(one.usual_gap_s for one in prefills), 2),
            "gap_beside_ms": round(1e3 * median(one.median_gap_s for one in prefills), 2),
            "gap_longest_ms": round(1e3 * median(one.longest_gap_s for one in prefills), 2),
            "gap_ratio": round(median(one.gap_ratio for one in prefills), 3),
            "ttft_s": round(median(one.ttft_s for one in prefills), 3),
            "ttft_bound_s": round(median(one.bound_s for one in prefills), 3),
            "ttft_ratio": round(median(one.ttft_ratio for one in prefills), 3),
            "ttft_beside_s": round(median(one.ttft_beside_s for one in prefills), 3),
            **({} if self.queue is None else self.queue.report()),
        }


async def measure_sessions(
    order: Order, *, data_dir: Path | None = None, progress: Progress = no_progress
) -> SessionsResult:
    """Measure, after one round that is not counted: what happens once only is none of it."""
    async with AsyncExitStack() as stack:
        ring = await stack.enter_async_context(_open_ring(order, data_dir, progress))
        await ring.run_round(0, order.sessions)
        measured = []
        for number in range(order.rounds):
            progress("measuring", number, order.rounds)
            measured.append(await ring.run_round(number, order.sessions))
        progress("measuring", order.rounds, order.rounds)
        queue = await ring.run_queue() if order.queued else None
    return SessionsResult(tuple(measured), queue)


@asynccontextmanager
async def _open_ring(order: Order, data_dir: Path | None, progress: Progress) -> AsyncIterator[_Ring]:
    model = order.model
    name = model.name if model.is_imported else str(model.directory)
    splits = even_splits(model.manifest.layers, order.stages)
    rows = min(SHARE_ROWS, model.manifest.context_tokens)
    async with AsyncExitStack() as stack:
        swarm = local_swarm(
            name, splits, dtype=order.dtype, threads=order.threads, cache_rows=rows * order.sessions, data_dir=data_dir,
            progress=progress,
        )  # fmt: skip
        stages = await stack.enter_async_context(swarm)
        addresses = await stack.enter_async_context(_far_away(stages, order.round_trip_s))
        node = await stack.enter_async_context(open_node(Identity.generate()))
        members = await node.members(addresses)
        yield _Ring(node, route(model.name, members), Tokenizer(model.directory), order, rows)


@asynccontextmanager
async def _far_away(stages: Sequence[StageProcess], round_trip_s: float) -> AsyncIterator[tuple[str, ...]]:
    """Where the stages are found at that distance: each by way of a port that takes its time."""
    if not round_trip_s:
        yield tuple(stage.addresses[0] for stage in stages)
        return
    ports = [[int(stage.addresses[0].split("/")[4]), round_trip_s / 2, round_trip_s / 2] for stage in stages]
    async with open_children() as children:
        delays = await children.start("the delays", [sys.executable, "-P", "-m", "shardp2p.lab.emulation.delays"])
        await delays.write_line(json.dumps(ports).encode())
        found = json.loads(await delays.read_line())
        yield tuple(f"/ip4/127.0.0.1/tcp/{port}/p2p/{stage.peer_id}" for port, stage in zip(found, stages, strict=True))


@dataclass(frozen=True, slots=True)
class _Ring:
    """A ring that stands ready, and who asks it. `share_rows`: what a session takes if so many are to fit at once."""

    node: Node
    plan: Plan
    tokenizer: Tokenizer
    order: Order
    share_rows: int

    async def run_round(self, number: int, sessions: int) -> tuple[Together, Prefill]:
        return await self._at_once(number, sessions), await self._prefill(number)

    async def run_queue(self) -> Queue:
        """More clients than there is room for, each asking again, until the first has all its answers."""
        arrived = [0] * self.order.queued
        waited_s: list[float] = []
        began = trio.current_time()
        async with trio.open_nursery() as nursery:

            async def ask(client: int) -> None:
                prompt = self._question(client)
                most = self.share_rows - SPARE_ROWS - len(prompt)  # as long as fills a share; it is not read to its end
                request = GenerationRequest(prompt, most, wait_s=WAIT_S, wire_scheme=self.order.wire_scheme)
                for _ in range(QUEUED_ANSWERS):
                    asked_at, read = trio.current_time(), 0
                    async with self.node.generate(self.plan, request, driver="first") as stream:
                        async for batch in stream:
                            if not read:
                                waited_s.append(trio.current_time() - asked_at)
                            read += len(batch)
                            arrived[client] += len(batch)
                            if read >= self.order.tokens:
                                break
                nursery.cancel_scope.cancel()

            for client in range(self.order.queued):
                nursery.start_soon(ask, client)
        return Queue(tuple(arrived), max(waited_s), trio.current_time() - began)

    async def _at_once(self, number: int, sessions: int) -> Together:
        prompts = [self._question(number * sessions + at) for at in range(sessions)]
        alone = [await self._ask(prompt, self.order.tokens) for prompt in prompts]
        at_once: dict[int, Said] = {}

        async def ask(at: int) -> None:
            at_once[at] = await self._ask(prompts[at], self.order.tokens)

        async with trio.open_nursery() as nursery:
            for at in range(sessions):
                nursery.start_soon(ask, at)
        answers = [at_once[at] for at in range(sessions)]
        is_identical = all(one.tokens == other.tokens for one, other in zip(alone, answers, strict=True))
        return together([one.times for one in alone], [one.times for one in answers], is_identical=is_identical)

    async def _prefill(self, number: int) -> Prefill:
        """A long prompt, first alone and then beside a session."""
        long_prompt = self._long_prompt(number)
        alone = await self._ask(long_prompt, 1)
        times: list[float] = []
        beside: list[Said] = []
        began = ended = 0.0
        async with trio.open_nursery() as nursery:
            has_pace = trio.Event()

            async def decode() -> None:
                await self._ask(self._question(number), BESIDE_TOKENS, times, has_pace)

            nursery.start_soon(decode)
            await has_pace.wait()
            began = trio.current_time()
            beside.append(await self._ask(long_prompt, 1))
            ended = beside[0].times[0]
            nursery.cancel_scope.cancel()
        lap_s = median(times[at + 1] - times[at] for at in range(2, BEFORE_TOKENS - 1))
        return Prefill.of(
            times,
            began=began,
            ended=ended,
            ttft_s=alone.ttft_s,
            ttft_beside_s=beside[0].ttft_s,
            accounts=[alone.accounts[at] for at in sorted(alone.accounts)],
            lap_s=lap_s,
        )

    async def _ask(
        self,
        prompt: tuple[Token, ...],
        tokens: int,
        times: list[float] | None = None,
        has_pace: trio.Event | None = None,
    ) -> Said:
        """Asks and reads; `times` is filled as tokens come, and `has_pace` set after BEFORE_TOKENS."""
        times = [] if times is None else times
        said: list[Token] = []
        request = GenerationRequest(prompt, tokens, wire_scheme=self.order.wire_scheme, shares_rows=False)
        async with self.node.generate(self.plan, request) as stream:
            async for batch in stream:
                said.extend(batch)
                times.extend([trio.current_time()] * len(batch))
                if has_pace is not None and len(times) >= BEFORE_TOKENS:
                    has_pace.set()
        result = stream.result
        laps_s = tuple(lap.lap_s for lap in result.laps)
        return Said(tuple(said), tuple(times), result.ttft_s or 0.0, laps_s, result.accounts)

    def _question(self, number: int) -> tuple[Token, ...]:
        question = f"{OPEN_PROMPTS[number % len(OPEN_PROMPTS)]} Think of number {number}."
        return self.tokenizer.encode_chat([{"role": "user", "content": question}])

    def _long_prompt(self, number: int) -> tuple[Token, ...]:
        words = " ".join(f"{prompt} ({number}.{at})" for at in range(400) for prompt in OPEN_PROMPTS)
        return self.tokenizer.encode(words)[: self.order.prompt_tokens]
