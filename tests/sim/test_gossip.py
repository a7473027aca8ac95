"""Gossip over memory streams: who is live is known everywhere, soon, and to the end."""

from __future__ import annotations

import math
from random import Random

import pytest
import trio
import trio.testing

from shardp2p.errors import PeerUnavailableError
from shardp2p.swarm.publisher import Coverage
from shardp2p.swarm.shared_values import REVOCATIONS, Subject
from shardp2p.vocabulary import PeerId, SwarmId
from shardp2p.wire.channel import open_channel
from shardp2p.wire.news import Greeting, News, RecordNews
from shardp2p.wire.protocols import GOSSIP
from tests.support.gossip_parts import Voice
from tests.support.gossip_swarm import SWARM, UNIX_S, GossipSwarm, address_of, identity_of
from tests.support.memory_network import MemoryNetwork


async def test_newcomers_see_everybody_within_two_seconds(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        swarm = GossipSwarm(nursery)
        for number in range(20):
            await swarm.start(number)
        await swarm.wait_agreement(within_s=10)
        await trio.sleep(5)
        await swarm.start(20)
        await swarm.wait_agreement(within_s=2)
        nursery.cancel_scope.cancel()


async def test_killed_peer_is_gone_from_every_view(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        swarm = GossipSwarm(nursery)
        for number in range(16):
            await swarm.start(number)
        await swarm.wait_agreement(within_s=10)
        await trio.sleep(20)
        assert swarm.agree()
        swarm.kill(7)
        waited = await swarm.wait_agreement(within_s=15)
        assert waited > 5
        nursery.cancel_scope.cancel()


async def test_departure_is_known_everywhere_within_two_seconds(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        swarm = GossipSwarm(nursery)
        for number in range(16):
            await swarm.start(number)
        await swarm.wait_agreement(within_s=10)
        await trio.sleep(20)
        await swarm.leave(5)
        await swarm.wait_agreement(within_s=2)
        nursery.cancel_scope.cancel()


async def test_peers_that_start_at_the_same_moment_find_one_another(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        swarm = GossipSwarm(nursery)
        async with trio.open_nursery() as starting:
            for number in range(30):
                starting.start_soon(swarm.start, number)
        await swarm.wait_agreement(within_s=10)
        await trio.sleep(30)
        assert swarm.agree()
        assert all(3 <= len(service.neighbours) <= 20 for service in swarm.services.values())
        nursery.cancel_scope.cancel()


async def test_small_swarm_is_one_neighbourhood_with_one_stream_between_any_two(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        swarm = GossipSwarm(nursery)
        for number in range(6):
            await swarm.start(number)
        await swarm.wait_agreement(within_s=10)
        await trio.sleep(10)
        assert all(len(service.neighbours) == 5 for service in swarm.services.values())
        assert swarm.memory.open_streams == 6 * 5
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("clock_error_s", [0.0, -600.0, 600.0])
async def test_restart_with_the_same_identity_is_back_at_once(
    autojump_clock: trio.testing.MockClock, clock_error_s: float
) -> None:
    async with trio.open_nursery() as nursery:
        swarm = GossipSwarm(nursery)
        for number in range(12):
            await swarm.start(number)
        await swarm.wait_agreement(within_s=10)
        await trio.sleep(30)
        swarm.kill(4)
        await trio.sleep(1)
        again = await swarm.start(4, unix_s=UNIX_S + clock_error_s)
        again.publish(Coverage(state="placing", addresses=(address_of(swarm.peer(4)),)))
        for _ in range(100):
            await trio.sleep(0.1)
            if swarm.agree() and all(state_of(swarm, number, 4) == "placing" for number in swarm.services):
                break
        assert swarm.agree()
        assert {state_of(swarm, number, 4) for number in swarm.services} == {"placing"}
        await trio.sleep(20)
        assert not again.twin_seen.is_set()
        nursery.cancel_scope.cancel()


async def test_halves_that_lost_each_other_meet_again(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        swarm = GossipSwarm(nursery)
        for number in range(10):
            await swarm.start(number)
        await swarm.wait_agreement(within_s=10)
        pairs = [(swarm.peer(one), swarm.peer(other)) for one in range(5) for other in range(5, 10)]
        for pair in pairs:
            swarm.memory.cut(*pair, noticed_after_s=4.0)
        await trio.sleep(60)
        assert {len(swarm.sees(number)) for number in swarm.services} == {5}
        for pair in pairs:
            swarm.memory.mend(*pair)
        await swarm.wait_agreement(within_s=90)
        nursery.cancel_scope.cancel()


async def test_peer_that_lost_its_network_comes_back_by_itself(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        swarm = GossipSwarm(nursery)
        for number in range(9):
            await swarm.start(number)
        await swarm.wait_agreement(within_s=10)
        for number in range(1, 9):
            swarm.memory.cut(swarm.peer(0), swarm.peer(number), noticed_after_s=math.inf)
        await trio.sleep(120)
        assert swarm.sees(0) == {swarm.peer(0)}
        for number in range(1, 9):
            swarm.memory.mend(swarm.peer(0), swarm.peer(number))
        await swarm.wait_agreement(within_s=90)
        nursery.cancel_scope.cancel()


async def test_change_that_moves_requests_is_known_within_two_seconds(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        swarm = GossipSwarm(nursery)
        for number in range(12):
            await swarm.start(number)
        await swarm.wait_agreement(within_s=10)
        await trio.sleep(10)
        seen = swarm.services[11].changes
        swarm.services[3].publish(Coverage(state="serving", addresses=(address_of(swarm.peer(3)),)))
        with trio.fail_after(2):
            await swarm.services[11].wait_change(seen)
        await trio.sleep(2)
        assert {state_of(swarm, number, 3) for number in swarm.services} == {"serving"}
        nursery.cancel_scope.cancel()


async def test_values_reach_those_who_join_later(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        swarm = GossipSwarm(nursery, validators={REVOCATIONS: lambda sealed: Subject(sealed, 1)})
        for number in range(8):
            await swarm.start(number)
        await swarm.wait_agreement(within_s=10)
        swarm.services[2].share(REVOCATIONS, b"a sealed revocation")
        await trio.sleep(2)
        await swarm.start(8)
        await trio.sleep(2)
        assert {service.values(REVOCATIONS) for service in swarm.services.values()} == {(b"a sealed revocation",)}
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("flood", ["garbage", "messages", "records"])
async def test_flooding_neighbour_is_cut_off_and_the_others_go_on(
    autojump_clock: trio.testing.MockClock, flood: str
) -> None:
    async with trio.open_nursery() as nursery:
        swarm = GossipSwarm(nursery)
        for number in range(8):
            await swarm.start(number)
        await swarm.wait_agreement(within_s=10)
        liar = swarm.memory.network(identity_of(99).peer_id)
        victim = swarm.services[1]
        with pytest.raises(PeerUnavailableError):
            await pour(liar, swarm.peer(1), flood)
        assert victim.strikes.is_banned(liar.peer_id, trio.current_time())
        assert liar.peer_id not in victim.neighbours
        with pytest.raises(PeerUnavailableError):
            await pour(liar, swarm.peer(1), "nothing")
        await trio.sleep(20)
        assert swarm.agree()
        nursery.cancel_scope.cancel()


async def pour(network: MemoryNetwork, victim: PeerId, flood: str) -> None:
    """Send without end, until the stream is taken away."""
    rng = Random(1)
    async with open_channel(await network.open_stream(victim, GOSSIP), GOSSIP) as channel:
        await channel.send(Greeting(SWARM))
        await channel.receive()
        for number in range(10_000):
            match flood:
                case "garbage":
                    news = News(records=(RecordNews(rng.randbytes(300), Voice(98).heartbeat()),))
                case "messages":
                    news = News(heartbeats=(Voice(98, 1 + number).heartbeat(),))
                case "records":
                    news = News(records=(Voice(100 + number).news(),))
                case _:
                    news = News()
            await channel.send(news)


async def test_stranger_of_another_swarm_is_told_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        swarm = GossipSwarm(nursery)
        await swarm.start(0)
        stranger = swarm.memory.network(identity_of(99).peer_id)
        heard: list[object] = []

        async def listen() -> None:
            async with open_channel(await stranger.open_stream(swarm.peer(0), GOSSIP), GOSSIP) as channel:
                await channel.send(Greeting(SwarmId(identity_of(5).peer_id)))
                while True:
                    heard.append(await channel.receive())

        with pytest.raises(PeerUnavailableError):
            await listen()
        # The stream may break before the peer's own greeting is read.
        assert all(isinstance(message, Greeting) for message in heard)
        assert len(heard) <= 1
        nursery.cancel_scope.cancel()


async def test_stopping_leaves_no_stream_and_says_so(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        swarm = GossipSwarm(nursery)
        for number in range(5):
            await swarm.start(number)
        await swarm.wait_agreement(within_s=10)
        start = trio.current_time()
        await swarm.leave(2)
        assert trio.current_time() - start <= 1.5
        await trio.sleep(0.5)
        assert swarm.agree()
        await trio.sleep(5)
        assert swarm.memory.open_streams == 4 * 3
        nursery.cancel_scope.cancel()


def state_of(swarm: GossipSwarm, viewer: int, seen: int) -> str:
    """The state of a peer in the view of another; "" where it is not live."""
    return next((r.state for r in swarm.services[viewer].live() if r.peer_id == swarm.peer(seen)), "")
