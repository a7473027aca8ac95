"""A stage that breaks the protocols ends the generation with an error that names it, and harms nobody else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock

from shardp2p.coordinator.commands import Limits
from shardp2p.coordinator.driver import LAP_S, OPEN_S
from shardp2p.errors import (
    MAX_REPORT_CHARACTERS,
    ConfigError,
    OverloadedError,
    PeerUnavailableError,
    RemoteProtocolError,
    ShardError,
)
from shardp2p.vocabulary import SessionId, Slot
from shardp2p.wire.channel import open_channel
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
    Opened,
    Verdict,
)
from shardp2p.wire.protocols import CONTROL, RING
from shardp2p.wire.tensor_frame import TensorFrame
from tests.support.fake_block import MODEL_LAYERS, fake_reference
from tests.support.proposers import OracleMix
from tests.support.sim_ring import COORDINATOR, SimRing, prompt, request, stage_id
from tests.support.tampering import Change, TamperedNetwork

EXPECTED = fake_reference(prompt(), 24)
OTHER_SESSION = SessionId("0f" * 16)
GARBAGE = b"\xff garbage \x00\x01\x02"


async def outcome(ring: SimRing) -> tuple[int, ...] | ShardError:
    try:
        tokens, _ = await ring.generate(
            request(24), proposer=OracleMix(prompt() + EXPECTED, 0.7, 4), limits=Limits(max_chunks=3, prefill_tokens=5)
        )
    except ShardError as error:
        return error
    return tokens


async def blamed(victim: int, protocol: str, change: Change, *, stages: int = 2) -> ShardError:
    """The error that stage `victim` causes; the ring must serve well before and after it."""
    async with trio.open_nursery() as nursery:
        ring = SimRing(nursery, stages)
        ring.start_stage(victim, lambda network: TamperedNetwork(network, protocol, change))
        started = trio.current_time()
        error = await outcome(ring)
        assert trio.current_time() - started < 6.0
        await ring.assert_settled()
        ring.start_stage(victim)
        assert await outcome(ring) == EXPECTED
        await ring.assert_settled()
    assert isinstance(error, ShardError)
    return error


def after(count: int, kind: type[Message], change: Change) -> Change:
    """`change` for the message of this kind with that number, from 0 on; all others pass."""
    seen = 0

    def changed(message: Message) -> list[Message | bytes]:
        nonlocal seen
        if not isinstance(message, kind):
            return [message]
        seen += 1
        return list(change(message)) if seen == count + 1 else [message]

    return changed


def swap_first_two(kind: type[Message]) -> Change:
    held: list[Message] = []

    def changed(message: Message) -> list[Message | bytes]:
        if not isinstance(message, kind) or len(held) > 1:
            return [message]
        held.append(message)
        return [] if len(held) == 1 else [held[1], held[0]]

    return changed


VERDICTS: dict[str, Change] = {
    "a choice too many": lambda v: [replace(v, choices=(*v.choices, 1))],
    "a choice too few": lambda v: [replace(v, choices=v.choices[:-1], quiet=v.quiet + 1)],
    "another quiet": lambda v: [replace(v, quiet=v.quiet + 1)],
    "an unknown chunk": lambda v: [replace(v, ref=replace(v.ref, seq=v.ref.seq + 9))],
    "an unknown slot": lambda v: [replace(v, ref=replace(v.ref, first_slot=Slot(v.ref.first_slot + 1)))],
    "another session": lambda v: [replace(v, ref=replace(v.ref, session=OTHER_SESSION))],
    "a future epoch": lambda v: [replace(v, ref=replace(v.ref, epoch=1))],
    "twice": lambda v: [v, v],
    "a live row skipped": lambda v: [replace(v, choices=(None,) * len(v.choices))],
    "a chunk instead": lambda v: [Chunk(v.ref, (1,), (Slot(v.ref.first_slot - 1),), Slot(0))],
    "a credit instead": lambda _: [Credit(1)],
    "a second hello": lambda v: [Hello(v.ref.session, MODEL_LAYERS), v],
    "garbage": lambda _: [GARBAGE],
    "an early end": lambda _: [End()],
}


@pytest.mark.parametrize("what", VERDICTS)
async def test_a_last_stage_that_answers_wrongly_is_named(what: str, autojump_clock: MockClock) -> None:
    error = await blamed(2, RING, after(2, Verdict, VERDICTS[what]))  # the first with choices
    assert isinstance(error, RemoteProtocolError)
    assert error.peer == stage_id(2)
    assert "stage 2 of 2" in error.message


async def test_verdicts_out_of_order_are_blamed_on_the_last_stage(autojump_clock: MockClock) -> None:
    error = await blamed(2, RING, swap_first_two(Verdict))
    assert isinstance(error, RemoteProtocolError)
    assert error.peer == stage_id(2)


def as_bfloat16(frame: TensorFrame) -> TensorFrame:
    return replace(frame, dtype="bfloat16", data=frame.data[: len(frame.data) // 2])


def as_int8(frame: TensorFrame) -> TensorFrame:
    return replace(frame, scheme="int8", data=bytes(frame.shape[0]), scales=bytes(4 * frame.shape[0]))


WIDE = TensorFrame("raw", "float32", (1, 2), bytes(8))
ACTIVATIONS: dict[str, Change] = {
    "rows of another scheme": lambda a: [replace(a, hidden=as_int8(a.hidden))],
    "rows of another dtype": lambda a: [replace(a, hidden=as_bfloat16(a.hidden))],
    "a hole": lambda a: [replace(a, ref=replace(a.ref, seq=a.ref.seq + 1))],
    "a hole in the slots": lambda a: [replace(a, ref=replace(a.ref, first_slot=Slot(a.ref.first_slot + 1)))],
    "another session": lambda a: [replace(a, ref=replace(a.ref, session=OTHER_SESSION))],
    "wide rows": lambda a: [
        replace(a, parents=a.parents[:1], quiet=0, skipped=(), hidden=WIDE, root=min(a.root, a.ref.first_slot))
    ],
    "a skipped trunk": lambda a: [replace(a, skipped=tuple(range(len(a.parents))), hidden=None)],
    "a chunk instead": lambda a: [Chunk(a.ref, (1,) * len(a.parents), a.parents, a.root, a.quiet)],
    "a verdict instead": lambda a: [Verdict(a.ref, a.quiet, (1,) * (len(a.parents) - a.quiet))],
    "garbage": lambda _: [GARBAGE],
}


async def test_a_stage_that_claims_endless_compute_disturbs_nobody(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        ring = SimRing(nursery, 3)
        boast = after(1, Activations, lambda a: [replace(a, compute_us=2**64 - 1)])
        ring.start_stage(1, lambda network: TamperedNetwork(network, RING, boast))
        assert await outcome(ring) == EXPECTED
        await ring.assert_settled()


@pytest.mark.parametrize("what", ACTIVATIONS)
async def test_a_stage_that_sends_nonsense_on_is_named_by_the_next(what: str, autojump_clock: MockClock) -> None:
    error = await blamed(1, RING, after(1, Activations, ACTIVATIONS[what]))
    assert isinstance(error, RemoteProtocolError)
    assert error.peer == stage_id(1)


CREDITS: dict[str, Change] = {
    "too much credit": lambda _: [Credit(1000)],
    "a verdict backwards": lambda _: [End()],
    "garbage": lambda _: [GARBAGE],
}


@pytest.mark.parametrize("what", CREDITS)
@pytest.mark.parametrize("victim", [1, 2])
async def test_a_stage_that_breaks_the_flow_control_is_named(victim: int, what: str, autojump_clock: MockClock) -> None:
    error = await blamed(victim, RING, after(0, Credit, CREDITS[what]))
    assert isinstance(error, RemoteProtocolError)
    assert error.peer == stage_id(victim)


ANSWERS: dict[str, Change] = {
    "an early account": lambda _: [Closed(0, 0, 0, 0.0, 0.0)],
    "a commit": lambda _: [Commit(0, Slot(1), Slot(0))],
    "a close": lambda _: [Close()],
    "garbage": lambda _: [GARBAGE],
    "an unknown status": lambda _: [Failure("cosmic rays", "they flip bits")],
    "a bug of its own": lambda _: [Failure("internal", "a gap in the cache")],
}


@pytest.mark.parametrize("what", ANSWERS)
@pytest.mark.parametrize("follows", [False, True])
async def test_a_stage_that_misuses_the_control_stream_is_named(
    what: str, follows: bool, autojump_clock: MockClock
) -> None:
    def change(opened: Message) -> list[Message | bytes]:
        return [*([opened] if follows else []), *ANSWERS[what](opened)]

    error = await blamed(1, CONTROL, after(0, Opened, change))
    assert isinstance(error, RemoteProtocolError)
    assert error.peer == stage_id(1)


@pytest.mark.parametrize("scapegoat", [COORDINATOR, "a-stranger", None])
async def test_a_stage_cannot_blame_who_is_not_in_the_ring(scapegoat: str | None, autojump_clock: MockClock) -> None:
    failure = Failure("unavailable", "it was someone else", scapegoat)  # type: ignore[arg-type]
    error = await blamed(2, CONTROL, after(0, Opened, lambda opened: [opened, failure]))
    assert isinstance(error, PeerUnavailableError)
    assert error.peer == stage_id(2)


async def test_a_failure_that_blames_another_stage_names_that_one(autojump_clock: MockClock) -> None:
    failure = Failure("unavailable", "the next one is gone", stage_id(2))
    error = await blamed(1, CONTROL, after(0, Opened, lambda opened: [opened, failure]))
    assert error.peer == stage_id(2)
    assert "stage 2 of 2 (layers 3:6" in error.message


async def test_a_stage_that_says_much_is_clipped(autojump_clock: MockClock) -> None:
    failure = Failure("protocol", "x" * 2_000)
    error = await blamed(1, CONTROL, after(0, Opened, lambda opened: [opened, failure]))
    assert error.message.count("x") == MAX_REPORT_CHARACTERS - 1
    assert error.message.endswith("x…")


async def test_a_stage_without_room_declines_and_is_named(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        ring = SimRing(nursery, 2)
        ring.cache_rows = 100
        ring.start_stage(2)
        error = await outcome(ring)
        assert isinstance(error, OverloadedError)
        assert error.peer == stage_id(2)
        assert "stage 2 of 2" in error.message
        assert "cache rows are asked for and 100 of 100 are free" in error.message
        await trio.sleep(30)
        assert ring.swarm.open_streams == 0


@pytest.mark.parametrize(
    ("change", "text"),
    [({"model_digest": "ee" * 32}, "the model asked for"), ({"dtype": "bfloat16"}, "the dtype asked for is bfloat16")],
)
async def test_a_stage_that_holds_something_else_declines(
    change: dict[str, str], text: str, autojump_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        ring = SimRing(nursery, 2)
        with pytest.raises(ConfigError, match=text) as caught:
            await ring.generate(request(), plan=replace(ring.plan, **change))  # type: ignore[arg-type]
        assert caught.value.peer in (stage_id(1), stage_id(2))
        await ring.assert_settled()


@pytest.mark.parametrize(
    ("max_tokens", "chunks", "text"), [(989, 4, "takes 1000 in all"), (24, 33, "at most 32"), (0, 4, "at least 1")]
)
async def test_a_request_that_cannot_fit_is_refused_before_anything_is_opened(
    max_tokens: int, chunks: int, text: str, autojump_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        ring = SimRing(nursery, 2)
        with pytest.raises(ConfigError, match=text):
            await ring.generate(request(max_tokens), limits=Limits(max_chunks=chunks))
        assert ring.network.dialled == []


async def test_a_stage_that_cannot_be_reached_is_named(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        ring = SimRing(nursery, 3)
        ring.swarm.kill(stage_id(2))
        error = await outcome(ring)
        assert isinstance(error, PeerUnavailableError)
        assert error.peer == stage_id(2)
        await ring.assert_settled()


def silent(kind: type[Message], after_first: int = 0) -> Change:
    """All messages of this kind but the first ones are swallowed; the connection lives on."""
    seen = 0

    def changed(message: Message) -> list[Message | bytes]:
        nonlocal seen
        seen += isinstance(message, kind)
        return [] if isinstance(message, kind) and seen > after_first else [message]

    return changed


@pytest.mark.parametrize("victim", [1, 2])
async def test_a_stage_that_never_answers_open_is_given_up_and_named(victim: int, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        ring = SimRing(nursery, 2)
        ring.start_stage(victim, lambda network: TamperedNetwork(network, CONTROL, silent(Opened)))
        with pytest.raises(
            PeerUnavailableError, match=f"stage {victim} of 2 .* no answer to Open within 30 s"
        ) as caught:
            await ring.generate(request())
        assert caught.value.peer == stage_id(victim)
        assert trio.current_time() <= OPEN_S + 1
        await ring.assert_settled()


@pytest.mark.parametrize(
    ("victim", "kind", "after_first"),
    [(2, Verdict, 0), (2, Verdict, 7), (1, Activations, 0), (1, Activations, 7), (1, Credit, 0), (2, Credit, 0)],
)
async def test_a_ring_in_which_nothing_comes_around_is_given_up(
    victim: int, kind: type[Message], after_first: int, autojump_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        ring = SimRing(nursery, 2)
        ring.start_stage(victim, lambda network: TamperedNetwork(network, RING, silent(kind, after_first)))
        with pytest.raises(PeerUnavailableError, match=r"one of them hangs \(stage 1 of 2 .*; stage 2 of 2 ") as caught:
            await ring.generate(request(60))
        assert caught.value.peer is None
        assert LAP_S < trio.current_time() < 2 * LAP_S
        await ring.assert_settled()


async def test_a_slow_ring_is_waited_for_as_long_as_something_comes_around(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        ring = SimRing(nursery, 2, compute_s=25)
        tokens, result = await ring.generate(request(24), limits=Limits(max_chunks=8, prefill_tokens=1))
        assert tokens == EXPECTED
        assert max(lap.lap_s for lap in result.laps) > 1.5 * LAP_S


@pytest.mark.parametrize("intruder", [stage_id(1), stage_id(2)])
async def test_only_the_last_stage_may_bring_verdicts_and_only_once(intruder: str, autojump_clock: MockClock) -> None:
    """Verdicts of another peer, or on a second stream, are refused, and the generation does not notice."""
    async with trio.open_nursery() as nursery:
        ring = SimRing(nursery, 2)
        refused = 0

        async def intrude(session: SessionId) -> None:
            nonlocal refused
            stream = await ring.swarm.network(intruder).open_stream(COORDINATOR, RING)
            async with open_channel(stream, RING) as channel:
                await channel.send(Hello(session, MODEL_LAYERS))
                with pytest.raises(PeerUnavailableError, match="reset"):
                    await channel.receive()
                refused += 1

        def tell(verdict: Message) -> list[Message | bytes]:
            assert isinstance(verdict, Verdict)
            nursery.start_soon(intrude, verdict.ref.session)
            return [verdict]

        ring.start_stage(2, lambda network: TamperedNetwork(network, RING, after(1, Verdict, tell)))
        assert await outcome(ring) == EXPECTED
        await ring.assert_settled()
        assert refused == 1
        assert [error.peer for error in ring.network.failures] == [intruder]
