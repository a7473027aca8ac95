"""Chunks of different sessions that wait for one block, taken up together. `open_on_device` is the way in.

Each session's task asks for a turn in the device's thread, as if it computed alone. The first turn that comes takes up
its own chunk and those of the sessions behind it, which find theirs done when their turns come. It lingers for a moment
where the sessions of the last forward are due back: groups that alternate become one. A session that has the device to
itself never waits. While others decode, a wide chunk goes in parts, and asks for a turn for each: who came meanwhile
goes in between. docs/decisions/0012-packed-sessions.md.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Final

import outcome
import structlog
import trio

from shardp2p.runtime.block import Block
from shardp2p.runtime.device import DeviceThread
from shardp2p.runtime.packing import Part, join_rows
from shardp2p.stage.holding import OpenCompute
from shardp2p.stage.live import Compute
from shardp2p.stage.session import Work
from shardp2p.stage.slicing import Slicing, room_s
from shardp2p.stage.worker import SessionWorker
from shardp2p.vocabulary import Token
from shardp2p.wire.messages import Activations, Open, Verdict
from shardp2p.wire.tensor import Tensor

log = structlog.get_logger()

NARROW_ROWS: Final = 16
"""What joins others. A wider chunk takes its time for its own arithmetic: it begins a forward or waits for the next, so
that whoever came before it has its result as soon as without it; and it goes in parts while others decode."""

JOINING_ROWS: Final = 128
"""Rows that join the first chunk of a forward, all together: beyond, arithmetic takes the time and little is saved."""

LINGER_SHARE: Final = 0.25
"""Of the last forward's time: how long the next may wait for sessions of it. Missing them costs a whole forward."""

DECODING_S: Final = 2.0
"""For how long after a narrow chunk a session counts as one that decodes, unless it is over: longer than most laps."""

Observe = Callable[[int, int, float], None]
"""Hears of each forward: its live rows, those of all its sessions together, the layers that ran, and the seconds."""


def open_on_device(block: Block, device: DeviceThread, observe: Observe | None = None) -> OpenCompute:
    """What opens a session's cache and worker over `block`, computing in `device` together with the others."""
    packer = Packer(device, observe)

    async def open_compute(request: Open) -> Compute:
        return _Opened(device, packer, await device.run(SessionWorker.of, block, request))

    return open_compute


class _Opened:
    """What computes for one session; implements `stage.live.SharingCompute`."""

    def __init__(self, device: DeviceThread, packer: Packer, worker: SessionWorker) -> None:
        self._device = device
        self._packer = packer
        self._worker = worker
        self._seat = Seat()
        self._is_handed_on = False

    async def __call__(self, work: Work, tokens: tuple[Token, ...]) -> Activations | Verdict:
        return await self._packer.run(self._worker, self._seat, work, tokens)

    async def copy_rows(self, other: _Opened, rows: Sequence[int]) -> bool:
        """Begin with rows of another session of the same layers, if it has computed them."""
        return await self._device.run(self._worker.copy_rows, other._worker, rows)

    def hand_on(self) -> _Opened:
        """Another of the same cache."""
        self._is_handed_on = True
        return _Opened(self._device, self._packer, self._worker)

    def let_go(self) -> None:
        """The session is over; what the device still computes of it ends by itself. Nobody waits for its next chunk.

        Tracebacks live on in circles, and refer to the worker: without a cache that costs nothing.
        """
        self._seat.is_over = True
        worker = self._worker
        del self._worker
        if not self._is_handed_on:
            self._device.post(worker.close)


@dataclass(slots=True, eq=False)
class Seat:
    """When a session comes and goes. `pause_s`: about how long it is away between two chunks."""

    is_away: bool = False
    is_over: bool = False
    left_at: float = 0.0
    pause_s: float = math.inf

    def come(self, now: float) -> None:
        """Its next chunk is here."""
        if self.is_away:
            pause_s = now - self.left_at
            self.pause_s = pause_s if self.pause_s == math.inf else (self.pause_s + pause_s) / 2
        self.is_away = False

    def leave(self, now: float) -> None:
        """Its chunk is done."""
        self.is_away, self.left_at = True, now

    @property
    def is_due_at(self) -> float:
        """When it is sure to be back, if it goes on as before."""
        return self.left_at + 2 * self.pause_s


@dataclass(slots=True, eq=False)
class _Turn:
    """A chunk on its way through the device, of whose live rows [start, stop) are in the present forward.

    `spent_s` is what it took by itself, and its share, by live rows, of what it took together with others.
    """

    worker: SessionWorker
    seat: Seat
    work: Work
    tokens: Sequence[Token]
    is_wanted: bool = True
    was_put_off: bool = False
    start: int = 0
    stop: int = 0
    inputs: Tensor | None = None
    part: Part | None = None
    done: list[Tensor] = field(default_factory=list)
    hidden: Tensor | None = None
    logits: Tensor | None = None
    spent_s: float = 0.0
    packs: list[tuple[int, float]] = field(default_factory=list)
    result: outcome.Outcome[Activations | Verdict] | None = None

    @property
    def rows(self) -> int:
        """How many live rows it has."""
        return len(self.work.rows)

    @property
    def is_narrow(self) -> bool:
        """Whether it may join others."""
        return self.rows <= NARROW_ROWS

    def clear(self) -> None:
        """It is over, and holds no memory of the device any more."""
        self.inputs = self.part = self.hidden = self.logits = None
        self.done.clear()


class Packer:
    """Runs chunks of the workers of one block, or of some of its layers. A session has one chunk here at a time."""

    def __init__(
        self, device: DeviceThread, observe: Observe | None = None, clock: Callable[[], float] = perf_counter
    ) -> None:
        self._device = device
        self._observe = observe
        self._clock = clock
        self._waiting: deque[_Turn] = deque()  # at most one of each session; in the order of their calls to the device
        self._arrived = threading.Event()
        self._latest: list[Seat] = []  # of the last forward; without the workers, whose caches may be gone
        self._latest_s = 0.0
        self._ended_at = 0.0
        self._decoding: dict[Seat, float] = {}  # when each had a narrow chunk here, of the last DECODING_S
        self._slicing = Slicing()

    async def run(
        self, worker: SessionWorker, seat: Seat, work: Work, tokens: Sequence[Token]
    ) -> Activations | Verdict:
        """What a chunk comes to. `tokens`: the ids of `work.rows` where penalties need them, else empty.

        Cancelled as DeviceThread.run is: before its turn the chunk is left out, later it is computed to its end.

        Raises: RemoteProtocolError for inputs that do not fit the model. Whoever else is in the forward goes on.
        """
        turn = _Turn(worker, seat, work, tokens)
        seat.come(self._clock())
        # Between this checkpoint and the device's queue no other task runs: both have the same order.
        await trio.lowlevel.checkpoint_if_cancelled()
        self._waiting.append(turn)
        self._arrived.set()
        try:
            while turn.result is None:
                await self._device.run(self._take_turn, turn)
        finally:
            turn.is_wanted = False
            if turn.result is None:
                self._device.post(partial(self._drop, turn))
        if self._observe is not None:
            for rows, seconds in turn.packs:
                self._observe(rows, len(worker.block.layers), seconds)
        turn.clear()
        return turn.result.unwrap()

    def _take_turn(self, turn: _Turn) -> None:
        """In the device's thread: whatever waits, `turn` the first, unless an earlier turn has taken it along."""
        if turn.result is not None:
            return
        self._linger()
        started = self._clock()
        turns = self._take_up()
        if not turns:
            return  # an earlier turn has taken its next part along
        computed = outcome.capture(_compute, turns)
        if isinstance(computed, outcome.Error):
            # A bug; who was taken along is to hear of it as well, and not to wait for ever.
            for turn in turns:
                turn.result = turn.result or outcome.Error(computed.error)
        self._ended_at = self._clock()
        # Only this thread knows whose rows are left, so only it puts them back: behind those who came meanwhile.
        self._waiting.extend(turn for turn in turns if turn.result is None)
        self._latest_s = self._ended_at - started
        self._latest = [turn.seat for turn in turns]
        for turn in turns:
            if turn.result is not None:
                turn.seat.leave(self._ended_at)
            if turn.is_narrow:
                self._decoding[turn.seat] = self._ended_at
        self._slicing.note(sum(turn.stop - turn.start for turn in turns), self._latest_s)

    def _drop(self, turn: _Turn) -> None:
        """In the device's thread: a chunk that nobody waits for keeps nothing until somebody else comes."""
        with suppress(ValueError):  # somebody else has come
            self._waiting.remove(turn)
        turn.clear()

    def _linger(self) -> None:
        """Waits for the sessions of the last forward that are due back in a moment, if any."""
        limit = self._ended_at + LINGER_SHARE * self._latest_s
        while True:
            self._arrived.clear()
            dues = [seat.is_due_at for seat in self._latest if seat.is_away and not seat.is_over]
            wait_s = max((due for due in dues if due <= limit), default=0.0) - self._clock()
            if wait_s <= 0:
                return
            self._device.linger(self._arrived, wait_s)

    def _take_up(self) -> list[_Turn]:
        """The first turn that waits and those that may join it. The others stay, in their order.

        Of a wide chunk that others decode beside, what runs is a part, or nothing this time.
        """
        first = next((turn for turn in tuple(self._waiting) if turn.is_wanted), None)
        rows = None if first is None else self._rows_of(first)
        taken: list[_Turn] = []
        passed: list[_Turn] = []
        room = JOINING_ROWS
        for _ in range(len(self._waiting)):
            turn = self._waiting.popleft()
            if not turn.is_wanted:
                continue
            if not taken and (turn.is_narrow if turn is not first else rows is not None):
                taken.append(turn)
            elif not taken:
                passed.append(turn)
            elif turn.worker.block.layers == taken[0].worker.block.layers and turn.rows <= min(NARROW_ROWS, room):
                taken.append(turn)
                room -= turn.rows
            else:
                passed.append(turn)
        self._waiting.extendleft(reversed(passed))
        for turn in taken:
            turn.start, turn.stop = turn.stop, turn.rows
        if first is not None and rows is not None:
            first.stop, first.was_put_off = first.start + rows, False
        return taken

    def _rows_of(self, turn: _Turn) -> int | None:
        """How many rows of `turn`, the first, run now. It may wait for others, and is put off when it gives None."""
        left = turn.rows - turn.stop
        others = self._others_decoding(turn.seat)
        if turn.is_narrow or not (others or self._has_narrow_waiting()):
            return left
        self._arrived.clear()
        room = room_s(self._clock(), [(seat.left_at, seat.pause_s) for seat in others if seat.is_away])
        others_wait = self._has_narrow_waiting()
        step = self._slicing.step(left, room, others_wait=others_wait, was_put_off=turn.was_put_off)
        if step.rows:
            return step.rows
        turn.was_put_off = True
        if others_wait:
            return None
        self._device.linger(self._arrived, step.wait_s)
        return None if self._has_narrow_waiting() else self._rows_of(turn)

    def _others_decoding(self, own: Seat) -> list[Seat]:
        """Who else will want a turn soon."""
        since = self._clock() - DECODING_S
        self._decoding = {seat: at for seat, at in self._decoding.items() if at >= since and not seat.is_over}
        return [seat for seat in self._decoding if seat is not own]

    def _has_narrow_waiting(self) -> bool:
        return any(turn.is_wanted and turn.is_narrow for turn in tuple(self._waiting))


def _compute(turns: Sequence[_Turn]) -> None:
    """The result of every turn whose rows end here. An error is that of the turn which it came from."""
    began = perf_counter()
    for turn in turns:
        _prepare(turn)
    alive = [turn for turn in turns if turn.part is not None]
    started = perf_counter()
    _attempt(alive, _forward)
    ending = [turn for turn in turns if turn.stop == turn.rows]
    _attempt([turn for turn in ending if turn.part is not None and turn.result is None], _read_head)
    shared_s = perf_counter() - started
    rows = sum(turn.stop - turn.start for turn in alive)
    for turn in alive:
        turn.spent_s += shared_s * (turn.stop - turn.start) / rows
    for turn in ending:
        if turn.result is None:
            _finish(turn)
    if alive:
        turns[0].packs.append((rows, perf_counter() - began))


def _prepare(turn: _Turn) -> None:
    started = perf_counter()
    prepared = outcome.capture(_part_of, turn)
    if isinstance(prepared, outcome.Error):
        turn.result = prepared
    else:
        turn.part = prepared.value
    turn.spent_s += perf_counter() - started


def _part_of(turn: _Turn) -> Part | None:
    if turn.start == 0:
        turn.inputs = turn.worker.begin(turn.work)
    if turn.inputs is None:
        return None
    return turn.worker.prepare(turn.work, turn.inputs, turn.start, turn.stop)


def _finish(turn: _Turn) -> None:
    finish = turn.worker.finish
    turn.result = outcome.capture(finish, turn.work, turn.tokens, turn.hidden, turn.logits, turn.spent_s)


def _attempt(turns: Sequence[_Turn], step: Callable[[Sequence[_Turn]], None]) -> None:
    """`step` for all; where that fails, for each alone: what one chunk cannot get through, or all together, others can.

    A step that fails has changed nothing.
    """
    if not turns:
        return
    tried = outcome.capture(step, turns)
    if not isinstance(tried, outcome.Error):
        return
    if len(turns) == 1:
        turns[0].result = tried
        return
    log.warning("forward_taken_apart", chunks=len(turns), reason=str(tried.error))
    for turn in turns:
        _attempt([turn], step)


def _forward(turns: Sequence[_Turn]) -> None:
    parts = [turn.part for turn in turns if turn.part is not None]
    for turn, hidden in zip(turns, turns[0].worker.block.forward_many(parts), strict=True):
        turn.done.append(hidden)
        if turn.stop == turn.rows:
            turn.hidden = join_rows(turn.done)


def _read_head(turns: Sequence[_Turn]) -> None:
    wanted = [(turn, rows) for turn in turns if (rows := _wanted(turn)) is not None]
    if wanted:
        logits = turns[0].worker.block.logits_many([rows for _, rows in wanted])
        for (turn, _), own in zip(wanted, logits, strict=True):
            turn.logits = own


def _wanted(turn: _Turn) -> Tensor | None:
    return None if turn.hidden is None else turn.worker.wanted(turn.work, turn.hidden)
