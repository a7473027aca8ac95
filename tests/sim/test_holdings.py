"""What a peer holds comes and goes: a budget that is shared, sessions that finish, and an end that is bounded."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from shardp2p.errors import ConfigError, OverloadedError, PeerUnavailableError, ShardError
from shardp2p.stage.holding import CacheBudget
from tests.support.fake_block import fake_reference
from tests.support.sim_nodes import SimNodes, plan_of, prompt, read_all, request

WHOLE = plan_of(("one", "0:6"))


async def test_blocks_on_one_device_share_its_memory(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim = SimNodes(nursery)
        budget = CacheBudget(8 * 6 * 700)  # 700 rows of six layers of 8 bytes
        sim.hold("one", "0:3", budget=budget)
        sim.hold("one", "3:6", budget=budget)
        halves = plan_of(("one", "0:3"), ("one", "3:6"))
        assert [held.served.free_cache_rows for held in sim.node("one").held] == [1_400, 1_400]
        async with sim.node("client").generate(halves, request(400)) as stream:
            await anext(stream)
            taken_rows = 12 + 400 + 256
            assert [held.served.free_cache_rows for held in sim.node("one").held] == [1_400 - 2 * taken_rows] * 2
            async with sim.node("client").generate(halves, request()) as second:
                with pytest.raises(OverloadedError, match="64 of 1400 are free; try again in some seconds"):
                    await read_all(second)
        await sim.assert_settled()


async def test_released_layers_take_nobody_new_and_let_those_that_run_finish(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim = SimNodes(nursery, compute_s=0.1)
        held = sim.hold("one", "0:6")
        async with trio.open_nursery() as releasing:
            async with sim.node("client").generate(WHOLE, request(100)) as stream:
                tokens = [*(await anext(stream))]
                releasing.start_soon(sim.node("one").release, held)
                await trio.sleep(0.5)
                async with sim.node("client").generate(WHOLE, request()) as second:
                    with pytest.raises(PeerUnavailableError, match="takes no new sessions"):
                        await read_all(second)
                tokens.extend(await read_all(stream))
            assert tuple(tokens) == fake_reference(prompt(), 100)
        assert sim.node("one").held == ()
        await sim.assert_settled()


async def test_a_release_that_is_cancelled_ends_what_runs_with_a_reason(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim = SimNodes(nursery, compute_s=0.1)
        held = sim.hold("one", "0:6")
        errors: list[ShardError] = []

        async def ask() -> None:
            try:
                async with sim.node("client").generate(WHOLE, request(900)) as stream:
                    await read_all(stream)
            except ShardError as error:
                errors.append(error)

        async with trio.open_nursery() as asking:
            asking.start_soon(ask)
            await trio.sleep(1.0)
            started = trio.current_time()
            with trio.move_on_after(5.0):
                await sim.node("one").release(held)
            assert trio.current_time() - started < 9.0
        assert [(type(error), error.peer) for error in errors] == [(PeerUnavailableError, "one")]
        assert "lets go of the layers 0:6" in errors[0].message
        assert sim.node("one").held == ()
        await sim.assert_settled()


async def test_what_is_left_is_served_after_a_release(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim = SimNodes(nursery)
        held = sim.hold("one", "0:3")
        sim.hold("one", "0:6")
        await sim.node("one").release(held)
        async with sim.node("client").generate(WHOLE, request(), driver="first") as stream:
            assert await read_all(stream) == fake_reference(prompt(), 24)
        await sim.assert_settled()


async def test_layers_across_two_held_ranges_are_no_stage(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim = SimNodes(nursery)
        sim.hold("one", "0:3")
        sim.hold("one", "2:6")
        async with sim.node("client").generate(WHOLE, request()) as stream:
            with pytest.raises(ConfigError, match="the layers asked for is 0:6; this stage serves 0:3 and 2:6"):
                await read_all(stream)
        await sim.assert_settled()
