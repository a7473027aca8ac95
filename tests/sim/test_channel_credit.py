"""Credits keep a sender at most INITIAL_CREDITS messages ahead, and never let it starve."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from shardp2p.errors import LocalProtocolError, PeerUnavailableError, RemoteProtocolError
from shardp2p.vocabulary import ChunkRef, PeerId, SessionId, Slot
from shardp2p.wire.channel import MessageChannel, open_channel
from shardp2p.wire.credit import (
    CREDIT_BATCH,
    CreditBalance,
    CreditReceiver,
    CreditSender,
    CreditWindow,
)
from shardp2p.wire.messages import Credit, End, Hello, Message, Verdict
from shardp2p.wire.protocols import INITIAL_CREDITS, RING
from shardp2p.wire.stream import Stream
from tests.support.memory_network import MemorySwarm

A, B = PeerId("peer-a"), PeerId("peer-b")
SESSION = SessionId("5e" * 16)


def verdict(seq: int) -> Verdict:
    return Verdict(ChunkRef(SESSION, 0, seq, Slot(seq)), 0, (seq,))


@given(st.lists(st.booleans(), max_size=400))
def test_any_schedule_keeps_the_window_and_never_starves(wants_to_send: list[bool]) -> None:
    balance, window = CreditBalance(), CreditWindow()
    for is_send in wants_to_send:
        if is_send and balance.spend():
            window.arrive()
        elif window.held and (granted := window.finish()):
            balance.add(granted)
        assert window.held <= INITIAL_CREDITS
    while window.held:
        if granted := window.finish():
            balance.add(granted)
    assert balance.available > INITIAL_CREDITS - CREDIT_BATCH


def test_a_sender_without_credit_breaks_the_protocol() -> None:
    window = CreditWindow()
    for _ in range(INITIAL_CREDITS):
        window.arrive()
    with pytest.raises(RemoteProtocolError, match="without credit"):
        window.arrive()


def test_a_receiver_that_grants_more_than_it_got_breaks_the_protocol() -> None:
    balance = CreditBalance()
    assert balance.spend()
    balance.add(1)
    with pytest.raises(RemoteProtocolError, match="more than was sent"):
        balance.add(1)


def test_finishing_what_never_arrived_is_our_bug() -> None:
    with pytest.raises(LocalProtocolError, match="never arrived"):
        CreditWindow().finish()


@asynccontextmanager
async def ring(swarm: MemorySwarm) -> AsyncIterator[tuple[MessageChannel, MessageChannel]]:
    """The channels at both ends of a ring stream from A to B."""
    accepted: list[Stream] = []
    done = trio.Event()

    async def handler(stream: Stream) -> None:
        accepted.append(stream)
        await done.wait()

    swarm.network(B).serve(RING, handler)
    async with open_channel(await swarm.network(A).open_stream(B, RING), RING) as ours:
        await wait_all_tasks_blocked()
        yield ours, MessageChannel(accepted[0], RING)
        done.set()


async def test_a_sender_waits_for_credit_and_goes_on_when_it_comes(nursery: trio.Nursery) -> None:
    sent: list[int] = []
    total = 3 * INITIAL_CREDITS

    async def send_all(sender: CreditSender) -> None:
        for seq in range(total):
            await sender.send(verdict(seq))
            sent.append(seq)
        await sender.end()

    async with ring(MemorySwarm(nursery)) as (ours, theirs):
        sender, receiver = CreditSender(ours), CreditReceiver(theirs)
        await ours.send(Hello(SESSION, 0))
        nursery.start_soon(sender.run)
        nursery.start_soon(send_all, sender)
        await wait_all_tasks_blocked()
        assert len(sent) == INITIAL_CREDITS
        assert await receiver.receive() == Hello(SESSION, 0)
        for seq in range(CREDIT_BATCH):
            assert await receiver.receive() == verdict(seq)
            await receiver.finish()
        await wait_all_tasks_blocked()
        assert len(sent) == INITIAL_CREDITS + CREDIT_BATCH
        for seq in range(CREDIT_BATCH, total):
            assert await receiver.receive() == verdict(seq)
            await receiver.finish()
        assert await receiver.receive() == End()


async def test_many_senders_go_in_order(nursery: trio.Nursery) -> None:
    async with ring(MemorySwarm(nursery)) as (ours, theirs):
        sender, receiver = CreditSender(ours), CreditReceiver(theirs)
        nursery.start_soon(sender.run)
        for seq in range(INITIAL_CREDITS + 2):
            nursery.start_soon(sender.send, verdict(seq))
            await wait_all_tasks_blocked()
        for seq in range(INITIAL_CREDITS + 2):
            assert await receiver.receive() == verdict(seq)
            await receiver.finish()
        await sender.end()


async def test_run_ends_quietly_when_the_stream_closes_after_end(nursery: trio.Nursery) -> None:
    async with ring(MemorySwarm(nursery)) as (ours, theirs):
        sender = CreditSender(ours)
        await sender.end()
        await theirs.aclose()
        await sender.run()
        with pytest.raises(LocalProtocolError, match="was ended"):
            await sender.send(verdict(0))


async def test_a_receiver_that_dies_wakes_a_send_that_waits(nursery: trio.Nursery) -> None:
    swarm = MemorySwarm(nursery)
    failures: list[str] = []

    async def note(action: str, sender: CreditSender) -> None:
        try:
            await (sender.run() if action == "run" else sender.send(verdict(99)))
        except PeerUnavailableError as error:
            failures.append(f"{action}: {error.peer}")

    async with ring(swarm) as (ours, _):
        sender = CreditSender(ours)
        for seq in range(INITIAL_CREDITS):
            await sender.send(verdict(seq))
        nursery.start_soon(note, "run", sender)
        nursery.start_soon(note, "send", sender)
        await wait_all_tasks_blocked()
        assert failures == []
        swarm.kill(B)
        await wait_all_tasks_blocked()
        assert failures == ["run: peer-b", "send: peer-b"]


async def test_a_send_cancelled_while_it_waits_spends_no_credit(nursery: trio.Nursery) -> None:
    async with ring(MemorySwarm(nursery)) as (ours, theirs):
        sender, receiver = CreditSender(ours), CreditReceiver(theirs)
        nursery.start_soon(sender.run)
        for seq in range(INITIAL_CREDITS):
            await sender.send(verdict(seq))
        with trio.CancelScope() as scope:
            nursery.start_soon(cancel_when_blocked, scope)
            await sender.send(verdict(99))
        assert scope.cancelled_caught
        for _ in range(INITIAL_CREDITS):
            await receiver.receive()
            await receiver.finish()
        await wait_all_tasks_blocked()
        for seq in range(INITIAL_CREDITS):
            await sender.send(verdict(seq))
        for seq in range(INITIAL_CREDITS):
            assert await receiver.receive() == verdict(seq)
        await sender.end()


@pytest.mark.parametrize(
    ("message", "why"), [(verdict(0), "Verdict instead of Credit"), (Credit(1), "more than was sent")]
)
async def test_a_receiver_that_breaks_the_rules_is_blamed(nursery: trio.Nursery, message: Message, why: str) -> None:
    async with ring(MemorySwarm(nursery)) as (ours, theirs):
        await theirs.send(message)
        sender = CreditSender(ours)
        with pytest.raises(RemoteProtocolError, match=why) as caught:
            await sender.run()
        assert caught.value.peer == B
        with pytest.raises(RemoteProtocolError, match=why):
            await sender.send(verdict(0))


async def test_a_sender_that_breaks_the_rules_is_blamed(nursery: trio.Nursery) -> None:
    async with ring(MemorySwarm(nursery)) as (ours, theirs):
        receiver = CreditReceiver(theirs)
        await ours.send(Credit(1))
        with pytest.raises(RemoteProtocolError, match="wrong direction"):
            await receiver.receive()
        for seq in range(INITIAL_CREDITS + 1):
            await ours.send(verdict(seq))
        for _ in range(INITIAL_CREDITS):
            await receiver.receive()
        with pytest.raises(RemoteProtocolError, match="without credit") as caught:
            await receiver.receive()
        assert caught.value.peer == A


async def cancel_when_blocked(scope: trio.CancelScope) -> None:
    await wait_all_tasks_blocked()
    scope.cancel()
