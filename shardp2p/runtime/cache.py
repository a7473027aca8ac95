"""The keys and values of one session: append-only rows, one per token of the tree, for every layer of a block.

All memory is taken at construction and never grows; keys and values are written in place and handed to attention as
views. docs/architecture.md, decision 2 (one token tree).
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shardp2p.errors import LocalProtocolError
from shardp2p.runtime.arena import CacheArena, aligned
from shardp2p.runtime.masks import Ancestry, RowBatch

__all__ = ["LayerShape", "RowBatch", "RowCache"]


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one row takes in one layer: shapes without the row dimension, as (heads, dim) each.

    `others` are further tensors that a layer keeps per row, as (dim,) each.
    """

    key: tuple[int, int]
    value: tuple[int, int]
    others: tuple[tuple[int, ...], ...] = ()

    def row_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of one row."""
        shapes = (self.key, self.value, *self.others)
        return sum(math.prod(shape) for shape in shapes) * dtype.itemsize


class RowCache:
    """Rows [0, rows) of at most `capacity_rows`; every row knows its parent and position.

    With an `arena` the memory is a part of what that has reserved, while there is room, and goes back to it with
    `close`, or with the cache.
    """

    def __init__(
        self,
        shapes: Sequence[LayerShape],
        capacity_rows: int,
        dtype: torch.dtype,
        device: torch.device,
        first_layer: int,
        arena: CacheArena | None = None,
    ) -> None:
        if capacity_rows < 1:
            raise LocalProtocolError(f"a cache of {capacity_rows} rows")
        self.capacity_rows = capacity_rows
        self.bytes = capacity_rows * sum(shape.row_bytes(dtype) for shape in shapes)
        self.ancestry = Ancestry(capacity_rows)
        self.tensors = LayerTensors(shapes, capacity_rows, dtype, first_layer)
        lease = None if arena is None else arena.take(self.tensors.size_bytes, self.tensors)
        self._give_back = None if arena is None or lease is None else weakref.finalize(self, arena.give_back, lease)
        if lease is None:
            # Writing every element makes the system hand out the memory now, not in the middle of an answer.
            self.tensors.bind(torch.empty(self.tensors.size_bytes, dtype=torch.uint8, device=device).zero_())

    def close(self) -> None:
        """Gives back what came from an arena; the cache must not be used afterwards. May be called twice."""
        if self._give_back is not None:
            self._give_back()

    @property
    def rows(self) -> int:
        """How many rows are in use."""
        return self.ancestry.rows

    def keep(self, rows: Sequence[int], first: int = 0) -> None:
        """Keeps the rows before `first` and exactly these of the others, ascending, renumbered from 0.

        Raises:
            LocalProtocolError: before anything changed, where the rows are out of order or a parent is not kept.
        """
        still = self.ancestry.keep(rows, first)
        self.tensors.move(rows[still - first :], still)

    def has(self, rows: Sequence[int]) -> bool:
        """Whether all of these are in use."""
        return all(0 <= row < self.rows for row in rows)

    def copy_from(self, other: RowCache, rows: Sequence[int]) -> None:
        """Begins, while empty, with copies of another cache's rows, which form one simple chain from here on.

        Raises: LocalProtocolError: there is no room, or the other cache has no such rows or is of other layers.
        """
        if self.rows or len(rows) > self.capacity_rows or not other.has(rows):
            raise LocalProtocolError(f"{len(rows)} rows cannot be copied from a cache of {other.rows}")
        self.tensors.copy_from(other.tensors, rows)
        self.ancestry.append(RowBatch.chain(0, len(rows)))

    def truncate(self, rows: int) -> None:
        """Forgets the rows from `rows` on."""
        if not 0 <= rows <= self.rows:
            raise LocalProtocolError(f"a cache of {self.rows} rows cannot be cut to {rows}")
        self.ancestry.truncate(rows)

    def begin(self, batch: RowBatch) -> bool:
        """Prepares for the rows of a forward; whether they continue one simple chain.

        Raises:
            LocalProtocolError: no room, or impossible parents or positions; nothing was touched.
        """
        if self.rows + len(batch.parents) > self.capacity_rows:
            raise LocalProtocolError(
                f"{len(batch.parents)} more rows than the {self.rows} of {self.capacity_rows} in use"
            )
        is_chain = self.ancestry.check(batch)
        self.tensors.begin(self.rows, self.rows + len(batch.parents))
        return is_chain

    def commit(self, batch: RowBatch) -> None:
        """Counts the rows of a forward that went through; before it, they are not there."""
        self.ancestry.append(batch)


class LayerTensors:
    """What the attention layers of transformers see as their cache; layers go by their numbers in the whole model."""

    is_compileable = False

    def __init__(self, shapes: Sequence[LayerShape], capacity: int, dtype: torch.dtype, first_layer: int) -> None:
        """For `bind` to give them memory."""
        self._shapes = shapes
        self._capacity = capacity
        self._dtype = dtype
        self._first_layer = first_layer
        self._start = self._stop = 0
        self.view_starts = [0] * len(shapes)
        self.size_bytes = sum(
            aligned(self._bytes_of(one)) for shape in shapes for one in (shape.key, shape.value, *shape.others)
        )

    def bind(self, memory: Tensor) -> None:
        """Lie in these bytes [size_bytes] uint8, one tensor behind the other; also after they have moved."""
        at = 0

        def rows(shape: tuple[int, ...]) -> Tensor:
            nonlocal at
            size_bytes = self._bytes_of(shape)
            tensor = memory[at : at + size_bytes].view(self._dtype).view(1, *shape[:-1], self._capacity, shape[-1])
            at += aligned(size_bytes)
            return tensor

        self._keys = [rows(shape.key) for shape in self._shapes]
        self._values = [rows(shape.value) for shape in self._shapes]
        self._others = [[rows(other) for other in shape.others] for shape in self._shapes]

    def _bytes_of(self, shape: tuple[int, ...]) -> int:
        return math.prod(shape) * self._capacity * self._dtype.itemsize

    def begin(self, start: int, stop: int) -> None:
        """The next updates write rows [start, stop); the views start at `view_starts`, per layer."""
        self._start, self._stop = start, stop

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Stores the new rows [1, heads, T, dim] of a layer; all rows that it may attend to."""
        layer = layer_idx - self._first_layer
        all_keys, all_values, start, stop = self._keys[layer], self._values[layer], self._start, self._stop
        all_keys[:, :, start:stop] = keys
        all_values[:, :, start:stop] = values
        first = self.view_starts[layer]
        return all_keys[:, :, first:stop], all_values[:, :, first:stop]

    def update_indexer(self, keys: Tensor, layer_idx: int, *_: Any, **__: Any) -> Tensor:
        """Stores the new rows [1, T, dim] of a layer's sparse attention index; all rows of it."""
        layer = layer_idx - self._first_layer
        stored = self._others[layer][0]
        stored[:, self._start : self._stop] = keys
        return stored[:, self.view_starts[layer] : self._stop]

    def move(self, rows: Sequence[int], to: int) -> None:
        """Copies `rows` to the rows from `to` on."""
        if not len(rows):
            return
        with torch.inference_mode():
            index = torch.tensor(rows, device=self._keys[0].device)
            for tensor in self._all():
                tensor.narrow(-2, to, len(rows)).copy_(tensor.index_select(-2, index))

    def copy_from(self, other: LayerTensors, rows: Sequence[int]) -> None:
        """Copies another's `rows` to the rows from 0 on."""
        if (other._shapes, other._dtype, other._first_layer) != (self._shapes, self._dtype, self._first_layer):
            raise LocalProtocolError("rows of other layers cannot be copied")
        with torch.inference_mode():
            still = next((at for at, row in enumerate(rows) if row != at), len(rows))
            index = torch.tensor(rows[still:], dtype=torch.int64, device=self._keys[0].device)
            for tensor, source in zip(self._all(), other._all(), strict=True):
                tensor.narrow(-2, 0, still).copy_(source.narrow(-2, 0, still))
                tensor.narrow(-2, still, len(rows) - still).copy_(source.index_select(-2, index))

    def _all(self) -> list[Tensor]:
        return [*self._keys, *self._values, *(other for others in self._others for other in others)]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Rows before the present forward."""
        return self._start

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Rows before the present forward."""
        return self._start

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """The rows that attention sees, and the first of them."""
        first = self.view_starts[layer_idx - self._first_layer] if layer_idx >= self._first_layer else 0
        return self._stop - first, first
