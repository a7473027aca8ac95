"""A session that begins as an earlier one of the same asker computes only what is new, and says the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pytest
import trio
from trio.testing import MockClock

from shardp2p.errors import RemoteProtocolError
from shardp2p.stage.holding import CacheBudget
from shardp2p.vocabulary import SamplingParams, Token
from shardp2p.wire.channel import MessageChannel
from shardp2p.wire.messages import Opened
from tests.support.fake_block import fake_reference
from tests.support.sim_nodes import SimNodes, plan_of, prompt, read_all, request

RING = (("one", "0:2"), ("two", "2:4"), ("three", "4:6"))
Driver = Literal["first", "local"]
LONG = prompt(300)


def ring(nursery: trio.Nursery) -> SimNodes:
    sim = SimNodes(nursery)
    for name, layers in RING:
        sim.hold(name, layers)
    return sim


async def ask(
    sim: SimNodes,
    tokens: Sequence[Token],
    *,
    client: str = "client",
    driver: Driver = "local",
    max_tokens: int = 20,
    sampling: SamplingParams | None = None,
    shares_rows: bool = True,
    **options: object,
) -> tuple[Token, ...]:
    """The answer, which is the whole model's."""
    sampling = sampling or SamplingParams()
    asked = request(max_tokens, tokens, sampling=sampling, shares_rows=shares_rows)
    async with sim.node(client).generate(plan_of(*RING), asked, driver=driver, **options) as stream:  # type: ignore[arg-type]
        answer = await read_all(stream)
    assert answer == fake_reference(tokens, max_tokens, sampling=sampling)
    return answer


@pytest.mark.parametrize("driver", ["local", "first"])
async def test_the_same_prompt_again_computes_its_end_alone(driver: Driver, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim = ring(nursery)
        for shared in (0, 256, 256):
            await ask(sim, LONG, driver=driver)
            assert sim.take_computed_rows() == [300 - shared + 19] * 3
        await sim.assert_settled()


@pytest.mark.parametrize("draft", ["none", "lookup"])
async def test_each_turn_of_a_chat_computes_what_is_new_in_it(draft: str, autojump_clock: MockClock) -> None:
    """The last answer is shared as well, wrong drafts and all."""
    async with trio.open_nursery() as nursery:
        sim = ring(nursery)
        text = prompt(70)
        for turn in range(3):
            answer = await ask(sim, text, driver="first", max_tokens=60, draft=draft)
            computed = sim.take_computed_rows()
            if turn and draft == "none":
                assert max(computed) < 64 + 10 + 60 < len(text)
            text = (*text, *answer, *prompt(10, seed=turn))
        await sim.assert_settled()


async def test_nobody_learns_by_it_what_another_has_asked(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim = ring(nursery)
        for client, driver in (("alice", "first"), ("bob", "first"), ("alice", "local"), ("one", "local")):
            await ask(sim, LONG, client=client, driver=driver)  # type: ignore[arg-type]
            assert sim.take_computed_rows() == [319] * 3
        await ask(sim, LONG, client="bob", driver="first")
        assert sim.take_computed_rows() == [63] * 3
        await sim.assert_settled()


async def test_all_stages_begin_where_the_least_of_them_can(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim = ring(nursery)
        await ask(sim, LONG[:150])
        assert sim.node("two").held[0].served.budget.kept.size_bytes
        sim.node("two").held[0].served.budget.kept.fit(0)
        await ask(sim, LONG)
        assert sim.take_computed_rows() == [150 + 19 + 319] * 3
        await ask(sim, LONG[:200])
        assert sim.take_computed_rows() == [200 - 192 + 19] * 3
        await sim.assert_settled()


async def test_a_session_that_runs_shares_what_it_has_computed(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim = ring(nursery)
        ring_of = plan_of(*RING)
        async with sim.node("client").generate(ring_of, request(200, LONG)) as stream:
            first = await anext(stream)
            sim.take_computed_rows()
            async with sim.node("client").generate(ring_of, request(1, LONG)) as second:
                assert await read_all(second) == fake_reference(LONG, 1)
                assert second.result.shared_tokens == 256
            assert (*first, *await read_all(stream)) == fake_reference(LONG, 200)
        await sim.assert_settled()


async def test_sessions_that_begin_at_once_compute_each_for_itself(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim = ring(nursery)
        async with trio.open_nursery() as asking:
            for _ in range(3):
                asking.start_soon(ask, sim, LONG)
        await sim.assert_settled()


async def test_penalties_take_a_text_from_its_start_and_leave_it_to_others(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim = ring(nursery)
        for _ in range(2):
            await ask(sim, LONG, sampling=SamplingParams(repetition_penalty=1.2))
            assert sim.take_computed_rows() == [319] * 3
        await ask(sim, LONG, sampling=SamplingParams(temperature=0.7, seed=3))
        assert sim.take_computed_rows() == [63] * 3
        await sim.assert_settled()


@pytest.mark.parametrize("driver", ["local", "first"])
async def test_who_wants_nothing_kept_has_all_of_it_computed(driver: Driver, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim = ring(nursery)
        for shares_rows in (False, True, False):
            await ask(sim, LONG, driver=driver, shares_rows=shares_rows)
            assert sim.take_computed_rows() == [319] * 3
        await ask(sim, LONG, driver=driver)
        assert sim.take_computed_rows() == [63] * 3
        await sim.assert_settled()


async def test_a_peer_that_keeps_nothing_makes_its_rings_begin_anew(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim = ring(nursery)
        sim.node("two").keep_nothing()
        for _ in range(2):
            await ask(sim, LONG)
            assert sim.take_computed_rows() == [319] * 3
        assert sim.node("two").held[0].served.budget.kept.size_bytes == 0
        await sim.assert_settled()


async def test_what_is_kept_goes_when_a_session_needs_the_room(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim = SimNodes(nursery)
        budget = CacheBudget(8 * 2 * 1_200)  # 1,200 rows of two layers
        for name, layers in RING:
            sim.hold(name, layers, budget=budget if name == "two" else None)
        served = sim.node("two").held[0].served
        await ask(sim, LONG)  # takes 300 + 20 + 256 rows
        await ask(sim, LONG)  # fits beside
        assert sim.take_computed_rows() == [319 + 63] * 3
        assert 0 < budget.kept.size_bytes <= budget.free_bytes == budget.total_bytes
        assert served.free_cache_rows == served.cache_rows == 1_200
        async with sim.node("other").generate(plan_of(*RING), request(700, prompt(8))) as stream:
            await anext(stream)
            assert budget.kept.size_bytes == 0
        await trio.sleep(5.0)
        sim.take_computed_rows()
        await ask(sim, LONG)
        assert sim.take_computed_rows() == [319] * 3
        await sim.assert_settled()


async def test_what_is_kept_goes_with_the_layers(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim = ring(nursery)
        await ask(sim, LONG)
        [held] = sim.node("two").held
        await sim.node("two").release(held)
        assert held.served.budget.kept.size_bytes == 0
        sim.hold("two", "2:4")
        sim.take_computed_rows()
        await ask(sim, LONG)
        assert sim.take_computed_rows() == [319, 0, 319, 319]
        await sim.assert_settled()


async def test_an_answer_that_is_left_early_shares_nothing(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim = ring(nursery)
        async with sim.node("client").generate(plan_of(*RING), request(100, LONG)) as stream:
            await anext(stream)
        await trio.sleep(5.0)
        sim.take_computed_rows()
        await ask(sim, LONG)
        assert sim.take_computed_rows() == [319] * 3
        await sim.assert_settled()


async def test_a_stage_that_shares_what_was_not_offered_is_refused(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = MessageChannel.send

    async def lie(self: MessageChannel, message: object) -> None:
        if isinstance(message, Opened) and message.layers.start == 2:
            message = Opened(message.layers, message.cache_rows, 65)
        await send(self, message)  # type: ignore[arg-type]

    monkeypatch.setattr(MessageChannel, "send", lie)
    async with trio.open_nursery() as nursery:
        sim = ring(nursery)
        async with sim.node("client").generate(plan_of(*RING), request(20, LONG)) as stream:
            with pytest.raises(RemoteProtocolError, match="shares 65 rows, which was not offered"):
                await read_all(stream)
        await sim.assert_settled()
