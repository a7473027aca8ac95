"""Chunks of different sessions that wait for one block, taken up together. `open_on_device` is the way in.

Each session's task asks for a turn in the device's thread, as if it computed alone. The first turn that comes takes up
its own chunk and those of the sessions behind it, which find theirs done when their turns come. So nothing waits for
company, and nobody's result is later for having it. docs/decisions/0011-packed-sessions.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Final

import outcome
import structlog
import trio

from shardp2p.runtime.block import Block
from shardp2p.runtime.device import DeviceThread
from shardp2p.runtime.packing import Part
from shardp2p.stage.holding import OpenCompute
from shardp2p.stage.live import Compute
from shardp2p.stage.session import Work
from shardp2p.stage.worker import SessionWorker
from shardp2p.vocabulary import Token
from shardp2p.wire.messages import Activations, Open, Verdict
from shardp2p.wire.tensor import Tensor

log = structlog.get_logger()

NARROW_ROWS: Final = 16
"""What joins others. A wider chunk takes its time for its own arithmetic: it begins a forward or waits for the next, so
that whoever came before it has its result as soon as without it."""

JOINING_ROWS: Final = 128
"""Rows that join the first chunk of a forward, all together: beyond, arithmetic takes the time and little is saved."""

Observe = Callable[[int, int, float], None]
"""Hears of each forward: its live rows, those of all its sessions together, the layers that ran, and the seconds."""


def open_on_device(block: Block, device: DeviceThread, observe: Observe | None = None) -> OpenCompute:
    """What opens a session's cache and worker over `block`, computing in `device` together with the others."""
    packer = Packer(device, observe)

    async def open_compute(request: Open) -> Compute:
        worker = await device.run(SessionWorker.of, block, request)

        async def compute(work: Work, tokens: Sequence[Token]) -> Activations | Verdict:
            return await packer.run(worker, work, tokens)

        return compute

    return open_compute


@dataclass(slots=True, eq=False)
class _Turn:
    """A chunk on its way through the device.

    `spent_s` is what it took by itself, and its share, by live rows, of what it took together with others.
    """

    worker: SessionWorker
    work: Work
    tokens: Sequence[Token]
    is_wanted: bool = True
    part: Part | None = None
    hidden: Tensor | None = None
    logits: Tensor | None = None
    spent_s: float = 0.0
    pack: tuple[int, float] | None = None
    result: outcome.Outcome[Activations | Verdict] | None = None


class Packer:
    """Runs chunks of the workers of one block, or of some of its layers. A session has one chunk here at a time."""

    def __init__(self, device: DeviceThread, observe: Observe | None = None) -> None:
        self._device = device
        self._observe = observe
        self._waiting: deque[_Turn] = deque()  # at most one of each session; in the order of their calls to the device

    async def run(self, worker: SessionWorker, work: Work, tokens: Sequence[Token]) -> Activations | Verdict:
        """What a chunk comes to. `tokens`: the ids of `work.rows` where penalties need them, else empty.

        Cancelled as DeviceThread.run is: before its turn the chunk is left out, later it is computed to its end.

        Raises: RemoteProtocolError for inputs that do not fit the model. Whoever else is in the forward goes on.
        """
        # Between this checkpoint and the device's queue no other task runs: both have the same order.
        await trio.lowlevel.checkpoint_if_cancelled()
        turn = _Turn(worker, work, tokens)
        self._waiting.append(turn)
        try:
            await self._device.run(self._take_turn, turn)
        finally:
            turn.is_wanted = False
        if turn.pack is not None and self._observe is not None:
            rows, seconds = turn.pack
            self._observe(rows, len(worker.block.layers), seconds)
        assert turn.result is not None
        return turn.result.unwrap()

    def _take_turn(self, turn: _Turn) -> None:
        """In the device's thread: whatever waits, `turn` the first, unless an earlier turn has taken it along."""
        if turn.result is None:
            _compute(self._take_up())

    def _take_up(self) -> list[_Turn]:
        """The first turn that waits and those that may join it. The others stay, in their order."""
        taken: list[_Turn] = []
        passed: list[_Turn] = []
        room = JOINING_ROWS
        for _ in range(len(self._waiting)):
            turn = self._waiting.popleft()
            rows = len(turn.work.rows)
            if not turn.is_wanted:
                continue
            if not taken:
                taken.append(turn)
            elif turn.worker.block.layers == taken[0].worker.block.layers and rows <= min(NARROW_ROWS, room):
                taken.append(turn)
                room -= rows
            else:
                passed.append(turn)
        self._waiting.extendleft(reversed(passed))
        return taken


def _compute(turns: Sequence[_Turn]) -> None:
    """Every turn's result. An error is that of the turn which it came from."""
    began = perf_counter()
    for turn in turns:
        _prepare(turn)
    alive = [turn for turn in turns if turn.part is not None]
    started = perf_counter()
    _attempt(alive, _forward)
    _attempt([turn for turn in alive if turn.result is None], _read_head)
    shared_s = perf_counter() - started
    rows = sum(len(turn.work.rows) for turn in alive)
    for turn in alive:
        turn.spent_s += shared_s * len(turn.work.rows) / rows
    for turn in turns:
        if turn.result is None:
            _finish(turn)
    if alive:
        turns[0].pack = rows, perf_counter() - began


def _prepare(turn: _Turn) -> None:
    started = perf_counter()
    prepared = outcome.capture(turn.worker.prepare, turn.work)
    if isinstance(prepared, outcome.Error):
        turn.result = prepared
    else:
        turn.part = prepared.value
    turn.spent_s = perf_counter() - started


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
        turn.hidden = hidden


def _read_head(turns: Sequence[_Turn]) -> None:
    wanted = [(turn, rows) for turn in turns if (rows := _wanted(turn)) is not None]
    if wanted:
        logits = turns[0].worker.block.logits_many([rows for _, rows in wanted])
        for (turn, _), own in zip(wanted, logits, strict=True):
            turn.logits = own


def _wanted(turn: _Turn) -> Tensor | None:
    return None if turn.hidden is None else turn.worker.wanted(turn.work, turn.hidden)
