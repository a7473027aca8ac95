"""The memory of a session's cache is free when the session is over, and not when Python's collector comes by."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Literal

import pytest
import trio
from trio.testing import MockClock

from shardp2p.errors import OverloadedError, PeerUnavailableError, RemoteProtocolError
from shardp2p.stage.holding import CacheBudget
from tests.support.fake_block import VOCABULARY, FakeBlock, FakeCache, fake_reference
from tests.support.sim_nodes import SimNodes, plan_of, prompt, read_all, request

RING = (("one", "0:2"), ("two", "2:4"), ("three", "4:6"))
LONG = prompt(300)
ROW_BYTES = 8 * 2


class Caches:
    """Those of stages that are there, and the most rows that they had together."""

    def __init__(self) -> None:
        self.alive: weakref.WeakSet[FakeCache] = weakref.WeakSet()
        self.most_rows = 0

    def make(self, capacity_rows: int) -> FakeCache:
        cache = FakeCache(capacity_rows)
        self.alive.add(cache)
        self.most_rows = max(self.most_rows, sum(each.capacity_rows for each in self.alive))
        return cache


@pytest.fixture
def caches(monkeypatch: pytest.MonkeyPatch) -> Iterator[Caches]:
    """Counted, while the collector of circles stands still."""
    counted, new_cache = Caches(), FakeBlock.new_cache
    monkeypatch.setattr(
        FakeBlock,
        "new_cache",
        lambda block, rows: counted.make(rows) if len(block.layers) == 2 else new_cache(block, rows),
    )
    gc.collect()
    gc.disable()
    yield counted
    gc.enable()


@pytest.mark.parametrize("driver", ["local", "first"])
@pytest.mark.parametrize("end", ["complete", "left", "client dies", "two", "three", "refused"])
async def test_nothing_is_left_of_a_cache_however_its_session_ended(
    caches: Caches, end: str, driver: Literal["local", "first"], autojump_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        sim = SimNodes(nursery)
        for name, layers in RING:
            sim.hold(name, layers, cache_rows=10 if (end, name) == ("refused", "three") else 2_000)
        asked = request(50, LONG, shares_rows=end != "complete")
        try:
            async with sim.node("client").generate(plan_of(*RING), asked, driver=driver) as stream:
                await anext(stream)
                match end:
                    case "complete":
                        await read_all(stream)
                    case "client dies":
                        sim.swarm.kill("client")
                    case "two" | "three":
                        sim.swarm.kill(end)
                        await read_all(stream)
        except PeerUnavailableError:
            assert end in ("two", "three")
        except OverloadedError:
            assert end == "refused"
        await sim.assert_settled()
        assert caches.most_rows >= 600
        assert not caches.alive


async def test_a_cache_that_has_to_go_for_the_session_that_would_share_it_is_gone_first(
    caches: Caches, autojump_clock: MockClock
) -> None:
    rows = 1_200
    async with trio.open_nursery() as nursery:
        sim = SimNodes(nursery)
        ring = (("two", "0:2"), ("three", "2:6"))
        sim.hold("two", "0:2", budget=CacheBudget(ROW_BYTES * rows))
        sim.hold("three", "2:6", cache_rows=4_000)
        for tokens in (20, 500):  # 576 rows, then 1,056: not both
            async with sim.node("client").generate(plan_of(*ring), request(tokens, LONG)) as stream:
                assert await read_all(stream) == fake_reference(LONG, tokens)
                assert stream.result.shared_tokens == 0
        assert 1_056 <= caches.most_rows <= rows
        await sim.assert_settled()


async def test_what_is_kept_goes_with_the_room_for_it(caches: Caches, autojump_clock: MockClock) -> None:
    """Also that of a session whose client dies as Close comes or a little before."""
    async with trio.open_nursery() as nursery:
        sim = SimNodes(nursery)
        for name, layers in RING:
            sim.hold(name, layers)
        for name, _ in RING:
            sim.swarm.delay("client", name, 0.05)
        async with sim.node("client").generate(plan_of(*RING), request(20, LONG)) as stream:
            await read_all(stream)
            await trio.sleep(0.05)
            sim.swarm.kill("client")
        await sim.assert_settled()
        kept = [sim.node(name).held[0].served.budget.kept for name, _ in RING]
        assert len(caches.alive) == sum(map(len, kept))
        for each in kept:
            each.fit(0)
        assert not caches.alive


@pytest.mark.parametrize("end", ["left", "client dies"])
async def test_nothing_is_left_of_a_prompt_that_ends_between_its_parts(
    caches: Caches, end: str, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes in parts because another session decodes beside it."""
    monkeypatch.setattr("shardp2p.stage.slicing.MOST_STRETCH", 0.0)  # parts of LEAST_ROWS, however fast this machine
    monkeypatch.setattr("shardp2p.stage.packer.DECODING_S", 600.0)
    async with trio.open_nursery() as nursery:
        sim = SimNodes(nursery)
        for name, layers in RING:
            sim.hold(name, layers)
        beside = request(600, prompt(12), shares_rows=False)
        asked = request(50, LONG, shares_rows=False)
        async with sim.node("beside").generate(plan_of(*RING), beside, driver="local") as decoding:
            await anext(decoding)
            own = len(caches.alive)
            with trio.CancelScope() as scope:
                async with sim.node("client").generate(plan_of(*RING), asked, driver="local"):
                    sim.take_computed_rows()
                    for _ in range(1_000):
                        if sim.blocks[0].computed_rows >= 40:
                            break
                        await trio.sleep(0.001)
                    assert 40 <= sim.blocks[0].computed_rows < 100
                    assert len(caches.alive) == 2 * own
                    if end == "client dies":
                        sim.swarm.kill("client")
                    scope.cancel()
            await trio.sleep(1)
            assert decoding.result.finish is None
            assert len(caches.alive) == own
        await sim.assert_settled()
        assert not caches.alive


async def test_nothing_is_left_of_a_session_whose_chunk_makes_no_sense(
    caches: Caches, autojump_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        sim = SimNodes(nursery)
        for name, layers in RING:
            sim.hold(name, layers)
        asked = request(50, (*LONG, VOCABULARY), shares_rows=False)
        with pytest.raises(RemoteProtocolError, match="outside the vocabulary"):
            async with sim.node("client").generate(plan_of(*RING), asked, driver="local") as stream:
                await read_all(stream)
        await sim.assert_settled()
        assert caches.most_rows
        assert not caches.alive
