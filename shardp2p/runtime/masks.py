"""Which cache rows each row may attend to: the ancestors of a row in the token tree, as masks. Pure numpy.

Rows 0..chain-1 form one simple chain, each the child of the row before it; for them nothing is stored. A later row
keeps how much of that chain is above it (always a prefix) and a bit set of its ancestors among the later rows, so a
mask costs a copy per row and never a walk along a path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardp2p.errors import LocalProtocolError

NO_ROW = -1
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Where the new rows of one forward belong.

    parents[i] is the cache row of the i-th new row's parent, or -1; it may be a row of the same batch, whose numbers
    start at the rows that the cache holds. positions[i] is how many tokens stand before it on its path.
    """

    parents: tuple[int, ...]
    positions: tuple[int, ...]

    @classmethod
    def chain(cls, first_row: int, count: int) -> RowBatch:
        """`count` rows that continue a simple chain of `first_row` rows, positions equal to row numbers."""
        rows = range(first_row, first_row + count)
        return cls(tuple(row - 1 for row in rows), tuple(rows))


class Ancestry:
    """The tree over the rows of one cache, at most `capacity` of them."""

    def __init__(self, capacity: int) -> None:
        self.rows = 0
        self.chain = 0
        self.positions = np.zeros(capacity, dtype=np.int64)
        self._parents: list[int] = []
        self._trunks: list[int] = []
        self._bits: list[int] = []

    def check(self, batch: RowBatch) -> bool:
        """Whether the batch continues the simple chain that all rows form.

        Raises:
            LocalProtocolError: a parent does not exist yet, or a position is not the parent's plus one.
        """
        rows, parents, positions = self.rows, batch.parents, batch.positions
        if len(parents) != len(positions) or not parents:
            raise LocalProtocolError(f"a batch of {len(parents)} parents and {len(positions)} positions")
        for index, (parent, position) in enumerate(zip(parents, positions, strict=True)):
            if not NO_ROW <= parent < rows + index:
                raise LocalProtocolError(f"new row {rows + index} names the row {parent} as its parent")
            above = positions[parent - rows] if parent >= rows else self.positions[parent]
            if position < 0 or (parent != NO_ROW and position != above + 1):
                raise LocalProtocolError(f"new row {rows + index} has position {position} below row {parent}")
        return (
            self.chain == rows and parents[0] == rows - 1 and parents == tuple(range(rows - 1, rows + len(parents) - 1))
        )

    def append(self, batch: RowBatch) -> None:
        """Takes the rows of a batch that `check` accepted."""
        count = len(batch.parents)
        self.positions[self.rows : self.rows + count] = batch.positions
        for parent in batch.parents:
            self._append(parent)

    def _append(self, parent: int) -> None:
        if self.chain == self.rows and parent == self.rows - 1:
            self.chain += 1
        else:
            self._parents.append(parent)
            if parent < self.chain:
                self._trunks.append(parent + 1)
                self._bits.append(0)
            else:
                above = parent - self.chain
                self._trunks.append(self._trunks[above])
                self._bits.append(self._bits[above] | 1 << above)
        self.rows += 1

    def truncate(self, rows: int) -> None:
        """Forgets the rows from `rows` on."""
        self.rows = rows
        self.chain = min(self.chain, rows)
        for column in (self._parents, self._trunks, self._bits):
            del column[rows - self.chain :]

    def keep(self, rows: Sequence[int], first: int = 0) -> int:
        """Keeps the rows before `first` and exactly these of the others, renumbered from 0; gives how many leading rows
        stay where they are.

        Raises:
            LocalProtocolError: the rows are not ascending or not there, or one's parent is not kept.
        """
        kept = np.asarray(rows, dtype=np.int64)
        is_ascending = not kept.size or (kept[0] >= first and kept[-1] < self.rows and bool((np.diff(kept) > 0).all()))
        if not (is_ascending and 0 <= first <= self.rows):
            raise LocalProtocolError("the rows to keep must be ascending rows of the cache")
        at_home = int(np.searchsorted(kept - np.arange(kept.size), first + 1))
        still, moved = first + at_home, kept[at_home:]
        new_numbers = {int(row): still + index for index, row in enumerate(moved)}
        parents = []
        for row in new_numbers:
            parent = row - 1 if row < self.chain else self._parents[row - self.chain]
            if parent >= still and parent not in new_numbers:
                raise LocalProtocolError(f"row {row} is kept without its parent {parent}")
            parents.append(parent if parent < still else new_numbers[parent])
        self.truncate(still)
        self.positions[still : still + moved.size] = self.positions[moved]
        for parent in parents:
            self._append(parent)
        return still

    def mask(self, batch: RowBatch, window_tokens: int = 0) -> BoolArray:
        """Which rows, the batch's own included, each new row may attend to: [T, rows + T].

        A `window_tokens` above 0 leaves only ancestors fewer than that many positions before the row itself.
        """
        count, rows, chain = len(batch.parents), self.rows, self.chain
        mask = np.zeros((count, rows + count), dtype=np.bool_)
        for index, parent in enumerate(batch.parents):
            line = mask[index]
            if parent >= rows:
                line[:] = mask[parent - rows]
            elif parent >= chain:
                above = parent - chain
                line[: self._trunks[above]] = True
                packed = (self._bits[above] | 1 << above).to_bytes((rows - chain + 7) // 8, "little")
                line[chain:rows] = np.unpackbits(
                    np.frombuffer(packed, dtype=np.uint8), count=rows - chain, bitorder="little"
                )
            else:
                line[: parent + 1] = True
            line[rows + index] = True
        if window_tokens:
            new = np.asarray(batch.positions, dtype=np.int64)
            mask &= new[:, None] - np.concatenate((self.positions[:rows], new)) < window_tokens
        return mask
