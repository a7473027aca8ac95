"""Gossip over memory streams: who is live is known everywhere, soon, and to the end."""

from __future__ import annotations

import trio
import trio.testing

from tests.support.gossip_swarm import GossipSwarm


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
