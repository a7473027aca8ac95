"""A peer in a namespace, for tests of reachability: says its address, and then how the peers at argv reach it.

It listens on port 4001 and dials back who asks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import structlog
import trio

from shardp2p.host.host import Host, open_host
from shardp2p.identity.keys import Identity
from shardp2p.member import bootstrap_of
from shardp2p.node import Node
from shardp2p.swarm.reachable import Reachable
from shardp2p.vocabulary import SwarmId
from shardp2p.wire.records import CoverageRecord

LISTEN = ["/ip4/0.0.0.0/tcp/4001"]


async def tell_reach(host: Host, node: Node, observers: Sequence[str]) -> None:
    """Print how others reach us, once that is decided."""
    peers = bootstrap_of(observers, host.peer_id)
    if observers:
        await node.members(observers)
    records = [CoverageRecord(SwarmId("s"), one.peer_id, 1, 1.0, 60.0, "joining", one.addresses) for one in peers]
    reachable = Reachable(host, lambda: records)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reachable.run)
        seen = reachable.changes
        while reachable.is_looking or (observers and reachable.verdict == "unknown"):
            seen = await reachable.wait_change(seen)
        addresses = [address.partition("/p2p/")[0] for address in host.addresses()]
        print(json.dumps({**reachable.status(), "addresses": addresses}), flush=True)
        nursery.cancel_scope.cancel()


async def main(observers: Sequence[str]) -> None:
    async with open_host(Identity.generate(), LISTEN) as host:
        node = Node(host)
        print(json.dumps(host.peer_id), flush=True)
        if observers != ["wait"]:
            await tell_reach(host, node, observers)
        await trio.sleep_forever()


structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
trio.run(main, sys.argv[1:])
