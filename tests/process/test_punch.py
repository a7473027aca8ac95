"""Punching between two hosts on loopback: no router, but both dial each other's listening port at the same time."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import trio

from shardp2p.errors import PeerUnavailableError
from shardp2p.host.circuit.service import HostCircuits, open_circuits
from shardp2p.host.host import Host, open_host
from shardp2p.host.path import PUNCHED
from shardp2p.host.punch.keeper import PunchKeeper
from shardp2p.host.punch.mapping import Mapping
from shardp2p.host.punch.messages import DCUTR, Connect, Sync, encode, receive
from shardp2p.host.punch.observing import Observing
from shardp2p.host.punch.puncher import Puncher, PunchResult
from shardp2p.identity.keys import Identity
from shardp2p.wire.protocols import SWARM
from tests.process.host_peer import ECHO, echo
from tests.support.circuits import Node, relay_node, wait_held
from tests.support.seen import say_seen

OBSERVER = ("127.0.0.9", 4001)


@dataclass(frozen=True)
class Pair:
    """`starter` was dialled by `answerer` over the relay; both have a place there."""

    starter: Host
    answerer: Host
    starting: Puncher
    answering: Puncher
    answerer_circuits: HostCircuits


def seen_at_its_port(host: Host) -> Mapping:
    mapping = Mapping()
    for here in host.listen_endpoints():
        assert mapping.observe(here[1], OBSERVER, here, trio.current_time())
    return mapping


@asynccontextmanager
async def relayed_host(listen: str, relay: Node) -> AsyncIterator[Node]:
    async with open_host(Identity.generate(), [f"/ip4/{listen}/tcp/0"]) as host, open_circuits(host) as circuits:
        host.serve(ECHO, echo)
        circuits.set_candidates([relay.as_candidate()])
        circuits.want(True)
        node = Node(host, circuits)
        await wait_held(node, 1)
        yield node


async def meet(dialler: Host, dialled: Node) -> None:
    """`dialler` reaches `dialled` over the relay."""
    await dialler.connect(dialled.peer, dialled.circuits.addresses())
    with trio.fail_after(5):
        while not dialled.host.is_connected(dialler.peer_id):
            await trio.sleep(0.01)


@asynccontextmanager
async def pair(seed: int = 1) -> AsyncIterator[Pair]:
    async with (
        relay_node() as relay,
        relayed_host("127.0.0.2", relay) as starter,
        relayed_host("127.0.0.3", relay) as answerer,
    ):
        await meet(answerer.host, starter)
        starting = Puncher(starter.host, seen_at_its_port(starter.host), random.Random(seed))
        answering = Puncher(answerer.host, seen_at_its_port(answerer.host), random.Random(-seed))
        yield Pair(starter.host, answerer.host, starting, answering, answerer.circuits)


async def speaks(one: Host, other: Host) -> bool:
    other.serve(ECHO, echo)
    stream = await one.open_stream(other.peer_id, ECHO)
    await stream.send_all(b"there and back")
    received = b""
    while len(received) < 14:
        received += await stream.receive_some(14)
    await stream.close()
    return received == b"there and back"


@pytest.mark.parametrize("seed", range(12))
async def test_both_sides_get_the_same_connection_from_listen_port_to_listen_port(seed: int) -> None:
    async with pair(seed) as hosts:
        starter, answerer = hosts.starter, hosts.answerer
        with trio.fail_after(20):
            assert await hosts.starting.punch(answerer.peer_id) == PunchResult(PUNCHED)
            while not answerer.connections(starter.peer_id)[0].path.is_direct:
                await trio.sleep(0.01)
        ours, theirs = starter.connections(answerer.peer_id)[0], answerer.connections(starter.peer_id)[0]
        assert (ours.path, theirs.path) == (PUNCHED, PUNCHED)
        assert ours.get_remote_address() == answerer.listen_endpoints()[0]
        assert theirs.get_remote_address() == starter.listen_endpoints()[0]
        assert (ours.is_initiator, theirs.is_initiator) == (False, True)
        assert await speaks(starter, answerer)
        assert await speaks(answerer, starter)
        await trio.sleep(0.2)
        for host, other in ((starter, answerer), (answerer, starter)):
            assert [muxer.path.kind for muxer in host.connections(other.peer_id)] == ["punched", "relayed"]


async def test_who_dialled_over_the_relay_waits_for_the_other_to_start() -> None:
    async with pair() as hosts:
        assert not hosts.answering.starts(hosts.starter.peer_id)
        result = await hosts.answering.punch(hosts.starter.peer_id)
        assert result.path is None
        assert "the peer starts" in result.reason


async def test_callers_at_the_same_time_share_one_attempt() -> None:
    async with pair() as hosts:
        results = []

        async def punch(puncher: Puncher, peer: Host) -> None:
            results.append((await puncher.punch(peer.peer_id)).path)

        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(punch, hosts.starting, hosts.answerer)
        assert results == [PUNCHED] * 3
        assert len(hosts.starter.connections(hosts.answerer.peer_id)) == 2


async def test_a_straight_path_needs_no_hole() -> None:
    async with pair() as hosts:
        await hosts.starter.connect(hosts.answerer.peer_id, hosts.answerer.listen_addresses())
        result = await hosts.starting.punch(hosts.answerer.peer_id)
        assert result.path is not None
        assert result.path.kind == "direct"


async def test_without_a_relayed_connection_there_is_nothing_to_agree_over() -> None:
    async with pair() as hosts:
        await hosts.starter.disconnect(hosts.answerer.peer_id)
        result = await hosts.starting.punch(hosts.answerer.peer_id)
        assert result.path is None
        assert "no relayed connection" in result.reason


async def test_a_peer_that_does_not_punch_is_told_in_words() -> None:
    async with (
        relay_node() as relay,
        relayed_host("127.0.0.2", relay) as starter,
        open_host(Identity.generate()) as other,
        open_circuits(other),
    ):
        await meet(other, starter)
        with trio.fail_after(20):
            result = await Puncher(starter.host, seen_at_its_port(starter.host)).punch(other.peer_id)
        assert result.path is None
        assert "does not speak /libp2p/dcutr" in result.reason


async def test_cancelling_leaves_no_dial_and_another_attempt_works() -> None:
    async with pair() as hosts:
        peer = hosts.answerer.peer_id
        for delay_s in (0.0, 0.001, 0.003, 0.01):
            with trio.move_on_after(delay_s):
                await hosts.starting.punch(peer)
        assert not hosts.starting._running
        with trio.fail_after(20):
            assert (await hosts.starting.punch(peer)).path is not None


async def test_of_two_that_start_at_once_one_goes_on() -> None:
    async with pair() as hosts:
        # Each has dialled the other over the relay.
        await hosts.starter.connect(hosts.answerer.peer_id, hosts.answerer_circuits.addresses())
        with trio.fail_after(5):
            while not hosts.answering.starts(hosts.starter.peer_id):
                await trio.sleep(0.01)
        results = []

        async def punch(puncher: Puncher, peer: Host) -> None:
            results.append((await puncher.punch(peer.peer_id)).path)

        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(punch, hosts.starting, hosts.answerer)
                nursery.start_soon(punch, hosts.answering, hosts.starter)
        # Who gave way may hear of that before it hears of the attempt that goes on.
        assert PUNCHED in results
        with trio.fail_after(5):
            while not all(
                host.paths(other.peer_id)[0] == PUNCHED
                for host, other in ((hosts.starter, hosts.answerer), (hosts.answerer, hosts.starter))
            ):
                await trio.sleep(0.01)


async def test_a_peer_that_breaks_off_is_not_waited_for() -> None:
    async with pair() as hosts:
        talk = await hosts.starter.open_stream(hosts.answerer.peer_id, DCUTR)
        await talk.send_all(encode(Connect((("127.0.0.2", 1),))))
        assert isinstance(await receive(talk), Connect)
        await talk.reset()
        with trio.fail_after(5):
            while hosts.answering._running:
                await trio.sleep(0.01)


async def test_sync_before_connect_breaks_the_rules() -> None:
    async with pair() as hosts:
        talk = await hosts.starter.open_stream(hosts.answerer.peer_id, DCUTR)
        await talk.send_all(encode(Sync()))
        with trio.fail_after(5), pytest.raises(PeerUnavailableError):
            await receive(talk)


async def test_the_keeper_asks_where_we_are_seen_and_punches_by_itself() -> None:
    async with (
        relay_node() as relay,
        relayed_host("127.0.0.2", relay) as one,
        relayed_host("127.0.0.3", relay) as other,
        trio.open_nursery() as nursery,
    ):
        relay.host.serve(SWARM, say_seen)
        for node in (one, other):
            mapping = Mapping()
            nursery.start_soon(PunchKeeper(node.host, Puncher(node.host, mapping), mapping).run)
            with trio.fail_after(10):
                while mapping.current(trio.current_time()) != node.host.listen_endpoints():
                    await trio.sleep(0.01)
        await meet(other.host, one)
        with trio.fail_after(20):
            for host, peer in ((one.host, other.peer), (other.host, one.peer)):
                while PUNCHED not in host.paths(peer):
                    await trio.sleep(0.01)
        nursery.cancel_scope.cancel()


async def test_what_a_connection_saw_is_forgotten_when_it_ends() -> None:
    async with relay_node() as relay, relayed_host("127.0.0.2", relay) as one:
        relay.host.serve(SWARM, say_seen)
        mapping = Mapping()
        observing = Observing(one.host, mapping)
        await observing.refresh()
        assert mapping.current(trio.current_time()) == one.host.listen_endpoints()
        one.circuits.want(False)
        await one.host.disconnect(relay.peer)
        await observing.refresh()
        assert mapping.current(trio.current_time()) == ()
