"""A stage serves whoever keeps to the protocols, and is none the worse for whoever does not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock

from shardp2p.errors import PeerUnavailableError
from shardp2p.stage.live import END_S, JOIN_S
from shardp2p.stage.service import HELLO_WAIT_S, MAX_SESSIONS, OPEN_WAIT_S
from shardp2p.vocabulary import NO_PARENT, ChunkRef, LayerRange, PeerId, SamplingParams, SessionId, Slot
from shardp2p.wire.channel import MessageChannel, open_channel
from shardp2p.wire.codec import encode
from shardp2p.wire.credit import INITIAL_CREDITS, CreditReceiver, CreditSender
from shardp2p.wire.messages import (
    Activations,
    Chunk,
    Close,
    Closed,
    Commit,
    Credit,
    End,
    Failure,
    Hello,
    Message,
    Open,
    Opened,
    PeerAddress,
    Tokens,
    Verdict,
)
from shardp2p.wire.protocols import CONTROL, RING
from shardp2p.wire.stream import Stream
from shardp2p.wire.tensor_frame import TensorFrame
from tests.support.fake_block import MODEL_LAYERS, fake_reference
from tests.support.memory_network import MemoryNetwork
from tests.support.sim_ring import CACHE_ROWS, DIGEST, HANGS_S, SimRing, prompt, request, stage_id

SESSION = SessionId("a0" * 16)
STAGE, CLIENT, PREVIOUS = stage_id(1), PeerId("client"), PeerId("previous")
ROWS = 200
PENALISED = SamplingParams(repetition_penalty=1.2)


class Client:
    """A scripted coordinator of one whole-model stage, and the next peer of its ring; `previous` is another peer."""

    def __init__(self, ring: SimRing, stack: AsyncExitStack) -> None:
        self.sim = ring
        self.network = ring.swarm.network(CLIENT)
        self.previous = ring.swarm.network(PREVIOUS)
        self.received: list[Message] = []
        self.gives_credit = True
        self._stack = stack
        self._arrived = trio.Event()
        self.network.serve(RING, self._serve_ring)

    async def _serve_ring(self, stream: Stream) -> None:
        async with open_channel(stream, RING) as channel:
            receiver = CreditReceiver(channel)
            while not self.received or not isinstance(self.received[-1], End):
                self.received.append(await receiver.receive())
                self._arrived.set()
                self._arrived = trio.Event()
                if self.gives_credit and isinstance(self.received[-1], Verdict):
                    await receiver.finish()

    @property
    def verdicts(self) -> list[Verdict]:
        return [message for message in self.received if isinstance(message, Verdict)]

    async def wait_verdicts(self, count: int) -> None:
        while len(self.verdicts) < count:
            await self._arrived.wait()

    def request(self, **changes: object) -> Open:
        usual = Open(
            session=SESSION,
            model_digest=DIGEST,
            layers=LayerRange(0, MODEL_LAYERS),
            dtype="float32",
            cache_rows=ROWS,
            max_chunks=4,
            next=PeerAddress(self.network.peer_id),
        )
        return replace(usual, **changes)  # type: ignore[arg-type]

    async def control(self) -> MessageChannel:
        stream = await self.network.open_stream(STAGE, CONTROL)
        return await self._stack.enter_async_context(open_channel(stream, CONTROL))

    async def open(self, **changes: object) -> MessageChannel:
        control = await self.control()
        await control.send(self.request(**changes))
        opened = await control.receive()
        assert isinstance(opened, Opened)
        return control

    async def ring(self, network: MemoryNetwork | None = None) -> MessageChannel:
        """The ring stream to the stage, from `previous` where no other is named."""
        stream = await (network or self.previous).open_stream(STAGE, RING)
        channel = await self._stack.enter_async_context(open_channel(stream, RING))
        await channel.send(Hello(SESSION, 0))
        return channel


def chunk(first: int, tokens: Sequence[int], *, seq: int, epoch: int = 0, **changes: object) -> Chunk:
    """A chain of committed tokens below slot `first` - 1."""
    last = first + len(tokens) - 1
    parents = tuple(Slot(slot - 1) for slot in range(first, last + 1))
    usual = Chunk(ChunkRef(SESSION, epoch, seq, Slot(first)), tuple(tokens), parents, Slot(last))
    return replace(usual, **changes)  # type: ignore[arg-type]


@asynccontextmanager
async def stage_and_client(compute_s: float = 0.01) -> AsyncIterator[Client]:
    """A ring of one stage and its client; in the end the stage must have nothing left and still serve well."""
    with trio.fail_after(HANGS_S):
        async with trio.open_nursery() as nursery:
            ring = SimRing(nursery, 1, compute_s=compute_s)
            async with AsyncExitStack() as stack:
                yield Client(ring, stack)
            await ring.assert_settled()
            tokens, _ = await ring.generate(request())
            assert tokens == fake_reference(prompt(), 24)


async def drain(stream: Stream) -> None:
    while await stream.receive_some(1000):
        pass


async def failure_of(control: MessageChannel) -> Failure:
    message = await control.receive()
    assert isinstance(message, Failure)
    return message


async def test_a_session_answers_every_chunk_and_gives_its_account(autojump_clock: MockClock) -> None:
    async with stage_and_client() as client:
        control = await client.open()
        assert client.sim.held[STAGE].free_cache_rows == CACHE_ROWS - ROWS
        stream = await client.ring()
        await stream.send(chunk(0, prompt()[:8], seq=0, quiet=8))
        await stream.send(chunk(8, prompt()[8:], seq=1, quiet=3))
        await client.wait_verdicts(2)
        assert [v.choices for v in client.verdicts] == [(), fake_reference(prompt(), 1)]
        await stream.send(End())
        await control.send(Close())
        closed = await control.receive()
        assert isinstance(closed, Closed)
        assert (closed.chunks, closed.rows, closed.skipped_rows) == (2, 12, 0)
        assert isinstance(client.received[0], Hello)
        await trio.sleep(0.1)
        assert isinstance(client.received[-1], End)


FIRST = chunk(0, (1, 2, 3), seq=0)
THREE_ROWS = TensorFrame("raw", "float32", (3, 1), bytes(12))
BROKEN: dict[str, list[Message]] = {
    "a hole in seq": [FIRST, chunk(3, (4,), seq=2)],
    "a hole in the slots": [FIRST, chunk(4, (4,), seq=1)],
    "an overlap of slots": [FIRST, chunk(2, (4,), seq=1)],
    "a first slot above 0": [chunk(3, (4,), seq=0)],
    "an epoch that keeps what never was": [FIRST, chunk(5, (4,), seq=1, epoch=1)],
    "a dead root": [
        chunk(0, (1, 2, 3), seq=0, parents=(NO_PARENT, Slot(0), Slot(0)), root=Slot(1)),
        chunk(3, (4,), seq=1, parents=(Slot(1),), root=Slot(2)),
    ],
    "a token outside the vocabulary": [chunk(0, (1, 9_999), seq=0)],
    "more chunks than agreed": [FIRST, *(chunk(3 + i, (4,), seq=1 + i) for i in range(20))],
    "another session": [replace(FIRST, ref=replace(FIRST.ref, session=SessionId("b1" * 16)))],
    "activations": [
        Activations(FIRST.ref, FIRST.parents, FIRST.root, 0, (), TensorFrame("raw", "float32", (3, 1), bytes(12)))
    ],
    "a verdict": [Verdict(FIRST.ref, 0, (1, 2, 3))],
    "a second hello": [Hello(SESSION, 0)],
    "credit": [Credit(1)],
}


@pytest.mark.parametrize("what", BROKEN)
async def test_a_previous_peer_that_breaks_the_ring_protocol_is_reported(what: str, autojump_clock: MockClock) -> None:
    async with stage_and_client() as client:
        control, stream = await client.open(), await client.ring()
        for message in BROKEN[what]:
            await stream.send(message)
        failure = await failure_of(control)
        assert (failure.status, failure.peer_id) == ("protocol", PREVIOUS)


async def test_garbage_on_the_ring_is_reported_before_the_stream_breaks(autojump_clock: MockClock) -> None:
    async with stage_and_client() as client:
        control = await client.open()
        stream = await client.previous.open_stream(STAGE, RING)
        await stream.send_all(encode(RING, Hello(SESSION, 0)) + b"\xff\xff\xff\xff\xff\xff")
        failure = await failure_of(control)
        assert (failure.status, failure.peer_id) == ("protocol", PREVIOUS)
        with trio.move_on_after(1.0) as scope:
            await stream.receive_some(1)
        assert scope.cancelled_caught  # a neighbour that saw it break now would blame this stage
        await control.aclose()
        with pytest.raises(PeerUnavailableError, match="reset"):
            await stream.receive_some(1)
        await stream.reset()


BROKEN_CONTROL: dict[str, Message] = {
    "a commit of a slot that is not there": Commit(0, Slot(9), Slot(8)),
    "token ids that nobody needs": Tokens(0, Slot(0), (1, 2)),
    "a failure": Failure("internal", "no"),
    "an account": Closed(0, 0, 0, 0.0, 0.0),
}


@pytest.mark.parametrize("what", [*BROKEN_CONTROL, "a second open", "garbage"])
async def test_a_coordinator_that_breaks_the_control_protocol_is_told(what: str, autojump_clock: MockClock) -> None:
    async with stage_and_client() as client:
        stream = await client.network.open_stream(STAGE, CONTROL)
        async with open_channel(stream, CONTROL) as control:
            await control.send(client.request())
            assert isinstance(await control.receive(), Opened)
            if what == "garbage":
                await stream.send_all(b"\x63garbage")
            else:
                await control.send(BROKEN_CONTROL.get(what) or client.request())
            failure = await failure_of(control)
            assert (failure.status, failure.peer_id) == ("protocol", CLIENT)


@pytest.mark.parametrize("message", [Close(), Commit(0, Slot(1), Slot(0)), Closed(0, 0, 0, 0.0, 0.0)])
async def test_a_control_stream_begins_with_open(message: Message, autojump_clock: MockClock) -> None:
    async with stage_and_client() as client:
        control = await client.control()
        await control.send(message)
        assert (await failure_of(control)).status == "protocol"


async def test_a_message_before_the_answer_to_open_ends_the_session(autojump_clock: MockClock) -> None:
    async with stage_and_client() as client:
        client.sim.swarm.delay(STAGE, CLIENT, 1.0)
        control = await client.control()
        await control.send(client.request())
        await control.send(Close())
        assert (await failure_of(control)).status == "protocol"


REFUSED: dict[str, tuple[dict[str, object], str, str]] = {
    "another model": ({"model_digest": "00" * 32}, "config", "this stage serves d1d1"),
    "another dtype": ({"dtype": "float16"}, "config", "this stage serves float32"),
    "other layers": ({"layers": LayerRange(3, 7)}, "config", "the layers asked for is 3:7; this stage serves 0:6"),
    "too many chunks": ({"max_chunks": INITIAL_CREDITS + 1}, "config", "33 chunks at once are too many"),
    "too many rows": ({"cache_rows": CACHE_ROWS + 1}, "overloaded", "2001 cache rows are asked for and 2000 of 2000"),
    "nobody next": ({"next": PeerAddress(PeerId("nobody"))}, "unavailable", "nobody cannot be reached"),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_what_cannot_be_served_is_declined_with_the_reason(what: str, autojump_clock: MockClock) -> None:
    changes, status, text = REFUSED[what]
    async with stage_and_client() as client:
        control = await client.control()
        await control.send(client.request(**changes))
        failure = await failure_of(control)
        assert failure.status == status
        assert text in failure.message


async def test_sessions_are_bounded(autojump_clock: MockClock) -> None:
    async with stage_and_client() as client:
        for number in range(MAX_SESSIONS):
            await client.open(session=SessionId(f"{number:032x}"), cache_rows=1)
        control = await client.control()
        await control.send(client.request(cache_rows=1))
        assert (await failure_of(control)).status == "overloaded"


async def test_sessions_that_no_previous_peer_joins_make_room(autojump_clock: MockClock) -> None:
    async with stage_and_client() as client:
        controls = [
            await client.open(session=SessionId(f"{number:032x}"), cache_rows=1) for number in range(MAX_SESSIONS)
        ]
        failures = [await failure_of(control) for control in controls]
        assert {(f.status, f.peer_id) for f in failures} == {("unavailable", None)}
        assert "no peer of the ring sent anything" in failures[0].message
        for control in controls:
            await control.aclose()
        await trio.sleep(1.0)
        await client.open()


async def test_a_session_whose_previous_peer_has_joined_may_be_idle(autojump_clock: MockClock) -> None:
    async with stage_and_client() as client:
        await client.open()
        await trio.sleep(JOIN_S - 1)
        stream = await client.ring()
        await trio.sleep(10 * JOIN_S)
        await stream.send(chunk(0, prompt(), seq=0, quiet=11))
        await client.wait_verdicts(1)


async def test_a_control_stream_on_which_nothing_comes_is_let_go(autojump_clock: MockClock) -> None:
    async with stage_and_client() as client:
        control = await client.control()
        failure = await failure_of(control)
        assert (failure.status, failure.peer_id) == ("protocol", CLIENT)
        assert trio.current_time() == pytest.approx(OPEN_WAIT_S)


@pytest.mark.parametrize("wait_s", [0.0, 1.0])
async def test_a_session_cannot_be_opened_twice(wait_s: float, autojump_clock: MockClock) -> None:
    async with stage_and_client(compute_s=0.1) as client:
        first, second = await client.control(), await client.control()
        await first.send(client.request())
        await trio.sleep(wait_s)
        await second.send(client.request())
        assert isinstance(await first.receive(), Opened)
        failure = await failure_of(second)
        assert (failure.status, failure.message) == ("protocol", "the session is open already")
        await second.aclose()
        stream = await client.ring()
        await stream.send(chunk(0, prompt(), seq=0, quiet=11))
        await client.wait_verdicts(1)
        assert client.verdicts[0].choices == fake_reference(prompt(), 1)


async def test_a_hello_that_comes_before_its_session_waits_for_it(autojump_clock: MockClock) -> None:
    async with stage_and_client() as client:
        stream = await client.ring()
        await stream.send(chunk(0, prompt(), seq=0, quiet=11))
        await trio.sleep(HELLO_WAIT_S - 1)
        await client.open()
        await client.wait_verdicts(1)
        assert client.verdicts[0].choices == fake_reference(prompt(), 1)


async def test_a_hello_for_a_session_that_never_comes_is_let_go(autojump_clock: MockClock) -> None:
    async with stage_and_client() as client:
        stream = await client.ring()
        with pytest.raises(PeerUnavailableError, match="reset"):
            await stream.receive()
        assert trio.current_time() == pytest.approx(HELLO_WAIT_S)
        await trio.sleep(0.1)
        [failure] = client.sim.swarm.network(STAGE).failures
        assert isinstance(failure, PeerUnavailableError)  # not the neighbour's fault


async def test_a_second_incoming_stream_is_refused_and_the_first_goes_on(autojump_clock: MockClock) -> None:
    async with stage_and_client() as client:
        await client.open()
        stream = await client.ring()
        await trio.sleep(0.1)
        intruder = await client.ring(client.sim.swarm.network("intruder"))
        with pytest.raises(PeerUnavailableError, match="reset"):
            await intruder.receive()
        await trio.sleep(0.1)
        assert [f.peer for f in client.sim.swarm.network(STAGE).failures] == ["intruder"]
        await stream.send(chunk(0, prompt(), seq=0, quiet=11))
        await client.wait_verdicts(1)
        assert client.verdicts[0].choices == fake_reference(prompt(), 1)


async def test_more_rows_than_the_cache_holds_is_declined(autojump_clock: MockClock) -> None:
    async with stage_and_client() as client:
        control, stream = await client.open(), await client.ring()
        await stream.send(chunk(0, (1,) * (ROWS + 1), seq=0))
        failure = await failure_of(control)
        assert (failure.status, failure.peer_id) == ("overloaded", None)


async def test_every_credit_comes_back_also_for_chunks_that_a_new_epoch_drops(autojump_clock: MockClock) -> None:
    async with stage_and_client(compute_s=1.0) as client:
        await client.open(max_chunks=INITIAL_CREDITS)
        stream = await client.ring()
        sender = CreditSender(stream)
        async with trio.open_nursery() as reading:
            reading.start_soon(sender.run)
            seq = 0
            for epoch in range(4):
                for at in range(INITIAL_CREDITS - 2):
                    await sender.send(chunk(at, (at,), seq=seq, epoch=epoch))
                    seq += 1
                await trio.sleep(1.5)
            await client.wait_verdicts(INITIAL_CREDITS)
            reading.cancel_scope.cancel()
        assert len(client.verdicts) < seq


async def test_a_commit_overtakes_the_chunks_that_it_makes_needless(autojump_clock: MockClock) -> None:
    async with stage_and_client(compute_s=1.0) as client:
        control, stream = await client.open(), await client.ring()
        await stream.send(chunk(0, (1, 2), seq=0, quiet=1))
        await stream.send(chunk(2, (3, 4), seq=1, root=Slot(1)))
        await stream.send(chunk(4, (5, 6), seq=2, root=Slot(1)))
        await client.wait_verdicts(1)
        await control.send(Commit(0, Slot(6), Slot(1)))
        await stream.send(chunk(6, (9,), seq=3, parents=(Slot(1),)))
        await client.wait_verdicts(4)
        assert client.verdicts[2].choices == (None, None)
        assert client.verdicts[3].choices[0] == fake_reference((1, 2, 9), 1)[0]


async def test_token_ids_may_come_after_their_chunk(autojump_clock: MockClock) -> None:
    async with stage_and_client() as client:
        control = await client.open(sampling=PENALISED, prompt_tokens=12)
        stream = await client.ring()
        await stream.send(chunk(0, prompt(), seq=0, quiet=11))
        await trio.sleep(5)
        assert client.verdicts == []
        await control.send(Tokens(0, Slot(0), prompt()[:7]))
        await trio.sleep(5)
        assert client.verdicts == []
        await control.send(Tokens(0, Slot(7), prompt()[7:]))
        await client.wait_verdicts(1)
        assert client.verdicts[0].choices == fake_reference(prompt(), 1, sampling=PENALISED)


async def test_close_ends_the_session_while_the_device_computes(autojump_clock: MockClock) -> None:
    async with stage_and_client(compute_s=0.5) as client:
        control, stream = await client.open(), await client.ring()
        await stream.send(chunk(0, prompt(), seq=0))
        await stream.send(chunk(12, (1,), seq=1))
        await trio.sleep(0.1)
        await control.send(Close())
        closed = await control.receive()
        assert isinstance(closed, Closed)
        assert closed.chunks == 1  # the one under way; the one that waits is not computed
        await trio.sleep(0.1)
        assert [type(message) for message in client.received] == [Hello, Verdict, End]


async def test_close_ends_a_session_whose_next_peer_takes_nothing(autojump_clock: MockClock) -> None:
    async with stage_and_client() as client:
        client.gives_credit = False
        control, stream = await client.open(max_chunks=INITIAL_CREDITS), await client.ring()
        for seq in range(INITIAL_CREDITS):
            await stream.send(chunk(seq, (1,), seq=seq))
        await trio.sleep(5)
        for seq in range(INITIAL_CREDITS, INITIAL_CREDITS + 4):
            await stream.send(chunk(seq, (1,), seq=seq))
        await trio.sleep(5)
        assert len(client.verdicts) == INITIAL_CREDITS
        started = trio.current_time()
        await control.send(Close())
        closed = await control.receive()
        assert isinstance(closed, Closed)
        assert trio.current_time() - started <= END_S + 0.1
        assert closed.chunks == INITIAL_CREDITS + 2  # one waits for credit, and the next is computed meanwhile


async def test_a_session_that_is_over_lets_go_of_a_previous_peer_that_never_ends(autojump_clock: MockClock) -> None:
    async with stage_and_client() as client:
        control, stream = await client.open(), await client.ring()
        await trio.sleep(0.1)
        await control.send(Close())
        assert isinstance(await control.receive(), Closed)
        started = trio.current_time()
        with pytest.raises(PeerUnavailableError):
            await stream.receive()
        assert trio.current_time() - started == pytest.approx(END_S, abs=0.1)


async def test_an_end_from_the_previous_peer_after_close_is_awaited(autojump_clock: MockClock) -> None:
    async with stage_and_client() as client:
        control, stream = await client.open(), await client.ring()
        await trio.sleep(0.1)
        await control.send(Close())
        assert isinstance(await control.receive(), Closed)
        await trio.sleep(END_S / 2)
        await stream.send(chunk(0, (1,), seq=0))  # sent before it heard of the close
        await stream.send(End())
        await trio.sleep(0.1)
        assert client.sim.swarm.network(STAGE).failures == []


@pytest.mark.parametrize("who", [CLIENT, PREVIOUS])
async def test_the_loss_of_a_neighbour_is_reported(who: PeerId, autojump_clock: MockClock) -> None:
    async with stage_and_client() as client:
        following = client.sim.swarm.network("following")
        following.serve(RING, drain)
        control = await client.open(next=PeerAddress(PeerId("following")))
        await client.ring()
        await trio.sleep(0.1)
        lost = PeerId("following") if who == CLIENT else PREVIOUS
        client.sim.swarm.kill(lost)
        failure = await failure_of(control)
        assert (failure.status, failure.peer_id) == ("unavailable", lost)


async def test_a_coordinator_that_never_closes_but_vanishes_frees_the_session(autojump_clock: MockClock) -> None:
    async with stage_and_client() as client:
        await client.open()
        stream = await client.ring()
        await stream.send(chunk(0, prompt(), seq=0))
        await trio.sleep(600)
        assert client.sim.held[STAGE].free_cache_rows == CACHE_ROWS - ROWS
        client.sim.swarm.kill(CLIENT)
        await trio.sleep(1.0)
        assert client.sim.held[STAGE].free_cache_rows == CACHE_ROWS


async def test_a_coordinator_that_vanishes_as_its_session_opens_frees_the_session(autojump_clock: MockClock) -> None:
    async with stage_and_client() as client:
        await client.ring()  # waits for its session
        control = await client.control()

        async def leave(stream: Stream) -> None:
            await control.aclose()

        client.network.serve(RING, leave)
        await control.send(client.request())
        await trio.sleep(20)
        assert client.sim.held[STAGE].free_cache_rows == CACHE_ROWS
        assert client.sim.swarm.open_streams == 1  # that of our own previous peer


async def test_a_previous_peer_that_ended_and_left_takes_no_credit_and_that_is_no_failure(
    autojump_clock: MockClock,
) -> None:
    async with stage_and_client(compute_s=0.5) as client:
        control, stream = await client.open(max_chunks=INITIAL_CREDITS), await client.ring()
        for seq in range(10):  # one credit message's worth, and some more
            await stream.send(chunk(seq, (seq,), seq=seq))
        await stream.send(End())
        await trio.sleep(0.1)
        await stream.aclose()
        await client.wait_verdicts(10)
        await control.send(Close())
        assert isinstance(await control.receive(), Closed)
