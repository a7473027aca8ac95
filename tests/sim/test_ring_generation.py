"""A whole ring over memory streams says what the model alone would say, however slow its links are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from shardp2p.coordinator.commands import Limits, Proposer
from shardp2p.coordinator.driver import open_generation
from shardp2p.coordinator.request import SPARE_ROWS
from shardp2p.runtime.draft import PromptLookup
from shardp2p.vocabulary import PeerId, SamplingParams
from shardp2p.wire.credit import INITIAL_CREDITS
from shardp2p.wire.protocols import CONTROL
from shardp2p.wire.stream import Handler, Network, Stream
from tests.support.fake_block import fake_reference
from tests.support.proposers import OracleMix, RandomWrong
from tests.support.sim_ring import COORDINATOR, SimRing, prompt, request, stage_id

SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, seed=11)
PENALISED = SamplingParams(
    temperature=0.9, top_k=20, repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=0.3, seed=5
)
SAMPLINGS = {"greedy": SamplingParams(), "sampled": SAMPLED, "penalised": PENALISED}
TOKENS = 16


def proposer(kind: str, truth: tuple[int, ...]) -> Proposer | None:
    if kind == "none":
        return None
    return {"lookup": PromptLookup(), "wrong": RandomWrong(1, 60), "oracle": OracleMix(truth, 0.8, 2)}[kind]


@asynccontextmanager
async def ring_of(count: int, **options: float) -> AsyncIterator[SimRing]:
    async with trio.open_nursery() as nursery:
        ring = SimRing(nursery, count, **options)  # type: ignore[arg-type]
        yield ring
        await ring.assert_settled()


@pytest.mark.parametrize("kind", ["none", "lookup", "wrong", "oracle"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
async def test_any_split_and_any_draft_give_the_reference(kind: str, sampling: str, autojump_clock: MockClock) -> None:
    expected = fake_reference(prompt(), TOKENS, sampling=SAMPLINGS[sampling])
    for stages, depth in ((1, 3), (2, 1), (3, 4), (4, 2)):
        async with ring_of(stages, delay_s=0.02) as ring:
            tokens, result = await ring.generate(
                request(TOKENS, sampling=SAMPLINGS[sampling]),
                proposer=proposer(kind, prompt() + expected),
                limits=Limits(max_chunks=depth, prefill_tokens=5, chunk_tokens=6, draft_tokens=4),
            )
            assert tokens == expected
            assert result.finish is not None
            assert (result.finish.reason, result.finish.tokens) == ("length", TOKENS)
            assert set(result.accounts) == set(range(stages))


async def test_a_stop_token_ends_the_answer_and_is_its_last_token(autojump_clock: MockClock) -> None:
    whole = fake_reference(prompt(), TOKENS)
    stop = whole[5]
    expected = whole[: whole.index(stop) + 1]
    async with ring_of(2) as ring:
        tokens, result = await ring.generate(
            request(TOKENS, stop_tokens=frozenset({stop})), proposer=OracleMix(prompt() + whole, 1.0, 3)
        )
        assert tokens == expected
        assert result.finish is not None
        assert (result.finish.reason, result.finish.tokens) == ("stop", len(expected))


async def test_generations_share_the_stages_without_touching_each_other(autojump_clock: MockClock) -> None:
    texts = [prompt(4 + 3 * number, seed=number) for number in range(5)]
    answers: dict[int, tuple[int, ...]] = {}
    async with ring_of(3, delay_s=0.01) as ring:

        async def run(number: int) -> None:
            sampling = list(SAMPLINGS.values())[number % 3]
            answers[number], _ = await ring.generate(
                request(TOKENS, prompt_tokens=texts[number], sampling=sampling), proposer=RandomWrong(number, 60)
            )

        async with trio.open_nursery() as running:
            for number in range(5):
                running.start_soon(run, number)
    assert answers == {
        number: fake_reference(text, TOKENS, sampling=list(SAMPLINGS.values())[number % 3])
        for number, text in enumerate(texts)
    }


async def test_rows_are_free_again_as_soon_as_the_answer_is_there(autojump_clock: MockClock) -> None:
    async with ring_of(2, cache_rows=len(prompt()) + TOKENS + SPARE_ROWS) as ring:
        for _ in range(3):  # only one fits at a time
            tokens, _ = await ring.generate(request(TOKENS))
            assert tokens == fake_reference(prompt(), TOKENS)


@pytest.mark.parametrize("delay_s", [0.0, 0.3])
async def test_narrow_windows_and_deep_pipelines_do_not_deadlock(delay_s: float, autojump_clock: MockClock) -> None:
    text = prompt(150)
    expected = fake_reference(text, TOKENS, sampling=PENALISED)
    async with ring_of(3, delay_s=delay_s, window_bytes=16) as ring:
        tokens, _ = await ring.generate(
            request(TOKENS, prompt_tokens=text, sampling=PENALISED),
            proposer=OracleMix(text + expected, 0.5, 6),
            limits=Limits(max_chunks=INITIAL_CREDITS, prefill_tokens=1, chunk_tokens=3),
        )
        assert tokens == expected


async def test_a_reader_that_takes_its_time_does_not_hold_up_the_ring(autojump_clock: MockClock) -> None:
    async with ring_of(2) as ring:
        tokens: list[int] = []
        async with open_generation(ring.network, ring.verdicts, ring.plan, request(TOKENS)) as stream:
            await trio.sleep(100)
            assert ring.held[stage_id(1)].free_cache_rows == ring.cache_rows  # done long ago
            async for batch in stream:
                tokens.extend(batch)
                await trio.sleep(10)
        assert tuple(tokens) == fake_reference(prompt(), TOKENS)
        assert stream.result.total_s < 5


class LateControl:
    """`inner`, with what goes out on control streams `late_s` late: a commit or token ids no longer overtake."""

    def __init__(self, inner: Network, late_s: float) -> None:
        self._inner = inner
        self._late_s = late_s

    @property
    def peer_id(self) -> PeerId:
        return self._inner.peer_id

    def serve(self, protocol: str, handler: Handler) -> None:
        self._inner.serve(protocol, handler)

    async def open_stream(self, peer: PeerId, protocol: str, addresses: Sequence[str] = ()) -> Stream:
        stream = await self._inner.open_stream(peer, protocol, addresses)
        return LateStream(stream, self._late_s) if protocol == CONTROL else stream


class LateStream:
    def __init__(self, inner: Stream, late_s: float) -> None:
        self._inner = inner
        self._late_s = late_s

    @property
    def peer(self) -> PeerId:
        return self._inner.peer

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.sleep(self._late_s)
        await self._inner.send_all(data)

    async def receive_some(self, max_bytes: int) -> bytes:
        return await self._inner.receive_some(max_bytes)

    async def close(self) -> None:
        await self._inner.close()

    async def reset(self) -> None:
        await self._inner.reset()


@pytest.mark.parametrize("sampling", ["greedy", "penalised"])
@pytest.mark.parametrize("late_s", [0.05, 0.4])
async def test_control_messages_that_come_late_change_nothing(
    sampling: str, late_s: float, autojump_clock: MockClock
) -> None:
    expected = fake_reference(prompt(), TOKENS, sampling=SAMPLINGS[sampling])
    async with ring_of(3) as ring:
        tokens, _ = await ring.generate(
            request(TOKENS, sampling=SAMPLINGS[sampling]),
            proposer=OracleMix(prompt() + expected, 0.6, 6),
            limits=Limits(max_chunks=6, chunk_tokens=3, prefill_tokens=4),
            network=LateControl(ring.network, late_s),
        )
        assert tokens == expected


async def test_commits_save_the_computing_of_what_is_dead(autojump_clock: MockClock) -> None:
    expected = fake_reference(prompt(), TOKENS)
    async with ring_of(4, delay_s=0.01, compute_s=0.05) as ring:
        ring.swarm.delay(COORDINATOR, stage_id(4), 0.0)
        tokens, result = await ring.generate(
            request(TOKENS), proposer=RandomWrong(3, 60), limits=Limits(max_chunks=8, chunk_tokens=2, draft_tokens=4)
        )
        assert tokens == expected
        assert sum(account.skipped_rows for account in result.accounts.values()) > 20
        first, last = result.accounts[0], result.accounts[3]
        assert first.chunks == last.chunks
        assert last.rows < first.rows
