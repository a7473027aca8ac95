"""Sessions that share a device take turns: a wide prefill holds nobody up for longer than a few chunks."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from shardp2p.coordinator.commands import Limits
from tests.support.fake_block import fake_reference
from tests.support.sim_nodes import SimNodes, plan_of, prompt, read_all, request

COMPUTE_S = 0.1
SESSIONS = 6


async def test_nobody_waits_longer_than_one_chunk_of_each_other_session(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim = SimNodes(nursery, compute_s=COMPUTE_S)
        sim.hold("one", "0:6", cache_rows=100_000)
        ring = plan_of(("one", "0:6"))
        gaps_s: list[float] = []

        async def decode(seed: int) -> None:
            asked = request(30, prompt(4, seed))
            async with sim.node("client").generate(ring, asked, limits=Limits(max_chunks=1)) as stream:
                last: float | None = None
                tokens: list[int] = []
                async for batch in stream:
                    now = trio.current_time()
                    if last is not None:
                        gaps_s.append(now - last)
                    last = now
                    tokens.extend(batch)
            assert tuple(tokens) == fake_reference(asked.prompt_tokens, 30)

        async def prefill() -> None:
            """Keeps as many chunks under way as it may."""
            asked = request(1, prompt(900))
            limits = Limits(max_chunks=32, prefill_tokens=8)
            async with sim.node("greedy").generate(ring, asked, limits=limits) as stream:
                assert await read_all(stream) == fake_reference(asked.prompt_tokens, 1)

        async with trio.open_nursery() as asking:
            asking.start_soon(prefill)
            await trio.sleep(1.0)
            for seed in range(SESSIONS):
                asking.start_soon(decode, seed)
        # A chunk of each other session, that of the prefill included, and opening and closing of sessions.
        assert max(gaps_s) <= (2 * SESSIONS + 2) * COMPUTE_S
        assert sorted(gaps_s)[len(gaps_s) // 2] <= (SESSIONS + 2) * COMPUTE_S
        await sim.assert_settled()
