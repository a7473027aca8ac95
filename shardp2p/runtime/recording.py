"""The forward of at most W rows through a block, captured once: pieces that are replayed, and the gaps between them.

A recording knows no cache, so sessions come, go and move as they like.
docs/decisions/0018-graphs-are-cut-at-attention.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, Protocol

import torch
from torch import Tensor

from shardp2p.runtime.gaps import Gap, Gaps, Through
from shardp2p.runtime.graph import Graph, Graphs
from shardp2p.runtime.packing import Pack, Part
from shardp2p.runtime.value_watch import ValueWatch
from shardp2p.vocabulary import LayerRange

WARM_UPS: Final = 2
"""Forwards before one to compare with, and the capture: libraries take what they need in them."""

TOLERANCE: Final = 0.02
"""By how much, of 1 or of the value, a replay may differ from what was computed: the same kernels run in both."""


class Recordable(Protocol):
    """What is recorded; a Block is one."""

    layers: LayerRange

    def new_inputs(self, rows: int) -> Tensor:
        """Zeros: tokens [rows] of the first block, or hidden [rows, H]."""
        ...

    def pack(self, parts: Sequence[Part]) -> Pack: ...

    def run_watched(self, inputs: Tensor, positions: Tensor, gaps: Gaps) -> Tensor:
        """The forward of inputs [T] or [T, H] at positions [1, T], with `gaps` for cache, attention and experts."""
        ...


class CannotRecordError(RuntimeError):
    """A forward has to be computed as ever; the text says why."""


class Recording:
    """Of one block and one width."""

    def __init__(self, block: Recordable, width: int, graphs: Graphs, parts: Sequence[Part]) -> None:
        """Records, with `parts` for an example, whose rows are computed.

        Raises: CannotRecordError.
        """
        self._width = width
        self._inputs = block.new_inputs(width)
        self._positions = torch.zeros((1, width), dtype=torch.int64, device=self._inputs.device)
        count, pack = self._fill(parts), block.pack(parts)
        with graphs.aside():
            watch = ValueWatch()
            with watch:
                block.run_watched(self._inputs, self._positions, Gaps())
            if watch.reads is not None:
                raise CannotRecordError(f"{watch.reads} reads values")
            for _ in range(WARM_UPS):
                block.run_watched(self._inputs, self._positions, Through(pack, count))
            expected = block.run_watched(self._inputs, self._positions, Through(pack, count))
            cut = _Cut(graphs)
            with cut.capturing():
                self._hidden = block.run_watched(self._inputs, self._positions, cut)
        self._pieces, self._gaps = cut.pieces, cut.gaps
        if not torch.allclose(self._replay(pack, count), expected[:count], TOLERANCE, TOLERANCE, equal_nan=True):
            raise CannotRecordError("a replay gave something else than the forward that it was captured from")

    def run(self, pack: Pack, parts: Sequence[Part]) -> list[Tensor]:
        """The hidden [T, H] of each of `parts`, together at most W rows; `pack` is of them."""
        hidden = self._replay(pack, self._fill(parts)).clone()
        return list(torch.split(hidden, [len(part.rows.parents) for part in parts]))

    def _fill(self, parts: Sequence[Part]) -> int:
        """How many rows there are, which now lie where the pieces read them."""
        positions = [at for part in parts for at in part.rows.positions]
        count = len(positions)
        self._inputs[:count] = torch.cat([part.inputs for part in parts]) if len(parts) > 1 else parts[0].inputs
        self._inputs[count:] = 0
        self._positions.copy_(torch.tensor([[*positions, *[0] * (self._width - count)]]))
        return count

    def _replay(self, pack: Pack, count: int) -> Tensor:
        """Hidden [count, H], valid until the next replay."""
        for piece, gap in zip(self._pieces[:-1], self._gaps, strict=True):
            piece.replay()
            gap.fill(pack, count)
        self._pieces[-1].replay()
        return self._hidden[:count]


class _Cut(Gaps):
    """A forward in `pieces`, which end where a gap begins. Nothing is computed, and gaps stay empty."""

    def __init__(self, graphs: Graphs) -> None:
        super().__init__()
        self.pieces: list[Graph] = []
        self.gaps: list[Gap] = []
        self._graphs = graphs

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """For the whole forward. Raises: CannotRecordError."""
        try:
            self._begin()
            yield
            self.open()
        except RuntimeError as error:
            # What went wrong is known already, and may have been the beginning of the first piece.
            with suppress(RuntimeError, IndexError):
                self.open()
            raise CannotRecordError(str(error)) from error

    def open(self) -> None:
        self.pieces[-1].end()

    def close(self, gap: Gap) -> None:
        self.gaps.append(gap)
        self._begin()

    def _begin(self) -> None:
        piece = self._graphs.new()
        piece.begin()
        self.pieces.append(piece)
