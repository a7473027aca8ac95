"""Gossip between real hosts on the loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import trio

from shardp2p.host.host import Host, open_host
from shardp2p.swarm.gossip_service import GossipService
from shardp2p.swarm.publisher import Coverage
from shardp2p.wire.messages import PeerAddress
from tests.support.gossip_swarm import SWARM, identity_of

LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)


@asynccontextmanager
async def gossiping(number: int, entrance: Host | None = None) -> AsyncIterator[tuple[Host, GossipService]]:
    """A peer with a host of its own. Leaving the block is a clean leave."""
    identity = identity_of(number)
    async with open_host(identity, LOOPBACK) as host, trio.open_nursery() as nursery:
        bootstrap = () if entrance is None else (PeerAddress(entrance.peer_id, entrance.addresses()),)
        service = GossipService(host, identity, SWARM, bootstrap=bootstrap)
        service.publish(Coverage(state="joining", addresses=host.addresses()))
        await nursery.start(service.run)
        yield host, service
        await service.leave()
        nursery.cancel_scope.cancel()


async def wait_until(services: list[GossipService], holds: Callable[[GossipService], bool]) -> None:
    """Wait until it holds for every one."""
    for service in services:
        while not holds(service):
            await service.wait_change(service.changes)


async def test_real_hosts_find_one_another_hear_changes_and_miss_who_leaves() -> None:
    async with AsyncExitStack() as stack:
        entrance, first = await stack.enter_async_context(gossiping(0))
        services = [first]
        for number in range(1, 5):
            _, service = await stack.enter_async_context(gossiping(number, entrance))
            services.append(service)
        with trio.fail_after(60):
            async with gossiping(5, entrance) as (leaver, last):
                await wait_until([*services, last], lambda service: len(service.live()) == 6)
                last.publish(Coverage(state="serving", addresses=leaver.addresses()))
                await wait_until(services, lambda service: "serving" in {record.state for record in service.live()})
            await wait_until(services, lambda service: len(service.live()) == 5)
