"""Sessions of a stage share forwards: who goes with whom, whose error is whose, and who waits for whom."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from typing import cast

import pytest
import trio
from torch import Tensor
from trio.testing import MockClock

from shardp2p.errors import LocalProtocolError, RemoteProtocolError
from shardp2p.runtime.block import Block
from shardp2p.runtime.device import DeviceThread
from shardp2p.stage.packer import DECODING_S, JOINING_ROWS, LINGER_SHARE, NARROW_ROWS, Packer, Seat
from shardp2p.stage.session import Work
from shardp2p.stage.worker import SessionWorker
from shardp2p.vocabulary import ChunkRef, LayerRange, SamplingParams, SessionId, Slot, Token
from shardp2p.wire.messages import Activations, Chunk, Verdict
from tests.support.fake_block import MODEL_LAYERS, VOCABULARY, FakeBlock, FakeCache, FakePart, InlineDevice

COMPUTE_S = 0.1


class WatchedBlock(FakeBlock):
    """Remembers how many rows each session had in each forward that went through."""

    def __init__(self, layers: LayerRange = LayerRange(0, MODEL_LAYERS)) -> None:  # noqa: B008 — a frozen value
        super().__init__(layers)
        self.forwards: list[list[int]] = []
        self.breaks: Callable[[Sequence[FakePart]], bool] = lambda _: False

    def forward_many(self, parts: Sequence[FakePart]) -> list[Tensor]:
        if self.breaks(parts):
            raise RuntimeError("out of memory")
        self.forwards.append([len(part.rows.parents) for part in parts])
        return super().forward_many(parts)


class Session:
    """A session that asks the packer for one chain of tokens after the other."""

    def __init__(self, packer: Packer, block: FakeBlock, seed: int = 0, cache_rows: int = 1_000) -> None:
        self.packer, self.seed, self.rows, self.seq = packer, seed, 0, 0
        self.worker = SessionWorker(
            cast(Block, block), cache_rows=cache_rows, sampling=SamplingParams(), prompt_tokens=0, wire_scheme="raw"
        )
        self.seat = Seat()
        self.answers: list[Activations | Verdict] = []

    def work(self, tokens: Sequence[int]) -> Work:
        first, count = self.rows, len(tokens)
        ref = ChunkRef(SessionId(f"{self.seed:032x}"), 0, self.seq, Slot(first))
        parents = tuple(Slot(slot) for slot in range(first - 1, first + count - 1))
        chunk = Chunk(ref, tuple(Token(token) for token in tokens), parents, Slot(first + count - 1))
        self.rows, self.seq = first + count, self.seq + 1
        rows = tuple(range(count))
        return Work(chunk, None, rows, rows, parents, tuple(range(first, first + count)), ())

    async def ask(self, count: int = 1) -> None:
        tokens = [(self.seed * 17 + at * at * 7) % VOCABULARY for at in range(self.rows, self.rows + count)]
        self.answers.append(await self.packer.run(self.worker, self.seat, self.work(tokens), ()))

    @property
    def choices(self) -> list[Token | None]:
        return [choice for answer in self.answers if isinstance(answer, Verdict) for choice in answer.choices]


@pytest.fixture
def block() -> WatchedBlock:
    return WatchedBlock()


@pytest.fixture
def packer(autojump_clock: MockClock) -> Packer:
    """By its clock forwards take no time, so that the parts of a wide chunk are as wide on any machine."""
    return Packer(cast(DeviceThread, InlineDevice(COMPUTE_S)), clock=trio.current_time)


async def ask_at_once(asked: Sequence[tuple[Session, int]]) -> None:
    """All these chunks, which arrive in this order before any is computed."""
    async with trio.open_nursery() as nursery:
        for session, count in asked:
            nursery.start_soon(session.ask, count)
            await trio.testing.wait_all_tasks_blocked()


async def alone(seed: int, counts: Sequence[int]) -> list[Token | None]:
    """The choices of a session that nobody else is beside."""
    block = WatchedBlock()
    session = Session(Packer(cast(DeviceThread, InlineDevice())), block, seed)
    for count in counts:
        await session.ask(count)
    assert block.forwards == [[count] for count in counts]
    return session.choices


async def test_chunks_that_wait_together_share_a_forward_and_get_what_they_get_alone(
    packer: Packer, block: WatchedBlock
) -> None:
    sessions = [Session(packer, block, seed) for seed in range(4)]
    await ask_at_once([(session, 3 + session.seed) for session in sessions])
    await ask_at_once([(session, 1) for session in sessions])
    assert block.forwards == [[3, 4, 5, 6], [1, 1, 1, 1]]
    for session in sessions:
        assert session.choices == await alone(session.seed, [3 + session.seed, 1])


async def test_a_bad_chunk_fails_alone(packer: Packer, block: WatchedBlock) -> None:
    good, bad, full, other = (Session(packer, block, seed, cache_rows=4) for seed in range(4))

    async def ask_badly() -> None:
        with pytest.raises(RemoteProtocolError, match="outside the vocabulary"):
            await packer.run(bad.worker, bad.seat, bad.work([VOCABULARY]), ())

    async def ask_too_much() -> None:
        with pytest.raises(LocalProtocolError, match="no room"):
            await full.ask(5)

    async with trio.open_nursery() as nursery:
        for ask in (good.ask, ask_badly, ask_too_much, other.ask):
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
    assert block.forwards == [[1, 1]]
    assert (good.choices, other.choices) == (await alone(0, [1]), await alone(3, [1]))
    assert cast(FakeCache, full.worker._cache).rows == []


async def test_a_forward_that_fails_is_taken_apart(packer: Packer, block: WatchedBlock) -> None:
    sessions = [Session(packer, block, seed) for seed in range(3)]
    block.breaks = lambda parts: len(parts) > 1
    await ask_at_once([(session, 2) for session in sessions])
    assert block.forwards == [[2], [2], [2]]
    for session in sessions:
        assert session.choices == await alone(session.seed, [2])


async def test_a_chunk_that_cannot_be_computed_fails_alone(packer: Packer, block: WatchedBlock) -> None:
    one, doomed, other = (Session(packer, block, seed) for seed in range(3))
    cache = cast(FakeCache, doomed.worker._cache)
    block.breaks = lambda parts: any(part.cache is cache for part in parts)

    async def fail() -> None:
        with pytest.raises(RuntimeError, match="out of memory"):
            await doomed.ask()

    async with trio.open_nursery() as nursery:
        for ask in (one.ask, fail, other.ask):
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
    assert (one.choices, other.choices) == (await alone(0, [1]), await alone(2, [1]))


async def test_a_wide_chunk_holds_up_nobody_before_it_and_takes_along_those_behind(
    packer: Packer, block: WatchedBlock
) -> None:
    first, wide, second, wider, third = (Session(packer, block, seed) for seed in range(5))
    await ask_at_once([(first, 1), (wide, NARROW_ROWS + 1), (second, 2), (wider, 100), (third, NARROW_ROWS)])
    assert block.forwards[:2] == [[1, 2, NARROW_ROWS], [NARROW_ROWS + 1]]
    assert all(len(forward) == 1 for forward in block.forwards[2:])
    assert sum(rows for [rows] in block.forwards[2:]) == 100
    block.forwards.clear()
    await ask_at_once([(wide, NARROW_ROWS + 2), (second, 2), (first, 1)])
    assert block.forwards == [[NARROW_ROWS + 2, 2, 1]]


async def test_a_wide_chunk_goes_in_parts_while_others_decode_and_in_one_piece_while_nobody_does(
    autojump_clock: MockClock,
) -> None:
    device, block, packer = lingering()
    wide, one, other = (Session(packer, block, seed) for seed in range(3))
    await wide.ask(200)
    await ask_at_once([(one, 1), (other, 1)])
    waited: list[int] = []

    async def decode(session: Session) -> None:
        for _ in range(8):
            before = len(block.forwards)
            await session.ask()
            waited.append(len(block.forwards) - before)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wide.ask, 200)
        await trio.testing.wait_all_tasks_blocked()
        for session in (one, other):
            nursery.start_soon(decode, session)
    assert [rows for forward in block.forwards for rows in forward].count(200) == 1
    assert sum(max(forward) for forward in block.forwards if max(forward) > 1) == 400
    assert len(waited) == 16
    assert max(waited) <= 3  # the part that runs, one that is before it, and its own forward
    device.now += 2 * DECODING_S
    await wide.ask(200)
    assert block.forwards[-1] == [200]
    assert wide.choices == await alone(0, [200, 200, 200])
    for session in (one, other):
        assert session.choices == await alone(session.seed, [1] * 9)


async def test_a_session_that_is_over_decodes_no_more(autojump_clock: MockClock) -> None:
    device, block, packer = lingering()
    earlier, later, last = (Session(packer, block, seed) for seed in range(3))
    await later.ask(50)  # how long rows take is known
    await earlier.ask()
    device.now += DECODING_S / 4
    await earlier.ask()
    await later.ask(200)
    assert block.forwards[-1] != [200]  # as far as anybody knows, it comes back
    await earlier.ask()
    earlier.seat.is_over = True
    block.forwards.clear()
    await last.ask(200)
    assert block.forwards == [[200]]


async def test_two_wide_chunks_beside_one_that_decodes_are_exact_and_take_turns(
    packer: Packer, block: WatchedBlock
) -> None:
    sessions = [Session(packer, block, seed) for seed in range(3)]
    await sessions[0].ask()
    await ask_at_once([(sessions[1], 90), (sessions[2], 70), (sessions[0], 2)])
    assert max(rows for forward in block.forwards for rows in forward) < 70
    assert sum(rows for forward in block.forwards for rows in forward) == 1 + 90 + 70 + 2
    assert sessions[0].choices == await alone(0, [1, 2])
    assert sessions[1].choices == await alone(1, [90])
    assert sessions[2].choices == await alone(2, [70])


async def test_a_wide_chunk_that_is_cancelled_between_its_parts_is_dropped(packer: Packer, block: WatchedBlock) -> None:
    one, leaving = (Session(packer, block, seed) for seed in range(2))
    await one.ask()
    with trio.move_on_after(2.5 * COMPUTE_S):
        await leaving.ask(200)
    rows = sum(rows for forward in block.forwards for rows in forward)
    assert 1 < rows < 150
    await one.ask()
    assert sum(rows for forward in block.forwards for rows in forward) == rows + 1
    assert (one.choices, leaving.choices) == (await alone(0, [1, 1]), [])


async def test_a_wide_chunk_that_is_cancelled_between_its_parts_keeps_no_cache(
    packer: Packer, block: WatchedBlock
) -> None:
    await Session(packer, block).ask()
    workers: list[weakref.ref[SessionWorker]] = []

    async def leave() -> None:
        leaving = Session(packer, block, 1)
        workers.append(weakref.ref(leaving.worker))
        with trio.move_on_after(2.5 * COMPUTE_S):
            await leaving.ask(200)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(leave)
    await trio.testing.wait_all_tasks_blocked()  # and it is dropped
    gc.collect()  # the traceback of the cancellation has gone round in a circle
    assert workers[0]() is None


async def test_a_part_that_fails_ends_its_chunk_alone(packer: Packer, block: WatchedBlock) -> None:
    one, doomed = (Session(packer, block, seed) for seed in range(2))
    await one.ask()
    cache = cast(FakeCache, doomed.worker._cache)
    block.breaks = lambda parts: any(part.cache is cache and len(cache.rows) >= 32 for part in parts)

    async def fail() -> None:
        with pytest.raises(RuntimeError, match="out of memory"):
            await doomed.ask(200)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(one.ask)
    assert one.choices == await alone(0, [1, 1])


async def test_a_bug_beside_the_computing_ends_all_that_were_taken_up(
    packer: Packer, block: WatchedBlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = [Session(packer, block, seed) for seed in range(3)]

    def fail(what: object, **more: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("shardp2p.stage.packer._read_head", fail)
    monkeypatch.setattr("shardp2p.stage.packer.log.warning", fail, raising=False)
    failed: list[int] = []

    async def ask(session: Session) -> None:
        with pytest.raises(BrokenPipeError):
            await session.ask()
        failed.append(session.seed)

    with trio.fail_after(60 * COMPUTE_S):
        async with trio.open_nursery() as nursery:
            for session in sessions:
                nursery.start_soon(ask, session)
    assert sorted(failed) == [0, 1, 2]


async def test_no_more_rows_join_than_pay(packer: Packer, block: WatchedBlock) -> None:
    sessions = [Session(packer, block, seed) for seed in range(12)]
    await ask_at_once([(session, NARROW_ROWS) for session in sessions])
    joining = JOINING_ROWS // NARROW_ROWS
    assert [len(forward) for forward in block.forwards] == [1 + joining, len(sessions) - 1 - joining]


async def test_sessions_of_other_layers_have_forwards_of_their_own(packer: Packer) -> None:
    whole, last = WatchedBlock(), WatchedBlock(LayerRange(0, 3))
    sessions = [Session(packer, block, seed) for seed, block in enumerate((whole, last, whole, last))]
    await ask_at_once([(session, 1 + session.seed) for session in sessions])
    assert (whole.forwards, last.forwards) == ([[1, 3]], [[2, 4]])


async def test_a_cancelled_session_is_left_out_and_the_others_go_on(packer: Packer, block: WatchedBlock) -> None:
    before, leaving, behind = (Session(packer, block, seed) for seed in range(3))
    scope = trio.CancelScope()

    async def leave() -> None:
        with scope:
            await leaving.ask()

    async with trio.open_nursery() as nursery:
        for ask in (before.ask, leave, behind.ask):
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
        scope.cancel()
    assert block.forwards == [[1, 1]]
    assert (before.choices, leaving.choices, behind.choices) == (await alone(0, [1]), [], await alone(2, [1]))


async def test_the_time_of_a_forward_is_shared_by_rows_and_heard_of_once(
    block: WatchedBlock, autojump_clock: MockClock
) -> None:
    heard: list[tuple[int, int]] = []
    device = cast(DeviceThread, InlineDevice(COMPUTE_S))
    packer = Packer(device, lambda rows, layers, seconds: heard.append((rows, layers)))
    sessions = [Session(packer, block, seed) for seed in range(3)]
    await ask_at_once([(session, 2) for session in sessions])
    await sessions[0].ask()
    assert heard == [(6, MODEL_LAYERS), (1, MODEL_LAYERS)]
    assert all(answer.compute_us > 0 for session in sessions for answer in session.answers)


async def test_turns_that_end_while_others_come_back_are_not_taken_up_again(block: WatchedBlock) -> None:
    """The device's thread and the event loop hand turns to and fro without a pause, hundreds of times."""
    with DeviceThread(threads=1) as device:
        packer = Packer(device)
        sessions = [Session(packer, block, seed) for seed in range(6)]
        counts = [([1, 40, 2, 90, 1, 17] * 6)[seed:] for seed in range(len(sessions))]

        async def ask_all(session: Session) -> None:
            for count in counts[session.seed]:
                await session.ask(count)

        async with trio.open_nursery() as nursery:
            for session in sessions:
                nursery.start_soon(ask_all, session)
    asked = sum(map(sum, counts))
    assert sum(map(sum, block.forwards)) == asked
    for session in sessions:
        assert session.choices == await alone(session.seed, counts[session.seed])


class LingeringDevice(InlineDevice):
    """A device on a clock of the test's own: forwards take COMPUTE_S, and what a linger waits for may happen in it."""

    def __init__(self) -> None:
        super().__init__(COMPUTE_S)
        self.now = 100.0
        self.lingered_s: list[float] = []

    def linger(self, event: object, seconds: float) -> None:
        self.lingered_s.append(seconds)
        self.now += seconds


class SlowBlock(WatchedBlock):
    """Moves a device's clock on."""

    def __init__(self, device: LingeringDevice) -> None:
        super().__init__()
        self._clocked = device

    def forward_many(self, parts: Sequence[FakePart]) -> list[Tensor]:
        self._clocked.now += COMPUTE_S
        return super().forward_many(parts)


def lingering() -> tuple[LingeringDevice, SlowBlock, Packer]:
    device = LingeringDevice()
    return device, SlowBlock(device), Packer(cast(DeviceThread, device), clock=lambda: device.now)


async def test_a_forward_lingers_for_a_companion_that_is_due_and_only_once(autojump_clock: MockClock) -> None:
    device, block, packer = lingering()
    one, other = (Session(packer, block, seed) for seed in range(2))
    pause_s = COMPUTE_S * LINGER_SHARE / 4
    for _ in range(2):
        await ask_at_once([(one, 1), (other, 1)])
        device.now += pause_s
    assert device.lingered_s == []
    await one.ask()
    assert device.lingered_s == [pytest.approx(pause_s)]  # twice the pause, of which one has passed
    await one.ask()
    assert len(device.lingered_s) == 1
    assert block.forwards == [[1, 1], [1, 1], [1], [1]]


async def test_nobody_waits_for_a_session_that_stays_away_for_long(autojump_clock: MockClock) -> None:
    device, block, packer = lingering()
    one, other = (Session(packer, block, seed) for seed in range(2))
    for _ in range(3):
        await ask_at_once([(one, 1), (other, 1)])
        device.now += COMPUTE_S * LINGER_SHARE
    await one.ask()
    assert device.lingered_s == []


async def test_nobody_waits_for_a_session_that_is_over(autojump_clock: MockClock) -> None:
    device, block, packer = lingering()
    one, other = (Session(packer, block, seed) for seed in range(2))
    for _ in range(2):
        await ask_at_once([(one, 1), (other, 1)])
        device.now += COMPUTE_S * LINGER_SHARE / 4
    other.seat.is_over = True
    await one.ask()
    assert device.lingered_s == []


async def test_a_session_that_has_the_device_to_itself_never_waits(autojump_clock: MockClock) -> None:
    device, block, packer = lingering()
    session = Session(packer, block)
    for _ in range(5):
        await session.ask()
    assert device.lingered_s == []
