"""A generation that the first stage's peer drives: exact, over when its client leaves, and in nobody's way."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio
from trio.testing import MockClock

from shardp2p.coordinator.commands import Limits
from shardp2p.coordinator.driver import LAP_S, LAP_TOKEN_S, OPEN_S
from shardp2p.coordinator.remote import LATER_SILENCE_S, SILENCE_S
from shardp2p.coordinator.remote_service import FAREWELL_S, MAX_DRIVEN_PER_CLIENT, REQUEST_S, SIGN_S, STALL_S
from shardp2p.errors import (
    ConfigError,
    OverloadedError,
    PeerUnavailableError,
    RemoteProtocolError,
    ShardError,
)
from shardp2p.vocabulary import LayerRange, PeerId, SamplingParams
from shardp2p.wire.channel import open_channel
from shardp2p.wire.codec import encode
from shardp2p.wire.driving import Batch, Finished, Generate, RingStage, Working
from shardp2p.wire.messages import Failure, Message
from shardp2p.wire.protocols import GENERATE
from shardp2p.wire.stream import Stream
from tests.support.fake_block import fake_reference
from tests.support.sim_nodes import DIGEST, MODEL, SimNodes, plan_of, prompt, read_all, request

RING = (("one", "0:2"), ("two", "2:4"), ("three", "4:6"))
HANGS_S = 5_000.0


def ring_of_three(nursery: trio.Nursery, *, compute_s: float = 0.01) -> SimNodes:
    sim = SimNodes(nursery, compute_s=compute_s)
    for name, layers in RING:
        sim.hold(name, layers)
    return sim


def message(**changes: object) -> Generate:
    stages = tuple(RingStage(PeerId(name), (), LayerRange.parse(layers)) for name, layers in RING)
    usual: dict[str, object] = {"prompt_tokens": prompt(), "max_tokens": 24, "max_chunks": 2, "prefill_tokens": 8}
    return Generate(MODEL, DIGEST, "float32", 1_000, stages, **(usual | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("draft", ["none", "lookup"])
@pytest.mark.parametrize(
    "sampling", [SamplingParams(), SamplingParams(temperature=0.9, repetition_penalty=1.2, seed=7)]
)
async def test_the_answer_is_the_whole_models(draft: str, sampling: SamplingParams, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim = ring_of_three(nursery)
        asked = request(sampling=sampling, stop_tokens=frozenset({59}))
        client = sim.node("client")
        async with client.generate(plan_of(*RING), asked, driver="first", draft=draft) as stream:  # type: ignore[arg-type]
            tokens = await read_all(stream)
        assert tokens == fake_reference(prompt(), 24, sampling=sampling, stop_tokens=frozenset({59}))
        finish = stream.result.finish
        assert finish is not None
        assert (finish.reason, finish.tokens) == ("stop" if tokens[-1] == 59 else "length", len(tokens))
        assert finish.laps == len(stream.result.laps)
        assert stream.result.ttft_s is not None
        assert stream.tok_s > 0
        await sim.assert_settled()


@pytest.mark.parametrize("driver", ["local", "first"])
async def test_all_stages_are_told_how_rows_are_sent(driver: str, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim = ring_of_three(nursery)
        asked = request(wire_scheme="fp16")
        async with sim.node("client").generate(plan_of(*RING), asked, driver=driver) as stream:  # type: ignore[arg-type]
            tokens = await read_all(stream)
        assert tokens != fake_reference(prompt(), 24)  # its numbers have more bits than a half
        assert stream.result.finish is not None
        await sim.assert_settled()


async def test_a_lap_does_not_pay_for_the_way_to_the_client(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim = ring_of_three(nursery)
        for name, _ in RING:
            sim.swarm.delay("client", name, 1.0)
        took_s = {}
        for driver in ("local", "first"):
            started = trio.current_time()
            async with sim.node("client").generate(plan_of(*RING), request(), driver=driver) as stream:
                assert await read_all(stream) == fake_reference(prompt(), 24)
            took_s[driver] = trio.current_time() - started
        assert took_s["local"] > 24 * 2.0
        assert took_s["first"] < 15.0
        await sim.assert_settled()


async def test_one_peer_may_be_several_stages_and_the_coordinator(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim = SimNodes(nursery)
        sim.hold("one", "0:2")
        sim.hold("one", "4:6")
        sim.hold("two", "2:4")
        ring = plan_of(("one", "0:2"), ("two", "2:4"), ("one", "4:6"))
        for asker, driver in (("one", "local"), ("client", "first"), ("client", "local"), ("two", "local")):
            async with sim.node(asker).generate(ring, request(), driver=driver) as stream:  # type: ignore[arg-type]
                assert await read_all(stream) == fake_reference(prompt(), 24)
        await sim.assert_settled()


async def test_a_ring_may_be_cut_from_overlapping_ranges(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim = SimNodes(nursery)
        sim.hold("one", "0:4")
        sim.hold("two", "1:6")
        sim.hold("all", "0:6")
        for stages in (
            (("one", "0:1"), ("two", "1:6")),
            (("one", "0:4"), ("two", "4:6")),
            (("one", "0:2"), ("two", "2:3"), ("one", "3:4"), ("all", "4:5"), ("two", "5:6")),
            (("all", "0:3"), ("all", "3:6")),
        ):
            async with sim.node("client").generate(plan_of(*stages), request(), driver="first") as stream:
                assert await read_all(stream) == fake_reference(prompt(), 24)
        await sim.assert_settled()


@pytest.mark.parametrize("how", ["leaves", "dies"])
async def test_a_client_that_goes_away_ends_the_work_at_once(how: str, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim = ring_of_three(nursery, compute_s=0.1)

        async def read_some() -> None:
            with sim.network("client").life():
                async with sim.node("client").generate(plan_of(*RING), request(900), driver="first") as stream:
                    async for _ in stream:
                        if how == "leaves":
                            break

        async with trio.open_nursery() as reading:
            reading.start_soon(read_some)
            await trio.sleep(5.0)
            if how == "dies":
                assert sim.node("one").driven == 1
                sim.swarm.kill("client")
        await trio.sleep(0.5)
        assert sim.node("one").driven == 0
        assert [sim.node(name).held[0].served.sessions for name, _ in RING] == [0, 0, 0]
        await sim.assert_settled()


@pytest.mark.parametrize("lost", ["one", "two", "three"])
async def test_a_peer_that_dies_is_named_the_moment_it_happens(lost: str, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim = ring_of_three(nursery, compute_s=0.1)
        errors: list[ShardError] = []

        async def read() -> None:
            try:
                async with sim.node("client").generate(plan_of(*RING), request(900), driver="first") as stream:
                    await read_all(stream)
            except ShardError as error:
                errors.append(error)

        async with trio.open_nursery() as reading:
            reading.start_soon(read)
            await trio.sleep(5.0)
            started = trio.current_time()
            sim.swarm.kill(lost)
        assert trio.current_time() - started < 1.0
        [error] = errors
        assert isinstance(error, PeerUnavailableError)
        assert error.peer == lost
        number = [name for name, _ in RING].index(lost) + 1
        assert error.message.startswith(f"stage {number} of 3 (layers {dict(RING)[lost]}, peer {lost})")
        await sim.assert_settled()


async def test_a_stage_that_declines_is_named_with_its_reason(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim = SimNodes(nursery)
        sim.hold("one", "0:3")
        sim.hold("two", "3:6", cache_rows=100)
        ring = plan_of(("one", "0:3"), ("two", "3:6"))
        async with sim.node("client").generate(ring, request(), driver="first") as stream:
            with pytest.raises(OverloadedError, match=r"stage 2 of 2 .* of 100 are free; ask for fewer tokens"):
                await read_all(stream)
        await sim.assert_settled()


async def test_generations_of_one_client_are_bounded_at_once(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim = SimNodes(nursery, compute_s=0.1)
        sim.hold("one", "0:6", cache_rows=100_000)
        ring = plan_of(("one", "0:6"))

        async def read() -> None:
            async with sim.node("client").generate(ring, request(400), driver="first") as stream:
                await read_all(stream)

        async with trio.open_nursery() as reading:
            for _ in range(MAX_DRIVEN_PER_CLIENT):
                reading.start_soon(read)
            await trio.sleep(5.0)
            started = trio.current_time()
            async with sim.node("client").generate(ring, request(), driver="first") as stream:
                with pytest.raises(OverloadedError, match="drives 32 generations already"):
                    await read_all(stream)
            assert trio.current_time() - started <= FAREWELL_S
            async with sim.node("another").generate(ring, request(), driver="first") as stream:
                assert await read_all(stream) == fake_reference(prompt(), 24)
            reading.cancel_scope.cancel()
        await sim.assert_settled()


async def test_a_ring_that_is_none_of_the_drivers_is_refused(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim = ring_of_three(nursery)
        sim.hold("stranger", "0:6")
        stream = await sim.network("client").open_stream(PeerId("stranger"), GENERATE)
        async with open_channel(stream, GENERATE) as channel:
            await channel.send(message())
            answer = await channel.receive()
            assert isinstance(answer, Failure)
            assert (answer.status, answer.message[:36]) == ("config", "this peer is no stage of the ring; a")
        await sim.assert_settled()


async def test_a_client_that_says_more_than_its_request_is_refused(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim = ring_of_three(nursery, compute_s=1.0)
        stream = await sim.network("client").open_stream(PeerId("one"), GENERATE)
        async with open_channel(stream, GENERATE) as channel:
            await channel.send(message())
            await channel.send(message())
            while isinstance(answer := await channel.receive(), Batch):
                pass
            assert isinstance(answer, Failure)
            assert answer.status == "protocol"
        await sim.assert_settled()


async def test_a_stream_without_a_request_is_let_go(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim = ring_of_three(nursery)
        stream = await sim.network("client").open_stream(PeerId("one"), GENERATE)
        async with open_channel(stream, GENERATE) as channel:
            answer = await channel.receive()
            assert isinstance(answer, Failure)
            assert trio.current_time() == pytest.approx(REQUEST_S)
        await sim.assert_settled()


async def test_a_client_that_reads_nothing_holds_up_nobody_and_is_given_up(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim = SimNodes(nursery, window_bytes=64)
        for name, layers in RING:
            sim.hold(name, layers)
        stream = await sim.network("sleeper").open_stream(PeerId("one"), GENERATE)
        async with open_channel(stream, GENERATE) as channel:
            await channel.send(message())
            started = trio.current_time()
            async with sim.node("client").generate(plan_of(*RING), request(), driver="first") as answer:
                assert await read_all(answer) == fake_reference(prompt(), 24)
            assert trio.current_time() - started < 10.0
            await trio.sleep(5.0)
            assert sim.node("one").driven == 1
            assert [held.served.sessions for name, _ in RING for held in sim.node(name).held] == [0, 0, 0]
            await trio.sleep(STALL_S + 5.0)
            assert sim.node("one").driven == 0
            with pytest.raises(PeerUnavailableError):
                await channel.receive()
        await sim.assert_settled()


async def test_a_slow_reader_gets_every_token(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim = SimNodes(nursery, window_bytes=64)
        sim.hold("one", "0:6")
        tokens: list[int] = []
        async with sim.node("client").generate(plan_of(("one", "0:6")), request(300), driver="first") as stream:
            async for batch in stream:
                tokens.extend(batch)
                await trio.sleep(1.0)
        assert tuple(tokens) == fake_reference(prompt(), 300)
        await sim.assert_settled()


@pytest.mark.parametrize("waits", ["in its prompt", "for room"])
async def test_a_driver_that_takes_long_is_waited_for(waits: str, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim = SimNodes(nursery, compute_s=OPEN_S - 2.0 if waits == "in its prompt" else 1.0)
        sim.hold("one", "0:6", cache_rows=400)
        ring = plan_of(("one", "0:6"))

        async def take_the_room() -> None:
            async with sim.node("another").generate(ring, request(5 * int(SILENCE_S)), driver="local") as stream:
                await read_all(stream)

        if waits == "for room":
            nursery.start_soon(take_the_room)
            await trio.sleep(1.0)
        started = trio.current_time()
        asked = request(3, wait_s=10 * SILENCE_S)
        async with sim.node("client").generate(ring, asked, driver="first") as stream:
            assert await read_all(stream) == fake_reference(prompt(), 3)
        assert trio.current_time() - started > 4 * SILENCE_S
        await sim.assert_settled()


@pytest.mark.parametrize(
    ("signs", "tokens", "after_s", "text"),
    [
        (0, 0, SILENCE_S, "gave no sign of life for 15 s"),
        (0, 1, LATER_SILENCE_S, "gave no sign of life for 45 s"),
        (1_000, 0, OPEN_S + 2 * LAP_S + len(prompt()) * LAP_TOKEN_S, "no token came from it for 282 s"),
    ],
)
async def test_a_driver_that_says_nothing_is_given_up(
    signs: int, tokens: int, after_s: float, text: str, autojump_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        sim = SimNodes(nursery)

        async def say_little(stream: Stream) -> None:
            async with open_channel(stream, GENERATE) as channel:
                await channel.receive()
                if tokens:
                    await channel.send(Batch((1,) * tokens))
                with suppress(PeerUnavailableError):
                    for _ in range(signs):
                        await channel.send(Working())
                        await trio.sleep(SIGN_S)
                    await channel.receive()

        sim.network("one").serve(GENERATE, say_little)
        async with sim.node("client").generate(plan_of(*RING), request(), driver="first") as stream:
            with pytest.raises(PeerUnavailableError, match=text) as caught:
                await read_all(stream)
        assert caught.value.peer == "one"
        assert trio.current_time() == pytest.approx(after_s, abs=0.1)
        await sim.assert_settled()


LIES: dict[str, tuple[list[Message | bytes], str]] = {
    "too many tokens": ([Batch((1,) * 25)], "more than the 24 tokens"),
    "a false count": ([Batch((1, 2)), Finished("stop", 3, 1, 0.0, 0.0)], "sent 2 tokens and says 3"),
    "no token at all": ([Finished("length", 0, 1, 0.0, 0.0)], "ended the answer without a token"),
    "an end too early": ([Batch((1,)), Finished("length", 1, 1, 0.0, 0.0)], "by 'length' after 1 of 24 tokens"),
    "a stop without a stop token": ([Batch((1,)), Finished("stop", 1, 1, 0.0, 0.0)], "the last of them no stop"),
    "a length with a stop token": ([Batch((59,)), Finished("length", 1, 1, 0.0, 0.0)], "the last of them a stop"),
    "tokens behind a stop token": ([Batch((1, 59, 2))], "went on behind a stop token"),
    "a batch behind a stop token": ([Batch((59,)), Batch((2,))], "went on behind a stop token"),
    "an unknown token": ([Batch((60,))], "sent token 60, and the model has 60 tokens"),
    "a request": ([Batch((1,)), message()], "sent Generate as the answer"),
    "garbage": ([b"\x63garbage"], "broke"),
}


@pytest.mark.parametrize("what", LIES)
async def test_a_driver_that_breaks_the_protocol_is_named(what: str, autojump_clock: MockClock) -> None:
    messages, text = LIES[what]
    async with trio.open_nursery() as nursery:
        sim = SimNodes(nursery)

        async def lie(stream: Stream) -> None:
            for item in messages:
                await stream.send_all(item if isinstance(item, bytes) else encode(GENERATE, item))
            await trio.sleep(5.0)

        sim.network("one").serve(GENERATE, lie)
        asked = request(stop_tokens=frozenset({59}), vocab_size=60)
        async with sim.node("client").generate(plan_of(*RING), asked, driver="first") as stream:
            with pytest.raises(RemoteProtocolError, match=text) as caught:
                await read_all(stream)
        assert caught.value.peer == "one"
        await sim.assert_settled()


REPORTS = {
    "of itself": (None, "x" * 2_000, "stage 1 of 3 (layers 0:2, peer one), which drives the request: x"),
    "of a stage": ("two", "x" * 2_000, "stage 2 of 3 (layers 2:4, peer two): x"),
    "of a stage by name": ("two", "stage 2 of 3 (layers 2:4, peer two) went away", "peer two) went away"),
    "of a stranger": ("stranger", "x" * 2_000, "stage 1 of 3 (layers 0:2, peer one), which drives the request: x"),
}


@pytest.mark.parametrize("what", REPORTS)
async def test_a_long_report_is_clipped(what: str, autojump_clock: MockClock) -> None:
    blamed, text, shown = REPORTS[what]
    async with trio.open_nursery() as nursery:
        sim = SimNodes(nursery)

        async def fail(stream: Stream) -> None:
            report = Failure("unavailable", text, None if blamed is None else PeerId(blamed))
            await stream.send_all(encode(GENERATE, report))
            await trio.sleep(5.0)

        sim.network("one").serve(GENERATE, fail)
        async with sim.node("client").generate(plan_of(*RING), request(), driver="first") as stream:
            with pytest.raises(PeerUnavailableError) as caught:
                await read_all(stream)
        assert shown in caught.value.message
        assert len(caught.value.message) <= 400
        assert caught.value.message.endswith("…") == (len(text) > 1_000)
        assert caught.value.message.count("peer two") <= 1


async def test_a_budget_that_runs_out_ends_the_work(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim = ring_of_three(nursery, compute_s=1.0)
        for driver in ("first", "local"):
            asked = request(900, budget_s=20.0)
            started = trio.current_time()
            async with sim.node("client").generate(plan_of(*RING), asked, driver=driver) as stream:
                with pytest.raises(PeerUnavailableError, match=r"not complete after the 20\.0 s"):
                    await read_all(stream)
            assert trio.current_time() - started == pytest.approx(20.0, abs=3.0)
            await sim.assert_settled()


async def test_what_can_never_be_served_is_refused_before_anybody_is_asked(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        sim = ring_of_three(nursery)
        for asked, limits in ((request(2_000), None), (request(), Limits(max_chunks=33))):
            with pytest.raises(ConfigError):
                async with sim.node("client").generate(plan_of(*RING), asked, driver="first", limits=limits):
                    pass
        assert sim.network("client").dialled == []
