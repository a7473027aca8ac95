"""A circuit at its relay, over memory streams: order, limits, fairness, and what a slow or silent side does."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest
import trio
from trio.testing import MockClock

from shardp2p.config import RelayLimits
from shardp2p.errors import PeerUnavailableError
from shardp2p.host.circuit.allowance import PIECE_BYTES, Allowance
from shardp2p.host.circuit.splice import ENDED, IDLE_S, Splice
from shardp2p.vocabulary import PeerId
from shardp2p.wire.stream import Stream
from tests.support.memory_network import WINDOW_BYTES, MemorySwarm

KIB = 1024
Serve = Callable[[Stream], Awaitable[None]]


@dataclass
class Relay:
    """Connects whoever opens a stream to it with the peer `target`."""

    swarm: MemorySwarm
    limits: RelayLimits
    allowance: Allowance
    reasons: list[str] = field(default_factory=list)
    splices: list[Splice] = field(default_factory=list)

    async def serve(self, stream: Stream) -> None:
        other = await self.swarm.network("relay").open_stream(PeerId("target"), "stop")
        self.splices.append(Splice(stream, other, self.limits, self.allowance))
        self.reasons.append(await self.splices[-1].run())


def make_relay(nursery: trio.Nursery, target: Serve, **limits: float) -> Relay:
    swarm = MemorySwarm(nursery)
    made = RelayLimits(**limits)  # type: ignore[arg-type]
    relay = Relay(swarm, made, Allowance(made.bytes_per_s))
    swarm.network("relay").serve("hop", relay.serve)
    swarm.network("target").serve("stop", target)
    return relay


async def circuit(relay: Relay, source: str = "source") -> Stream:
    return await relay.swarm.network(source).open_stream(PeerId("relay"), "hop")


async def echo(stream: Stream) -> None:
    while data := await stream.receive_some(8 * KIB):
        await stream.send_all(data)


async def read_exactly(stream: Stream, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = await stream.receive_some(count - len(data))
        assert piece
        data += piece
    return bytes(data)


@pytest.mark.parametrize("seed", range(10))
async def test_bytes_pass_both_ways_unchanged_and_in_order(seed: int, autojump_clock: MockClock) -> None:
    chance = random.Random(seed)
    data = chance.randbytes(300 * KIB)
    async with trio.open_nursery() as nursery:
        relay = make_relay(nursery, echo)
        relay.swarm.delay("source", "relay", 0.03)
        relay.swarm.delay("relay", "target", 0.02)
        stream = await circuit(relay)

        async def send() -> None:
            sent = 0
            while sent < len(data):
                size = chance.randint(1, 40 * KIB)
                await stream.send_all(data[sent : sent + size])
                sent += size

        nursery.start_soon(send)
        assert await read_exactly(stream, len(data)) == data
        await stream.close()
        await trio.sleep(1)
        assert relay.reasons == [ENDED]
        assert relay.splices[0].passed_bytes == 2 * len(data)
        assert relay.swarm.open_streams == 0


async def test_what_was_sent_before_an_end_still_arrives(autojump_clock: MockClock) -> None:
    received = bytearray()

    async def slow(stream: Stream) -> None:
        while data := await stream.receive_some(10 * KIB):
            received.extend(data)
            await trio.sleep(0.5)

    async with trio.open_nursery() as nursery:
        relay = make_relay(nursery, slow)
        stream = await circuit(relay)
        await stream.send_all(bytes(200 * KIB))
        await stream.close()
        await trio.sleep(60)
        assert len(received) == 200 * KIB
        assert relay.reasons == [ENDED]


async def test_slow_side_slows_the_fast_one_instead_of_filling_the_relay(autojump_clock: MockClock) -> None:
    sent = 0

    async def reads_nothing(stream: Stream) -> None:
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        relay = make_relay(nursery, reads_nothing)
        stream = await circuit(relay)
        with trio.move_on_after(20):
            while True:
                await stream.send_all(bytes(KIB))
                sent += KIB
        assert WINDOW_BYTES < sent <= 2 * WINDOW_BYTES + PIECE_BYTES
        nursery.cancel_scope.cancel()


async def test_circuit_on_which_nothing_passes_is_ended(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        relay = make_relay(nursery, echo)
        stream = await circuit(relay)
        for _ in range(5):
            await stream.send_all(b"ping")
            assert await read_exactly(stream, 4) == b"ping"
            await trio.sleep(IDLE_S * 0.9)
        assert relay.reasons == []
        with trio.fail_after(2 * IDLE_S), pytest.raises(PeerUnavailableError):
            await stream.receive_some(1)
        await trio.sleep(1)
        assert relay.reasons == ["idle"]


async def test_circuit_ends_at_its_byte_limit(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        relay = make_relay(nursery, echo, circuit_bytes=100 * KIB)
        stream = await circuit(relay)
        with pytest.raises(PeerUnavailableError):  # noqa: PT012 - whichever of the two meets it
            while True:
                await stream.send_all(bytes(KIB))
                await read_exactly(stream, KIB)
        await stream.reset()
        await trio.sleep(1)
        assert relay.reasons == ["byte limit"]
        assert 98 * KIB <= relay.splices[0].passed_bytes <= 100 * KIB
        assert relay.swarm.open_streams == 0


async def test_circuit_ends_at_its_time_limit_however_busy(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        relay = make_relay(nursery, echo, circuit_s=10)
        began = trio.current_time()
        stream = await circuit(relay)
        with pytest.raises(PeerUnavailableError):  # noqa: PT012 - whichever of the two meets it
            while True:
                await stream.send_all(b"ping")
                await read_exactly(stream, 4)
                await trio.sleep(0.1)
        assert trio.current_time() - began == pytest.approx(10, abs=0.2)
        assert relay.reasons == ["time limit"]


async def test_bandwidth_is_shared_fairly_and_a_small_message_overtakes_bulk(autojump_clock: MockClock) -> None:
    received = {"one": 0, "two": 0, "three": 0}
    slowest_s = 0.0

    async with trio.open_nursery() as nursery:
        relay = make_relay(nursery, echo, bytes_per_s=1024 * KIB)

        async def bulk(name: str) -> None:
            stream = await circuit(relay, name)
            async with trio.open_nursery() as both:
                both.start_soon(pour, stream)
                while True:
                    received[name] += len(await stream.receive_some(64 * KIB))

        async def pour(stream: Stream) -> None:
            while True:
                await stream.send_all(bytes(64 * KIB))

        for name in received:
            nursery.start_soon(bulk, name)
        await trio.sleep(2)
        stream = await circuit(relay, "small")
        for _ in range(50):
            began = trio.current_time()
            await stream.send_all(b"token")
            await read_exactly(stream, 5)
            slowest_s = max(slowest_s, trio.current_time() - began)
        await trio.sleep(20)
        nursery.cancel_scope.cancel()
    lowest, highest = min(received.values()), max(received.values())
    assert highest <= 1.1 * lowest
    # Two directions, each behind one piece of each of the six busy ones.
    assert slowest_s <= 2 * 7 * PIECE_BYTES / (1024 * KIB)


async def test_ending_relay_resets_both_sides(autojump_clock: MockClock) -> None:
    failures: list[str] = []

    async def target(stream: Stream) -> None:
        try:
            await stream.receive_some(1)
        except PeerUnavailableError as error:
            failures.append(error.message)

    async with trio.open_nursery() as nursery:
        relay = make_relay(nursery, target)
        life = relay.swarm.network("relay").life()

        async def one_life(stream: Stream) -> None:
            with life:
                await relay.serve(stream)

        relay.swarm.network("relay").serve("hop", one_life)
        stream = await circuit(relay)
        await trio.sleep(1)
        life.cancel()
        with pytest.raises(PeerUnavailableError):
            await stream.receive_some(1)
        await trio.sleep(1)
        assert len(failures) == 1
