"""Relays that die, fall silent, refuse or lie, and peers that ask a relay for what is not theirs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio
from libp2p.relay.circuit_v2.pb import circuit_pb2 as pb

from shardp2p.config import RelayLimits
from shardp2p.errors import PeerUnavailableError
from shardp2p.host.circuit import client as client_module
from shardp2p.host.circuit import keeper as keeper_module
from shardp2p.host.circuit.candidates import Candidate
from shardp2p.host.circuit.exchange import receive_answer
from shardp2p.host.circuit.messages import decode_hop, decode_stop, delimited, encode_hop, encode_stop
from shardp2p.host.circuit.values import HOP, STOP, Connect, HopAnswer, Incoming, Limit, Reserve, Status, StopAnswer
from shardp2p.host.host import Host, open_host
from shardp2p.host.link import RESUME_S
from shardp2p.host.path import relayed
from shardp2p.host.peer_ids import id_of
from shardp2p.identity.keys import Identity
from shardp2p.vocabulary import PeerId
from shardp2p.wire.stream import Handler, Stream
from tests.process.host_peer import ECHO
from tests.support.circuits import LOOPBACK, Node, hidden_node, relay_node, wait_held
from tests.support.members import membership, peer

MIB = 1024 * 1024
STRANGER = Identity.from_seed(b"s" * 32).peer_id


@dataclass(frozen=True)
class Child:
    """A relay in a process of its own."""

    process: subprocess.Popen[str]
    candidate: Candidate

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)


@contextmanager
def relay_process() -> Iterator[Child]:
    command = [sys.executable, "-W", "error", "-m", "tests.process.relay_peer"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=Path(__file__).parents[2], stdin=pipe, stdout=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            name, *addresses = process.stdout.readline().split()
            yield Child(process, Candidate(PeerId(name), tuple(addresses), "child"))
        finally:
            process.kill()


@asynccontextmanager
async def false_relay(handler: Handler) -> AsyncIterator[Host]:
    """A host that answers on HOP as `handler` does."""
    async with open_host(Identity.generate(), LOOPBACK) as host:
        host.serve(HOP, handler)
        yield host


async def echo_once(stream: Stream, data: bytes = b"hello") -> None:
    await stream.send_all(data)
    assert await stream.receive_some(100) == data


async def ask(host: Host, relay: PeerId, message: bytes) -> HopAnswer:
    """What `relay` answers to the bytes of one message."""
    stream = await host.open_stream(relay, HOP)
    await stream.send_all(message)
    answer = decode_hop(await receive_answer(stream))
    assert isinstance(answer, HopAnswer)
    return answer


def over(relay: Host, target: PeerId) -> list[str]:
    return [f"{address}/p2p-circuit/p2p/{target}" for address in relay.listen_addresses()]


async def wait_holds(node: Node, *wanted: PeerId) -> None:
    while {held.peer for held in node.circuits.held()} != set(wanted):
        await node.circuits.wait_changed()


# Relays that end.


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
async def test_relay_that_stops_or_dies_is_replaced_within_ten_seconds(number: signal.Signals) -> None:
    with relay_process() as child:
        async with relay_node() as second, relay_node() as third, hidden_node() as target, hidden_node() as client:
            target.circuits.set_candidates([child.candidate, second.as_candidate("second")])
            target.circuits.want(True)
            await wait_held(target, 2)
            [over_child] = [text for text in target.circuits.addresses() if child.candidate.peer in text]
            stream = await client.host.open_stream(target.peer, ECHO, [over_child])
            await echo_once(stream)
            target.circuits.set_candidates(
                [child.candidate, second.as_candidate("second"), third.as_candidate("third")]
            )
            child.signal(number)
            with trio.fail_after(10):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(wait_holds, target, second.peer, third.peer)
                    with pytest.raises(PeerUnavailableError, match=rf"silent|lost the relay {child.candidate.peer}"):
                        await stream.receive_some(1)
            assert child.candidate.peer in target.circuits.troubles()
            await echo_once(await client.open_echo(target))


async def test_relay_that_came_back_is_used_again() -> None:
    identity = Identity.generate()
    async with hidden_node() as target:
        async with open_host(identity, LOOPBACK) as first:
            [address] = first.listen_addresses()
        listen = address.partition("/p2p/")[0]
        target.circuits.set_candidates([Candidate(identity.peer_id, (address,))])
        target.circuits.want(True)
        await trio.sleep(0.5)
        async with relay_node(identity=identity, listen=listen):
            await wait_held(target, 1)
        await wait_held(target, 0)


async def test_line_to_a_relay_that_falls_silent_is_replaced_and_the_relay_asks_over_the_new_one() -> None:
    async with relay_node() as relay, hidden_node(relay) as node, hidden_node() as client:
        (old,), (old_far,) = node.host.connections(relay.peer), relay.host.connections(node.peer)
        with trio.fail_after(20), old.link.holding(), old_far.link.holding():  # both ends hear nothing of the other
            old.link.vigil.is_suspect = True
            old.link._turned.unpark_all()
            while len(node.host.connections(relay.peer)) < 2:
                await node.host.wait_arrival()
            stream = await client.open_echo(node)
            await echo_once(stream)
            assert old.failure is None
            assert old_far.failure is None
            assert [candidate.peer for candidate in node.circuits.held()] == [relay.peer]


async def test_relay_that_stops_relaying_ends_what_it_lent() -> None:
    async with relay_node() as relay, hidden_node(relay) as target, hidden_node() as client:
        stream = await client.open_echo(target)
        await echo_once(stream)
        relay.circuits.relay(None)
        # A connection that lost its path waits for another before its streams fail.
        with trio.fail_after(RESUME_S + 3):
            with pytest.raises(PeerUnavailableError, match=f"the relay {relay.peer} ended the circuit"):
                await stream.receive_some(1)
            await wait_held(target, 0)
        assert relay.circuits.relaying is None


# Relays that lie.


async def test_relay_that_ends_circuits_after_a_megabyte_is_named_and_replaced() -> None:
    async with relay_node(RelayLimits(circuit_bytes=MIB)) as liar, relay_node() as honest, hidden_node(liar) as target:
        assert liar.circuits._relay is not None
        liar.circuits._relay._limit = Limit()
        target.circuits.set_candidates([liar.as_candidate("one"), honest.as_candidate("two")])
        await wait_held(target, 2)
        async with hidden_node() as client:
            with trio.fail_after(30):
                while liar.peer in {held.peer for held in target.circuits.held()}:
                    stream = await client.host.open_stream(target.peer, ECHO, over(liar.host, target.peer))
                    with pytest.raises(PeerUnavailableError, match=r"ended the circuit after [01]\.\d MiB"):
                        await pour(stream)
                    await until_disconnected(client.host, target.peer)
            assert "circuits over it broke" in target.circuits.troubles()[liar.peer]
            await echo_once(await client.open_echo(target))


async def pour(stream: Stream) -> None:
    """Send and receive without an end."""
    while True:
        await stream.send_all(bytes(32 * 1024))
        await stream.receive_some(65536)


async def until_disconnected(host: Host, other: PeerId) -> None:
    while host.is_connected(other):
        await trio.sleep(0.01)


async def test_limit_that_a_relay_admits_is_named_in_the_error() -> None:
    async with (
        relay_node(RelayLimits(circuit_bytes=MIB)) as relay,
        hidden_node(relay) as target,
        hidden_node() as client,
    ):
        stream = await client.open_echo(target)
        with pytest.raises(PeerUnavailableError, match=r"ended the circuit after .*, and allows 1\.0 MiB"):
            await pour(stream)


async def test_relay_that_stops_passing_bytes_is_noticed_by_both_ends_within_six_seconds() -> None:
    async with relay_node() as relay, hidden_node(relay) as target, hidden_node() as client:
        stream = await client.open_echo(target)
        await echo_once(stream)
        assert relay.circuits._relay is not None
        relay.circuits._relay._allowance.take = lambda count, now: now + 1e6  # type: ignore[method-assign]
        with trio.fail_after(6), pytest.raises(PeerUnavailableError, match="has been silent"):
            await stream.receive_some(1)
        with trio.fail_after(6):
            await until_disconnected(target.host, client.peer)
        assert target.host.is_connected(relay.peer)


async def test_relay_that_gives_places_up_early_is_left_alone_longer_every_time() -> None:
    asked_at: list[float] = []

    async def give_up(stream: Stream) -> None:
        asked_at.append(trio.current_time())
        await receive_answer(stream)
        await stream.send_all(encode_hop(HopAnswer(Status.OK, int(time.time()) + 3600)))
        await trio.sleep(0.05)

    async with false_relay(give_up) as liar, hidden_node() as target:
        target.circuits.set_candidates([Candidate(liar.peer_id, liar.listen_addresses())])
        target.circuits.want(True)
        await trio.sleep(4)
        assert 2 <= len(asked_at) <= 4
        assert target.circuits.troubles() == {liar.peer_id: "the relay gave up our reservation"}


# What the client is told.


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (Status.RESOURCE_LIMIT_EXCEEDED, "the relay has no room for another circuit"),
        (Status.PERMISSION_DENIED, "the relay refuses us"),
        (Status.CONNECTION_FAILED, "the relay got no answer from that peer"),
        (Status.NO_RESERVATION, "that peer has no reservation there"),
        (Status.MALFORMED_MESSAGE, "the relay did not understand us"),
    ],
)
async def test_client_is_told_why_a_relay_refuses(status: Status, reason: str) -> None:
    async def refuse(stream: Stream) -> None:
        await receive_answer(stream)
        await stream.send_all(encode_hop(HopAnswer(status)))

    async with false_relay(refuse) as relay, hidden_node() as client:
        with pytest.raises(PeerUnavailableError, match=f"p2p-circuit/p2p/{STRANGER}: {reason}"):
            await client.host.open_stream(STRANGER, ECHO, over(relay, STRANGER))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "ended the stream without an answer"),
        (b"\xff\xff\xff", "the relay broke the circuit protocol: a circuit message is longer than 4096 bytes"),
        (delimited(b"\xff\xff"), "the relay broke the circuit protocol: a circuit message cannot be decoded"),
        (encode_hop(Reserve()), "the relay broke the circuit protocol: it asked instead of answering"),
    ],
)
async def test_client_is_told_when_a_relay_answers_nonsense(answer: bytes, reason: str) -> None:
    async def nonsense(stream: Stream) -> None:
        await receive_answer(stream)
        await stream.send_all(answer)

    async with false_relay(nonsense) as relay, hidden_node() as client:
        with pytest.raises(PeerUnavailableError, match=reason):
            await client.host.open_stream(STRANGER, ECHO, over(relay, STRANGER))


async def test_relay_that_never_answers_fails_the_client_and_the_keeper(monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(stream: Stream) -> None:
        await stream.receive_some(1)
        await trio.sleep(30)

    monkeypatch.setattr(client_module, "ANSWER_S", 0.3)
    monkeypatch.setattr(keeper_module, "ASK_S", 0.5)
    async with false_relay(silent) as relay, hidden_node() as node:
        with trio.fail_after(5), pytest.raises(PeerUnavailableError, match="the relay does not answer"):
            await node.host.open_stream(STRANGER, ECHO, over(relay, STRANGER))
        node.circuits.set_candidates([Candidate(relay.peer_id, relay.listen_addresses())])
        node.circuits.want(True)
        with trio.fail_after(5):
            while not node.circuits.troubles():
                await trio.sleep(0.01)
        assert node.circuits.troubles() == {relay.peer_id: "the relay does not answer"}


async def test_relay_that_does_not_answer_is_not_waited_for_when_there_is_another() -> None:
    async def silent(stream: Stream) -> None:
        await stream.receive_some(1)
        await trio.sleep(30)

    async with (
        false_relay(silent) as dead,
        relay_node() as relay,
        hidden_node(relay) as target,
        hidden_node() as client,
    ):
        addresses = [*over(dead, target.peer), *target.circuits.addresses()]
        with trio.fail_after(4):
            await echo_once(await client.host.open_stream(target.peer, ECHO, addresses))
        assert client.host.paths(target.peer) == (relayed(relay.peer),)


async def test_impossible_circuits_are_refused_without_a_dial() -> None:
    async with relay_node() as relay, hidden_node() as client:
        with pytest.raises(PeerUnavailableError, match="a relay is not reached over itself"):
            await client.host.open_stream(relay.peer, ECHO, over(relay.host, relay.peer))
        with pytest.raises(PeerUnavailableError, match="we are that relay"):
            await relay.host.open_stream(STRANGER, ECHO, over(relay.host, STRANGER))


# What a relay does not do.


async def test_place_is_taken_for_the_peer_that_asks_and_for_nobody_it_names() -> None:
    async with relay_node() as relay, open_host(Identity.generate()) as thief, hidden_node() as client:
        await thief.connect(relay.peer, relay.host.listen_addresses())
        claim = pb.HopMessage(type=pb.HopMessage.RESERVE, peer=pb.PeerId(id=id_of(STRANGER).to_bytes()))
        stream = await thief.open_stream(relay.peer, HOP)
        await stream.send_all(delimited(claim.SerializeToString()))
        assert decode_hop(await receive_answer(stream)) != HopAnswer(Status.RESERVATION_REFUSED)
        assert relay.circuits._relay is not None
        assert relay.circuits._relay._slots.peers == (thief.peer_id,)
        with pytest.raises(PeerUnavailableError, match="has no reservation there"):
            await client.host.open_stream(STRANGER, ECHO, over(relay.host, STRANGER))


async def test_full_relay_says_so_and_another_is_taken() -> None:
    async with (
        relay_node(RelayLimits(reservations=1)) as full,
        relay_node() as free,
        hidden_node(full),
        hidden_node() as late,
    ):
        late.circuits.set_candidates([full.as_candidate("one"), free.as_candidate("two")])
        late.circuits.want(True)
        await wait_held(late, 1)
        with trio.fail_after(5):
            while not late.circuits.troubles():
                await trio.sleep(0.01)
        assert late.circuits.troubles() == {full.peer: "the relay has no room"}
        assert [held.peer for held in late.circuits.held()] == [free.peer]


async def test_place_of_a_peer_that_left_makes_room_at_once() -> None:
    async with relay_node(RelayLimits(reservations=1)) as relay:
        async with hidden_node(relay):
            pass
        async with hidden_node(relay):
            pass


async def test_peer_that_opens_too_many_streams_is_refused() -> None:
    async with relay_node(RelayLimits(circuits_per_peer=1)) as relay, hidden_node() as client:
        await client.host.connect(relay.peer, relay.host.listen_addresses())
        statuses = [(await ask(client.host, relay.peer, encode_hop(Reserve()))).status for _ in range(10)]
        assert statuses == [Status.OK] * 9 + [Status.RESOURCE_LIMIT_EXCEEDED]


async def test_dials_that_are_given_up_leave_nothing_at_the_relay() -> None:
    async with relay_node() as relay, hidden_node(relay) as target, hidden_node() as client:
        for number in range(30):
            with trio.move_on_after(0.002 * number):
                await client.open_echo(target)
            await client.host.disconnect(target.peer)
        with trio.fail_after(10):
            while relay.circuits.relaying is None or relay.circuits.relaying.circuits:
                await trio.sleep(0.01)
        await echo_once(await client.open_echo(target))


async def test_circuits_over_circuits_are_refused() -> None:
    async with relay_node() as relay, hidden_node(relay) as target, hidden_node() as client:
        target.circuits.relay(RelayLimits())
        await echo_once(await client.open_echo(target))
        for message in (Reserve(), Connect(STRANGER)):
            answer = await ask(client.host, target.peer, encode_hop(message))
            assert answer.status is Status.PERMISSION_DENIED


async def test_circuit_is_taken_only_from_a_relay_where_we_have_a_place() -> None:
    async with hidden_node() as node, open_host(Identity.generate(), LOOPBACK) as other:
        await node.host.connect(other.peer_id, other.listen_addresses())
        stream = await other.open_stream(node.peer, STOP)
        await stream.send_all(encode_stop(Incoming(STRANGER)))
        assert decode_stop(await receive_answer(stream)) == StopAnswer(Status.PERMISSION_DENIED)


@pytest.mark.parametrize("message", [b"\xff\xff\xff", delimited(b""), delimited(b"\x08\x01")])
async def test_relay_answers_nonsense_with_malformed_and_goes_on(message: bytes) -> None:
    async with relay_node() as relay, hidden_node() as client:
        await client.host.connect(relay.peer, relay.host.listen_addresses())
        assert (await ask(client.host, relay.peer, message)).status is Status.MALFORMED_MESSAGE
        assert (await ask(client.host, relay.peer, encode_hop(Reserve()))).status is Status.OK


async def test_place_is_renewed_on_its_stream_and_ends_when_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = RelayLimits()
    object.__setattr__(limits, "reservation_s", 1.0)  # shorter than is allowed, so that a test can wait for it
    monkeypatch.setattr(keeper_module, "renewal_s", lambda lifetime_s: 0.2)
    async with relay_node(limits) as relay, hidden_node(relay) as target:
        changes = 0
        with trio.move_on_after(2.5):
            while True:
                await target.circuits.wait_changed()
                changes += 1
        assert changes == 0
        monkeypatch.setattr(keeper_module, "renewal_s", lambda lifetime_s: 100.0)
        with trio.fail_after(4):
            await target.circuits.wait_changed()
        assert target.circuits.held() == ()
        assert target.circuits.troubles() == {relay.peer: "the relay gave up our reservation"}


# A private swarm.


async def test_members_reach_each_other_over_a_member_and_a_stranger_gets_no_circuit() -> None:
    now_s = time.time()
    known = [membership(number, now_s=now_s) for number in range(4)]
    async with (
        relay_node(membership=known[1], identity=peer(1)) as relay,
        hidden_node(relay, membership=known[2], identity=peer(2)) as target,
        hidden_node(membership=known[3], identity=peer(3)) as client,
        hidden_node() as stranger,
    ):
        await echo_once(await client.open_echo(target))
        with pytest.raises(PeerUnavailableError, match="another security protocol"):
            await stranger.open_echo(target)
