"""Probes between real hosts on loopback: a round trip of fractions of a millisecond, and a bandwidth."""

from __future__ import annotations

import trio

from shardp2p.errors import RemoteProtocolError
from shardp2p.host.host import Host, open_host
from shardp2p.identity.keys import Identity
from shardp2p.swarm.links import Links
from shardp2p.swarm.probes import ProbeAnswers, Prober
from shardp2p.wire.channel import open_channel
from shardp2p.wire.messages import Ping
from shardp2p.wire.protocols import SWARM
from shardp2p.wire.records import Link
from shardp2p.wire.stream import Stream

LOOPBACK = ["/ip4/127.0.0.1/tcp/0"]


def answer_probes(host: Host) -> None:
    answers = ProbeAnswers()

    async def handler(stream: Stream) -> None:
        async with open_channel(stream, SWARM) as channel:
            first = await channel.receive()
            if not isinstance(first, Ping):
                raise RemoteProtocolError("no ping")
            await answers.serve(channel, first)

    host.serve(SWARM, handler)


async def wait_links(links: Links, count: int) -> tuple[Link, ...]:
    """The links once `count` of them have a bandwidth."""
    with trio.fail_after(30.0):
        while True:
            found = links.snapshot(trio.current_time())
            if sum(link.bandwidth_bytes_s > 0 for link in found) == count:
                return found
            await trio.sleep(0.05)


async def test_two_hosts_measure_each_other() -> None:
    async with open_host(Identity.generate(), LOOPBACK) as one, open_host(Identity.generate(), LOOPBACK) as other:
        found = {}
        async with trio.open_nursery() as nursery:
            for ours, theirs in ((one, other), (other, one)):
                answer_probes(ours)
                links = found[ours.peer_id] = Links(ours.peer_id)
                known = {theirs.peer_id: theirs.addresses(), ours.peer_id: ours.addresses()}
                nursery.start_soon(Prober(ours, links, alive=known.copy).run)
            for ours, theirs in ((one, other), (other, one)):
                (link,) = await wait_links(found[ours.peer_id], 1)
                assert link.peer == theirs.peer_id
                assert 0 < link.rtt_s < 0.05
                assert 0 <= link.spread_s < 0.05
                assert link.bandwidth_bytes_s > 100_000
            nursery.cancel_scope.cancel()


async def test_a_peer_that_is_not_there_holds_up_nobody() -> None:
    async with open_host(Identity.generate(), LOOPBACK) as here, open_host(Identity.generate()) as prober:
        answer_probes(here)
        links = Links(prober.peer_id)
        absent = Identity.generate().peer_id
        alive = {absent: ("/ip4/127.0.0.1/tcp/9",), here.peer_id: here.addresses()}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Prober(prober, links, alive=lambda: alive).run)
            (link,) = await wait_links(links, 1)
            nursery.cancel_scope.cancel()
        assert link.peer == here.peer_id
