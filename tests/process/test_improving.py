"""What an Improver does for connections through holes: real hosts, a real relay, and holes that are made by hand."""

from __future__ import annotations

import pytest
import trio

from shardp2p.host.dialer import NobodyListensError
from shardp2p.host.improving import Improver
from shardp2p.host.path import DIRECT, PUNCHED, Path, relayed
from tests.process.carried import ECHO, Pair, wait_movable
from tests.process.host_peer import echo
from tests.support.circuits import hidden_node, relay_node

BOUND_S = 60
"""Of whole tests: nothing hangs; a loaded machine is no failure."""


@pytest.mark.parametrize("path", [PUNCHED, DIRECT])
async def test_with_a_needed_peer_a_connection_over_a_relay_stands_ready_for_when_the_hole_closes(path: Path) -> None:
    with trio.fail_after(BOUND_S):
        async with (
            relay_node() as relay,
            hidden_node(relay) as far,
            hidden_node() as near,
            trio.open_nursery() as nursery,
        ):
            hosts = Pair(near.host, far.host, nursery)
            hole, hole_far, way = await hosts.connect(path)
            stream = await near.host.open_stream(far.peer, ECHO)
            improver = Improver(near.host, lambda peer: far.circuits.addresses())
            improver.needed = lambda: (far.peer,)
            nursery.start_soon(improver.run)
            await wait_movable(hole, hole_far)
            while len(near.host.paths(far.peer)) < 2:
                await trio.sleep(0.01)
            assert near.host.paths(far.peer) == (path, relayed(relay.peer))
            _, spare = near.host.connections(far.peer)
            await wait_movable(spare)

            way.swallow()
            await stream.send_all(b"after the hole")
            received = b""
            while len(received) < len(b"after the hole"):
                received += await stream.receive_some(64)
            assert received == b"after the hole"
            assert hole.carrier is spare
            await stream.close()
            nursery.cancel_scope.cancel()


async def test_one_connection_stands_ready_and_no_more_and_only_with_peers_that_are_needed() -> None:
    with trio.fail_after(BOUND_S):
        async with (
            relay_node() as relay,
            hidden_node(relay) as far,
            hidden_node(relay) as other,
            hidden_node() as near,
            trio.open_nursery() as nursery,
        ):
            for node in (far, other):
                hole, hole_far, _ = await Pair(near.host, node.host, nursery).connect(PUNCHED)
                await wait_movable(hole, hole_far)
            addresses = {node.peer: node.circuits.addresses() for node in (far, other)}
            improver = Improver(near.host, lambda peer: addresses[peer])
            improver.needed = lambda: (far.peer,)
            nursery.start_soon(improver.run)
            await trio.sleep(2)  # several looks; a moment that is too short could only hide a failure
            assert near.host.paths(far.peer) == (PUNCHED, relayed(relay.peer))
            assert near.host.paths(other.peer) == (PUNCHED,)
            nursery.cancel_scope.cancel()


async def test_connections_that_lose_their_path_together_share_the_one_that_is_dialled_for_them() -> None:
    with trio.fail_after(BOUND_S):
        async with (
            relay_node() as relay,
            hidden_node(relay) as far,
            hidden_node() as near,
            trio.open_nursery() as nursery,
        ):
            hosts = Pair(near.host, far.host, nursery)
            made = [await hosts.connect(PUNCHED) for _ in range(3)]
            await wait_movable(*(muxer for hole, hole_far, _ in made for muxer in (hole, hole_far)))
            streams = [await near.host.open_stream_over(hole, ECHO) for hole, _, _ in made]
            nursery.start_soon(Improver(near.host, lambda peer: far.circuits.addresses()).run)
            for _, _, way in made:
                way.swallow()
            for stream in streams:
                await stream.send_all(b"on")
            for stream in streams:
                assert await stream.receive_some(2)
            assert len(near.host.connections(far.peer)) == len(made) + 1
            nursery.cancel_scope.cancel()


async def test_a_straight_connection_to_a_needed_peer_outlives_its_path_and_others_stay_as_they_are() -> None:
    with trio.fail_after(BOUND_S):
        async with relay_node() as far, hidden_node() as other, hidden_node() as near, trio.open_nursery() as nursery:
            far.host.serve(ECHO, echo)
            straight, straight_far, way = await Pair(near.host, far.host, nursery).connect(DIRECT)
            unneeded, _, _ = await Pair(near.host, other.host, nursery).connect(DIRECT)
            stream = await near.host.open_stream(far.peer, ECHO)
            improver = Improver(near.host, lambda peer: far.host.listen_addresses() if peer == far.peer else ())
            improver.needed = lambda: (far.peer,)
            nursery.start_soon(improver.run)
            await wait_movable(straight, straight_far)
            assert not unneeded.link.is_movable
            await way.cut()
            await stream.send_all(b"on")
            assert await stream.receive_some(2) == b"on"
            assert straight.carrier in near.host.connections(far.peer)
            assert near.host.paths(far.peer) == (DIRECT, DIRECT)
            nursery.cancel_scope.cancel()


async def test_who_refuses_connections_where_it_listened_is_gone() -> None:
    with trio.fail_after(BOUND_S):
        async with hidden_node() as near, trio.open_nursery() as nursery:
            async with relay_node() as far:
                straight, _, _ = await Pair(near.host, far.host, nursery).connect(DIRECT)
                addresses = far.host.listen_addresses()
            with pytest.raises(NobodyListensError, match="refused, nothing listens there"):
                await Improver(near.host, lambda peer: addresses)._reconnect(straight)
            nursery.cancel_scope.cancel()
