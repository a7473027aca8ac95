"""Probes over memory streams: what is measured is what the links have, nobody is disturbed, floods and lies end."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from shardp2p.errors import RemoteProtocolError, ShardError
from shardp2p.swarm.allowance import BURST_BYTES, PINGS_AT_ONCE, PROBE_BYTES
from shardp2p.swarm.links import MAX_PROBED, Links
from shardp2p.swarm.probes import MAX_STREAMS_PER_PROBER, PINGS, SILENCE_S, ProbeAnswers, Prober
from shardp2p.vocabulary import PeerId
from shardp2p.wire.channel import open_channel
from shardp2p.wire.codec import encode
from shardp2p.wire.codec_swarm import MAX_PADDING_BYTES
from shardp2p.wire.messages import Describe, Message, Ping, Pong
from shardp2p.wire.protocols import SWARM
from shardp2p.wire.stream import Handler, Network, Stream
from tests.support.memory_network import MemoryNetwork, MemorySwarm

ME = PeerId("me")
NONCE = bytes(16)


def serve(network: MemoryNetwork, *, is_busy: Callable[[], bool] = lambda: False) -> ProbeAnswers:
    """Answer probes as node.py does."""
    answers = ProbeAnswers(is_busy)

    async def handler(stream: Stream) -> None:
        async with open_channel(stream, SWARM) as channel:
            first = await channel.receive()
            assert isinstance(first, Ping)
            await answers.serve(channel, first)

    network.serve(SWARM, handler)
    return answers


class MeteredNetwork:
    """A network whose streams carry `bytes_s` on the way out, and count it."""

    def __init__(self, inner: Network, bytes_s: float = math.inf) -> None:
        self._inner = inner
        self.bytes_s = bytes_s
        self.sent_bytes = 0
        self.largest_bytes = 0

    @property
    def peer_id(self) -> PeerId:
        return self._inner.peer_id

    def serve(self, protocol: str, handler: Handler) -> None:
        self._inner.serve(protocol, handler)

    async def open_stream(self, peer: PeerId, protocol: str, addresses: Sequence[str] = ()) -> Stream:
        return MeteredStream(await self._inner.open_stream(peer, protocol, addresses), self)


class MeteredStream:
    def __init__(self, inner: Stream, meter: MeteredNetwork) -> None:
        self._inner = inner
        self._meter = meter
        self.peer = inner.peer
        self.receive_some = inner.receive_some
        self.close = inner.close
        self.reset = inner.reset

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self._meter.sent_bytes += len(data)
        self._meter.largest_bytes = max(self._meter.largest_bytes, len(data))
        await trio.sleep(len(data) / self._meter.bytes_s)
        await self._inner.send_all(data)


@asynccontextmanager
async def probing(network: Network, alive: list[PeerId], **options: Any) -> AsyncIterator[Links]:
    """A prober at work."""
    links = Links(ME)
    prober = Prober(network, links, alive=lambda: dict.fromkeys(alive, ("/memory",)), **options)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(prober.run)
        yield links
        nursery.cancel_scope.cancel()


@pytest.fixture
def swarm(nursery: trio.Nursery) -> MemorySwarm:
    return MemorySwarm(nursery)


async def test_the_measured_round_trip_is_the_links_to_a_microsecond(
    swarm: MemorySwarm, autojump_clock: MockClock
) -> None:
    delays = {PeerId("near"): 0.0003, PeerId("middle"): 0.0125, PeerId("far"): 0.15}
    for peer, delay_s in delays.items():
        serve(swarm.network(peer))
        swarm.delay(ME, peer, delay_s)
    async with probing(swarm.network(ME), list(delays)) as links:
        await trio.sleep(30.0)
        for peer, delay_s in delays.items():
            link = links.link(peer, trio.current_time())
            assert link is not None
            assert link.rtt_s == pytest.approx(2 * delay_s, abs=1e-6)
            assert link.spread_s == pytest.approx(0.0, abs=1e-6)


async def test_the_link_follows_a_route_that_changes(swarm: MemorySwarm, autojump_clock: MockClock) -> None:
    peer = PeerId("moving")
    serve(swarm.network(peer))
    swarm.delay(ME, peer, 0.01)
    async with probing(swarm.network(ME), [peer]) as links:
        await trio.sleep(600.0)
        swarm.delay(ME, peer, 0.04)
        await trio.sleep(400.0)
        link = links.link(peer, trio.current_time())
        assert link is not None
        assert link.rtt_s == pytest.approx(0.08, abs=1e-6)


async def test_one_stream_per_target_is_kept_and_idle_probing_is_a_trickle(
    swarm: MemorySwarm, autojump_clock: MockClock
) -> None:
    alive = [PeerId(f"peer-{number}") for number in range(40)]
    network = MeteredNetwork(swarm.network(ME))
    for peer in alive:
        serve(swarm.network(peer))
        swarm.delay(ME, peer, 0.02)
    async with probing(network, alive) as links:
        await trio.sleep(500.0)
        assert len(links.snapshot(trio.current_time())) == MAX_PROBED
        assert swarm.open_streams == 2 * MAX_PROBED
        assert len(swarm.network(ME).dialled) == MAX_PROBED
    assert network.sent_bytes < MAX_PROBED * (1.01 * PROBE_BYTES + 30 * PINGS * (500.0 / 45.0 + 4))
    await trio.sleep(1.0)
    assert swarm.open_streams == 0


async def test_bandwidth_is_what_a_bounded_link_carries(swarm: MemorySwarm, autojump_clock: MockClock) -> None:
    peer, rate = PeerId("dsl"), 2.5e6
    serve(swarm.network(peer))
    swarm.delay(ME, peer, 0.02)
    async with probing(MeteredNetwork(swarm.network(ME), rate), [peer]) as links:
        await trio.sleep(20.0)
        link = links.link(peer, trio.current_time())
        assert link is not None
        assert link.bandwidth_bytes_s == pytest.approx(rate, rel=0.05)
        assert link.rtt_s == pytest.approx(0.04, abs=0.001)


async def test_a_hopeless_link_is_known_as_such_and_left_alone(swarm: MemorySwarm, autojump_clock: MockClock) -> None:
    peer = PeerId("modem")
    serve(swarm.network(peer))
    swarm.delay(ME, peer, 0.1)
    async with probing(MeteredNetwork(swarm.network(ME), 4_000.0), [peer]) as links:
        await trio.sleep(300.0)
        link = links.link(peer, trio.current_time())
        assert link is not None
        assert 0.0 < link.bandwidth_bytes_s < 15_000.0
        assert len(swarm.network(ME).dialled) == 2


@pytest.mark.parametrize("busy", [ME, PeerId("other")])
async def test_no_bandwidth_is_measured_while_either_serves_requests(
    swarm: MemorySwarm, autojump_clock: MockClock, busy: PeerId
) -> None:
    other, is_busy, network = PeerId("other"), True, MeteredNetwork(swarm.network(ME))
    serve(swarm.network(other), is_busy=lambda: is_busy and busy == other)
    async with probing(network, [other], is_busy=lambda: is_busy and busy == ME) as links:
        await trio.sleep(200.0)
        link = links.link(other, trio.current_time())
        assert link is not None
        assert link.bandwidth_bytes_s == 0.0
        assert network.largest_bytes < 100
        is_busy = False
        await trio.sleep(200.0)
        link = links.link(other, trio.current_time())
        assert link is not None
        assert link.bandwidth_bytes_s > 0.0


async def test_a_peer_that_vanishes_is_tried_with_pauses_and_found_again(
    swarm: MemorySwarm, autojump_clock: MockClock
) -> None:
    peer = PeerId("laptop")
    serve(swarm.network(peer))
    async with probing(swarm.network(ME), [peer]) as links:
        await trio.sleep(20.0)
        swarm.kill(peer)
        await trio.sleep(1_500.0)
        assert links.snapshot(trio.current_time()) == ()
        assert 5 <= len(swarm.network(ME).dialled) <= 15
        serve(swarm.network(peer))
        await trio.sleep(800.0)
        assert [link.peer for link in links.snapshot(trio.current_time())] == [peer]


async def test_a_silent_connection_is_given_up(swarm: MemorySwarm, autojump_clock: MockClock) -> None:
    peer, well = PeerId("cut"), PeerId("well")
    for other in (peer, well):
        serve(swarm.network(other))
    async with probing(swarm.network(ME), [peer, well]) as links:
        await trio.sleep(20.0)
        swarm.cut(ME, peer, noticed_after_s=float("inf"))
        await trio.sleep(1_300.0)
        assert [link.peer for link in links.snapshot(trio.current_time())] == [well]


async def test_who_left_is_no_longer_probed(swarm: MemorySwarm, autojump_clock: MockClock) -> None:
    alive = [PeerId("one"), PeerId("two")]
    for peer in alive:
        serve(swarm.network(peer))
    async with probing(swarm.network(ME), alive):
        await trio.sleep(20.0)
        assert swarm.open_streams == 4
        alive.pop()
        await trio.sleep(20.0)
        assert swarm.open_streams == 2


@pytest.mark.parametrize(
    "answer",
    [Pong(bytes(16), 0), Ping(NONCE), Describe(), Pong(NONCE, 2**30)],
    ids=["early", "ping", "describe", "room"],
)
async def test_a_peer_that_answers_what_was_not_asked_is_blamed(
    swarm: MemorySwarm, autojump_clock: MockClock, answer: Message
) -> None:
    blamed: list[tuple[PeerId, ShardError]] = []
    peer = PeerId("liar")

    async def handler(stream: Stream) -> None:
        async with open_channel(stream, SWARM) as channel:
            await channel.send(answer)
            await trio.sleep_forever()

    swarm.network(peer).serve(SWARM, handler)
    async with probing(swarm.network(ME), [peer], blame=lambda who, error: blamed.append((who, error))) as links:
        await trio.sleep(30.0)
        assert links.snapshot(trio.current_time()) == ()
    assert {who for who, _ in blamed} == {peer}
    assert all(isinstance(error, RemoteProtocolError) for _, error in blamed)
    assert 1 <= len(blamed) <= 3


async def test_a_flood_of_pings_is_cut_off_and_others_are_still_answered(
    swarm: MemorySwarm, autojump_clock: MockClock
) -> None:
    server = swarm.network("server")
    serve(server)
    async with open_channel(await swarm.network("flood").open_stream(server.peer_id, SWARM), SWARM) as channel:
        with pytest.raises(ShardError):  # noqa: PT012  # where in the flood it is cut off does not matter
            for _ in range(10 * PINGS_AT_ONCE):
                await channel.send(Ping(NONCE))
                await channel.receive()
    assert [type(failure) for failure in server.failures] == [RemoteProtocolError]
    async with open_channel(await swarm.network("honest").open_stream(server.peer_id, SWARM), SWARM) as channel:
        await channel.send(Ping(NONCE))
        assert await channel.receive() == Pong(NONCE, PROBE_BYTES)


async def test_a_flood_of_padding_is_cut_off_at_the_first_byte_without_room(
    swarm: MemorySwarm, autojump_clock: MockClock
) -> None:
    server = swarm.network("server")
    serve(server)
    async with open_channel(await swarm.network("flood").open_stream(server.peer_id, SWARM), SWARM) as channel:
        await channel.send(Ping(NONCE, bytes(MAX_PADDING_BYTES)))
        await trio.sleep(1.0)
        with pytest.raises(ShardError):
            await channel.receive()
    assert "room for 0" in server.failures[0].message


async def test_a_prober_may_hold_few_streams_and_a_silent_one_is_let_go(
    swarm: MemorySwarm, autojump_clock: MockClock
) -> None:
    server = swarm.network("server")
    serve(server)
    for _ in range(MAX_STREAMS_PER_PROBER + 1):
        async with open_channel(await swarm.network("greedy").open_stream(server.peer_id, SWARM), SWARM) as channel:
            await channel.send(Ping(NONCE))
            await channel.receive()
        await trio.sleep(1.0)
    assert server.failures == []  # one after the other is no offence
    streams = []
    for _ in range(MAX_STREAMS_PER_PROBER + 1):
        stream = await swarm.network("greedy").open_stream(server.peer_id, SWARM)
        streams.append(stream)
        await stream.send_all(encode(SWARM, Ping(NONCE)))
    await trio.sleep(1.0)
    assert [type(failure) for failure in server.failures] == [RemoteProtocolError]
    await trio.sleep(SILENCE_S + 1.0)
    for stream in streams:
        await stream.reset()
    assert swarm.open_streams == 0
    assert PINGS * 2 < PINGS_AT_ONCE
    assert BURST_BYTES < 256 * 1024
