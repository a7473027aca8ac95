"""Requests that wait for room on a ring get it in the order of asking; all others are declined at once."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from shardp2p.errors import OverloadedError
from tests.support.fake_block import fake_reference
from tests.support.sim_nodes import SimNodes, plan_of, prompt, read_all, request

RING = (("one", "0:3"), ("two", "3:6"))
ROWS = 12 + 24 + 256
"""What a request takes: its prompt, its answer, and room for dead rows."""


def small_ring(nursery: trio.Nursery, sessions: int = 2) -> SimNodes:
    sim = SimNodes(nursery, compute_s=0.01)
    for name, layers in RING:
        sim.hold(name, layers, cache_rows=sessions * ROWS)
    return sim


@pytest.mark.parametrize("driver", ["local", "first"])
async def test_those_who_wait_are_answered_in_order_and_exactly(driver: str, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim = small_ring(nursery)
        client = sim.node("client")
        done: list[int] = []

        async def ask(seed: int) -> None:
            asked = request(24, prompt(12, seed), wait_s=600.0)
            async with client.generate(plan_of(*RING), asked, driver=driver) as stream:  # type: ignore[arg-type]
                assert await read_all(stream) == fake_reference(asked.prompt_tokens, 24)
            done.append(seed)

        async with trio.open_nursery() as asking:
            for seed in range(10):
                asking.start_soon(ask, seed)
                await trio.sleep(0.01)
        assert sorted(done) == list(range(10))
        # Two run at once, and either may end first.
        assert all(abs(seed - at) <= 1 for at, seed in enumerate(done))
        await sim.assert_settled()


@pytest.mark.parametrize("driver", ["local", "first"])
async def test_who_does_not_wait_is_declined_at_once(driver: str, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim = small_ring(nursery, 1)
        client, ring = sim.node("client"), plan_of(*RING)
        async with client.generate(ring, request(24, prompt(12)), driver=driver) as first:  # type: ignore[arg-type]
            await anext(first)
            another = request(24, prompt(12))
            started = trio.current_time()
            with pytest.raises(OverloadedError, match="cache rows"):
                async with client.generate(ring, another, driver=driver) as stream:  # type: ignore[arg-type]
                    await read_all(stream)
            assert trio.current_time() - started < 0.1
        await sim.assert_settled()


async def test_nobody_waits_longer_than_allowed_behind_whom_it_may_be(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim = small_ring(nursery, 1)
        client, ring = sim.node("client"), plan_of(*RING)
        too_large = request(ROWS, prompt(12), wait_s=5.0)  # never fits
        behind = request(24, prompt(12), wait_s=3.0)
        ended: list[tuple[str, float]] = []

        async def ask(name: str, asked: object) -> None:
            with pytest.raises(OverloadedError):
                async with client.generate(ring, asked) as stream:  # type: ignore[arg-type]
                    await read_all(stream)
            ended.append((name, round(trio.current_time(), 1)))

        started = trio.current_time()
        async with trio.open_nursery() as asking:
            asking.start_soon(ask, "too large", too_large)
            await trio.sleep(0.01)
            asking.start_soon(ask, "behind", behind)
        assert [name for name, _ in ended] == ["behind", "too large"]
        assert ended[0][1] - started == pytest.approx(3.0, abs=0.2)
        assert ended[1][1] - started == pytest.approx(5.0, abs=0.2)
        await sim.assert_settled()


async def test_who_leaves_the_line_makes_room_in_it(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim = small_ring(nursery, 1)
        client, ring = sim.node("client"), plan_of(*RING)
        with trio.move_on_after(2.0):
            async with client.generate(ring, request(ROWS, prompt(12), wait_s=60.0), driver="first") as stream:
                await read_all(stream)
        started = trio.current_time()
        async with client.generate(ring, request(24, prompt(12), wait_s=60.0), driver="first") as stream:
            assert await read_all(stream) == fake_reference(prompt(12), 24)
        assert trio.current_time() - started < 5.0
        await sim.assert_settled()
