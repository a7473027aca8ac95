"""A peer dies, a link breaks or the client leaves at any moment: the right one is blamed, and nothing is left."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from shardp2p.coordinator.commands import Limits
from shardp2p.coordinator.driver import open_generation
from shardp2p.errors import PeerUnavailableError
from tests.support.fake_block import fake_reference
from tests.support.proposers import OracleMix
from tests.support.sim_ring import COORDINATOR, SimRing, prompt, request, stage_id, tripwire

STAGES = 3
MAX_TOKENS = 5
PROMPT = prompt(7)
LIMITS = Limits(max_chunks=2, prefill_tokens=4, chunk_tokens=4, draft_tokens=3)
EXPECTED = fake_reference(PROMPT, MAX_TOKENS)
PROPOSER = OracleMix(PROMPT + EXPECTED, 0.6, 4)
NAMED_WITHIN_S = 6.0


@asynccontextmanager
async def ring_of_three() -> AsyncIterator[SimRing]:
    async with trio.open_nursery() as nursery:
        yield SimRing(nursery, STAGES, delay_s=0.01)


async def generate(ring: SimRing) -> tuple[int, ...]:
    tokens, _ = await ring.generate(request(MAX_TOKENS, prompt_tokens=PROMPT), proposer=PROPOSER, limits=LIMITS)
    return tokens


async def outcome(ring: SimRing) -> tuple[int, ...] | PeerUnavailableError:
    try:
        return await generate(ring)
    except PeerUnavailableError as error:
        return error


async def sends_of_a_whole_generation() -> int:
    async with ring_of_three() as ring:
        with tripwire() as wire:
            await generate(ring)
            return wire.count


@pytest.mark.parametrize("victim", [1, 2, 3])
async def test_a_stage_killed_at_any_message_is_named_and_the_others_serve_on(
    victim: int, autojump_clock: MockClock
) -> None:
    named = 0
    count = await sends_of_a_whole_generation()
    for at in range(count):
        async with ring_of_three() as ring:
            started = trio.current_time()
            with tripwire() as wire:
                wire.set(at, lambda at=at, ring=ring: ring.swarm.kill(stage_id(victim), reads_as_end=at % 2 == 0))
                result = await outcome(ring)
            if isinstance(result, PeerUnavailableError):
                named += 1
                assert result.peer == stage_id(victim), f"message {at}"
                assert f"stage {victim} of 3 (layers {ring.ranges[victim - 1]}" in result.message
            else:
                assert result == EXPECTED  # it died when the answer was there already
            assert trio.current_time() - started < NAMED_WITHIN_S
            await ring.assert_settled()
            ring.start_stage(victim)
            assert await generate(ring) == EXPECTED
    assert named > count // 2


async def test_a_cut_link_is_blamed_on_one_of_its_ends(autojump_clock: MockClock) -> None:
    for at in range(0, await sends_of_a_whole_generation(), 3):
        async with ring_of_three() as ring:
            with tripwire() as wire:
                wire.set(at, lambda ring=ring: ring.swarm.cut(stage_id(1), stage_id(2), noticed_after_s=3.0))
                result = await outcome(ring)
            if isinstance(result, PeerUnavailableError):
                assert result.peer in (stage_id(1), stage_id(2)), f"message {at}"
            else:
                assert result == EXPECTED
            await ring.assert_settled()
            ring.swarm.mend(stage_id(1), stage_id(2))
            assert await generate(ring) == EXPECTED


async def test_a_coordinator_killed_at_any_message_leaves_nothing_on_the_stages(autojump_clock: MockClock) -> None:
    for at in range(await sends_of_a_whole_generation()):
        async with ring_of_three() as ring:
            with tripwire() as wire:
                wire.set(at, lambda ring=ring: ring.swarm.kill(COORDINATOR))
                with ring.network.life():
                    await generate(ring)
            await ring.assert_settled()


async def test_a_generation_cancelled_at_any_message_leaves_nothing(autojump_clock: MockClock) -> None:
    cancelled = 0
    for at in range(await sends_of_a_whole_generation()):
        async with ring_of_three() as ring:
            with tripwire() as wire, trio.CancelScope() as scope:
                wire.set(at, scope.cancel)
                await generate(ring)
            cancelled += scope.cancelled_caught
            await ring.assert_settled()
            assert await generate(ring) == EXPECTED
    assert cancelled > 20


async def test_a_generation_cancelled_at_any_time_leaves_nothing(autojump_clock: MockClock) -> None:
    rng = random.Random(8)
    cancelled = 0
    for _ in range(60):
        async with ring_of_three() as ring:
            with trio.move_on_after(rng.uniform(0.0, 1.2)) as scope:
                await generate(ring)
            cancelled += scope.cancelled_caught
            await ring.assert_settled()
    assert cancelled > 20


@pytest.mark.parametrize("taken", [0, 1, 2])
async def test_a_client_that_leaves_early_frees_the_stages(taken: int, autojump_clock: MockClock) -> None:
    async with ring_of_three() as ring:
        seen: list[int] = []
        async with open_generation(ring.network, ring.verdicts, ring.plan, request(24)) as stream:
            while len(seen) < taken:
                seen.extend(await anext(stream))
        assert stream.result.finish is None
        assert tuple(seen) == fake_reference(prompt(), 24)[: len(seen)]
        await ring.assert_settled()


async def fail_in_the_body(ring: SimRing) -> None:
    async with open_generation(ring.network, ring.verdicts, ring.plan, request(24)) as stream:
        async for _ in stream:
            raise ValueError("the client's own")


async def wait_too_long(ring: SimRing) -> None:
    with trio.fail_after(0.2):
        async with open_generation(ring.network, ring.verdicts, ring.plan, request(24)):
            await trio.sleep_forever()


async def test_the_body_of_a_generation_keeps_its_own_exceptions(autojump_clock: MockClock) -> None:
    async with ring_of_three() as ring:
        with pytest.raises(ValueError, match="the client's own"):
            await fail_in_the_body(ring)
        with pytest.raises(trio.TooSlowError):
            await wait_too_long(ring)
        await ring.assert_settled()


async def test_tokens_that_came_before_a_failure_are_given_first(autojump_clock: MockClock) -> None:
    async with ring_of_three() as ring:
        seen: list[int] = []

        async def read_on() -> None:
            async for batch in stream:
                seen.extend(batch)

        async with open_generation(ring.network, ring.verdicts, ring.plan, request(24)) as stream:
            seen.extend(await anext(stream))
            await trio.sleep(0.3)
            ring.swarm.kill(stage_id(2))
            await trio.sleep(1.0)
            with pytest.raises(PeerUnavailableError, match="stage 2 of 3"):
                await read_on()
        assert len(seen) > 1
        assert tuple(seen) == fake_reference(prompt(), 24)[: len(seen)]
        await ring.assert_settled()


async def test_a_coordinator_that_leaves_while_the_next_stage_is_dialled_frees_the_rows(
    autojump_clock: MockClock,
) -> None:
    async with ring_of_three() as ring:
        ring.swarm.delay(stage_id(1), stage_id(2), 20.0)  # a dial takes four of these
        with trio.move_on_after(0.5):
            await generate(ring)
        await trio.sleep(1.0)
        assert {held.free_cache_rows for held in ring.held.values()} == {ring.cache_rows}
        await trio.sleep(100)
        await ring.assert_settled()
