"""Peers next to us in rings are remembered for a while, so that their connections stay warm."""

from __future__ import annotations

import trio

from shardp2p.swarm.ring_edges import MAX_EDGES, WARM_S, RingEdges
from shardp2p.vocabulary import PeerId
from shardp2p.wire.protocols import CONTROL, GOSSIP, RING
from shardp2p.wire.stream import Stream
from tests.support.memory_network import MemorySwarm

A, B, C = (PeerId(name) for name in "abc")


async def test_ring_streams_are_remembered_and_others_are_not(autojump_clock: trio.testing.MockClock) -> None:
    async def serve(stream: Stream) -> None:
        await stream.receive_some(1)

    async with trio.open_nursery() as nursery:
        swarm = MemorySwarm(nursery)
        ours = RingEdges(swarm.network(A))
        for peer in (B, C):
            other = swarm.network(peer)
            for protocol in (RING, CONTROL, GOSSIP):
                other.serve(protocol, serve)
        await ours.open_stream(B, GOSSIP)
        assert ours.warm() == ()
        await ours.open_stream(C, CONTROL)
        await trio.sleep(WARM_S / 2)
        await ours.open_stream(B, RING)
        assert ours.warm() == (B, C)
        await trio.sleep(WARM_S / 2 + 1)
        assert ours.warm() == (B,)
        ours.note(A)
        assert ours.warm() == (B,)
        nursery.cancel_scope.cancel()


async def test_the_edge_used_longest_ago_is_let_go(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        ours = RingEdges(MemorySwarm(nursery).network(A))
        for number in range(MAX_EDGES + 1):
            ours.note(PeerId(str(number)))
        ours.note(PeerId("1"))
        assert len(ours.warm()) == MAX_EDGES
        assert ours.warm()[0] == "1"
        assert ours.warm()[-1] == "2"
        nursery.cancel_scope.cancel()
