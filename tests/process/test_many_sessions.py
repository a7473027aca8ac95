"""Many requests at once over one ring of real nodes: each answer is exact, whatever the others do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from torch import Tensor

from shardp2p.coordinator.commands import Limits
from shardp2p.coordinator.request import GenerationRequest
from shardp2p.errors import OverloadedError
from shardp2p.identity.keys import Identity
from shardp2p.node import Node, open_node
from shardp2p.runtime.block import Block
from shardp2p.runtime.cache import RowBatch, RowCache
from shardp2p.runtime.packing import Part
from shardp2p.runtime.reference import Reference
from shardp2p.scheduler.plan import Plan
from shardp2p.vocabulary import LayerRange, Token
from tests.support.live_ring import live_ring, run
from tests.support.models import tiny_llama

TOKENS = 48
HANG_S = 120.0
ROWS = 16_384


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def reference(tiny: Path) -> Reference:
    return Reference(tiny)


def asked(seed: int, tokens: int = TOKENS) -> GenerationRequest:
    return GenerationRequest(tuple(3 + (seed * 31 + at * at * 7) % 250 for at in range(20 + 9 * seed)), tokens)


async def test_six_requests_at_once_are_exact_though_one_client_dies_and_one_reads_slowly(
    tiny: Path, reference: Reference
) -> None:
    answers: dict[int, tuple[Token, ...]] = {}

    async def ask(client: Node, plan: Plan, number: int) -> None:
        driver = "first" if number % 2 else "local"
        limits = Limits(max_chunks=1 + number, prefill_tokens=8)
        answers[number], _ = await run(
            client, plan, asked(number), limits=limits, driver=driver, draft="lookup" if number > 2 else "none"
        )

    async def ask_reduced(client: Node, plan: Plan) -> None:
        tokens, _ = await run(client, plan, replace(asked(1), wire_scheme="int8"), driver="first")
        assert len(tokens) == TOKENS

    async def read_slowly(client: Node, plan: Plan) -> None:
        tokens: list[Token] = []
        async with client.generate(plan, asked(6), driver="first") as stream:
            async for batch in stream:
                tokens.extend(batch)
                await trio.sleep(0.02)
        answers[6] = tuple(tokens)

    async def die(plan: Plan, driver: str) -> None:
        async with (
            open_node(Identity.generate()) as doomed,
            doomed.generate(plan, asked(7, 400), driver=driver) as stream,  # type: ignore[arg-type]
        ):
            await anext(stream)
            raise RuntimeError("dies")

    async def die_quietly(plan: Plan, driver: str) -> None:
        with pytest.raises(RuntimeError, match="dies"):
            await die(plan, driver)

    with trio.fail_after(HANG_S):
        async with live_ring(tiny, (LayerRange(0, 3), LayerRange(3, 6)), cache_rows=ROWS) as (client, plan):
            async with trio.open_nursery() as nursery:
                for number in range(6):
                    nursery.start_soon(ask, client, plan, number)
                nursery.start_soon(read_slowly, client, plan)
                nursery.start_soon(ask_reduced, client, plan)
                nursery.start_soon(die_quietly, plan, "first")
                nursery.start_soon(die_quietly, plan, "local")
            members = await client.members([address for stage in plan.stages for address in stage.addresses])
            with trio.fail_after(10.0):  # what the dead left behind goes by itself
                while any(member.info.free_cache_rows < ROWS for member in members):
                    await trio.sleep(0.05)
                    members = await client.members([a for stage in plan.stages for a in stage.addresses])
    for number in range(7):
        expected = reference.generate(asked(number).prompt_tokens, TOKENS).tokens
        assert answers[number] == expected, number


async def test_a_ring_of_cut_ranges_and_one_peer_twice_is_exact(tiny: Path, reference: Reference) -> None:
    expected = reference.generate(asked(1).prompt_tokens, TOKENS).tokens
    with trio.fail_after(HANG_S):
        async with live_ring(tiny, (LayerRange(0, 4), LayerRange(1, 6))) as (client, plan):
            one, other = plan.stages
            cuts = ((one, 0, 2), (other, 2, 3), (one, 3, 4), (other, 4, 6))
            stages = tuple(replace(stage, layers=LayerRange(start, stop)) for stage, start, stop in cuts)
            for driver in ("local", "first"):
                tokens, _ = await run(client, replace(plan, stages=stages), asked(1), driver=driver)
                assert tokens == expected


async def test_what_has_no_room_is_declined_at_once(tiny: Path) -> None:
    with trio.fail_after(HANG_S):
        async with (
            live_ring(tiny, (LayerRange(0, 6),), cache_rows=500) as (client, plan),
            client.generate(plan, asked(0, 200), driver="first") as stream,
        ):
            await anext(stream)
            with pytest.raises(OverloadedError, match="cache rows are asked for and 24 of 500 are free"):
                await run(client, plan, asked(0, 200), driver="first")


async def test_sessions_at_once_share_forwards_and_are_exact(
    tiny: Path, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    forward_many = Block.forward_many

    def watched(block: Block, parts: Sequence[Part]) -> list[Tensor]:
        sizes.append(len(parts))
        return forward_many(block, parts)

    monkeypatch.setattr(Block, "forward_many", watched)
    answers: dict[int, tuple[Token, ...]] = {}

    async def ask(client: Node, plan: Plan, number: int) -> None:
        limits = Limits(max_chunks=1 + number % 3, prefill_tokens=8)
        draft = ("none", "lookup")[number % 2]
        answers[number], _ = await run(client, plan, asked(number), limits=limits, driver="first", draft=draft)

    with trio.fail_after(HANG_S):
        async with (
            live_ring(tiny, (LayerRange(0, 3), LayerRange(3, 6)), cache_rows=ROWS) as (client, plan),
            trio.open_nursery() as nursery,
        ):
            for number in range(6):
                nursery.start_soon(ask, client, plan, number)
    for number in range(6):
        assert answers[number] == reference.generate(asked(number).prompt_tokens, TOKENS).tokens, number
    packed = [size for size in sizes if size > 1]
    assert len(packed) > TOKENS
    assert sum(packed) > sum(sizes) / 2


@pytest.mark.parametrize("driver", ["local", "first"])
async def test_a_chat_computes_what_is_new_in_each_turn_and_is_exact(
    driver: str, tiny: Path, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = 0
    prepare = Block.prepare

    def counting(self: Block, inputs: Tensor, cache: RowCache, rows: RowBatch) -> Part:
        nonlocal computed
        computed += len(rows.parents)
        return prepare(self, inputs, cache, rows)

    monkeypatch.setattr(Block, "prepare", counting)
    with trio.fail_after(HANG_S):
        async with live_ring(tiny, (LayerRange(0, 3), LayerRange(3, 6)), cache_rows=ROWS) as (client, plan):
            text = asked(32).prompt_tokens[:300]
            rows = []
            for turn in range(3):
                computed = 0
                answer, _ = await run(client, plan, GenerationRequest(text, 40), driver=driver)
                rows.append(computed // 2)
                assert answer == reference.generate(text, 40).tokens
                text = (*text, *answer, *asked(turn).prompt_tokens[:10]) if turn else text
    assert rows == [300 + 39, 300 - 256 + 39, 350 - 320 + 39]
