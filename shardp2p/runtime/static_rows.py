"""Cache rows of a fixed number, written where a tensor says: forwards whose shapes never change.

So on CUDA a forward is captured once for each width as a graph, and replayed. Nothing is ever copied to roll back: a
row that is not in a mask is not there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shardp2p.errors import LocalProtocolError
from shardp2p.runtime.block import Block

WIDTHS: Final = (1, 4, 16, 32, 64)
"""Forwards have one of these many rows; what is less is padded."""

SCRAP: Final = 0
"""The row that padding writes to, and sees: nobody else does."""

WARM_UPS: Final = 3
"""Forwards before a capture, in which libraries take what they need."""


class StaticRows:
    """`capacity` rows for every layer of a whole model, and the forwards over them."""

    def __init__(self, block: Block, capacity: int, *, captures: bool | None = None) -> None:
        """Takes the memory. `captures`: as graphs, by default where the block is on CUDA."""
        self.capacity = capacity
        self._block = block
        self._captures = block.device.type == "cuda" if captures is None else captures
        self._tensors = _Tensors(block, capacity)
        self._steps: dict[int, _Step] = {}

    def copy_from(self, other: StaticRows) -> None:
        """Take over the rows of one that has become too small."""
        with torch.inference_mode():
            for mine, theirs in zip(self._tensors.all, other._tensors.all, strict=True):
                mine[..., : other.capacity, :].copy_(theirs)

    def forward(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        rows: Sequence[int],
        allowed: Mapping[str, NDArray[np.bool_]],
        *,
        width: int | None = None,
    ) -> Tensor:
        """Hidden [T, H] of `tokens` [T], which are stored in `rows` [T] and see the rows that `allowed` [T, R] says.

        At most WIDTHS[-1] tokens. `width` None: the least that is usual. The values do not depend on it.
        """
        count = len(tokens)
        if width is None:
            width = next((one for one in WIDTHS if one >= count), 0)
        if not 0 < count <= width:
            raise LocalProtocolError(f"a static forward of {count} rows")
        step = self._steps.get(width)
        if step is None:
            step = self._steps[width] = _Step(self._block, self._tensors, width)
        with torch.inference_mode():
            step.fill(tokens, positions, rows, allowed)
            return step.replay()[:count] if self._captures else step.run()[:count]


class _Step:
    """One width: its inputs, which stay where they are, and on CUDA its graph."""

    def __init__(self, block: Block, tensors: _Tensors, width: int) -> None:
        device = block.device
        self._block = block
        self._rows = tensors
        self._width = width
        with torch.inference_mode():
            self._tokens = torch.zeros(width, dtype=torch.int64, device=device)
            self._positions = torch.zeros((1, width), dtype=torch.int64, device=device)
            self._at = torch.zeros(width, dtype=torch.int64, device=device)
            self._allowed = {
                kind: torch.zeros((width, tensors.capacity), dtype=torch.bool, device=device) for kind in block.windows
            }
        self._graph: torch.cuda.CUDAGraph | None = None
        self._output: Tensor | None = None

    def fill(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        rows: Sequence[int],
        allowed: Mapping[str, NDArray[np.bool_]],
    ) -> None:
        padding = self._width - len(tokens)
        self._tokens.copy_(torch.tensor([*tokens, *[0] * padding]))
        self._positions.copy_(torch.tensor([[*positions, *[0] * padding]]))
        self._at.copy_(torch.tensor([*rows, *[SCRAP] * padding]))
        for kind, mask in self._allowed.items():
            padded = np.zeros((self._width, self._rows.capacity), dtype=np.bool_)
            padded[: len(tokens)] = allowed[kind]
            padded[len(tokens) :, SCRAP] = True
            mask.copy_(torch.from_numpy(padded))

    def run(self) -> Tensor:
        self._rows.at = self._at
        return self._block.run_rows(self._tokens, self._positions, self._allowed, self._rows)

    def replay(self) -> Tensor:
        if self._graph is None or self._output is None:
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(WARM_UPS):
                    self.run()
            torch.cuda.current_stream().wait_stream(stream)
            self._graph = torch.cuda.CUDAGraph()
            # Other threads, as a stage's, go on asking the device for memory meanwhile.
            with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
                self._output = self.run()
        self._graph.replay()
        return self._output


class _Tensors:
    """What the layers see as their cache: all rows, always; those of the present forward are written at `at`."""

    is_compileable = False

    def __init__(self, block: Block, capacity: int) -> None:
        def rows(shape: tuple[int, ...]) -> Tensor:
            return torch.zeros((1, *shape[:-1], capacity, shape[-1]), dtype=block.dtype, device=block.device)

        with torch.inference_mode():
            self.keys = [rows(shape.key) for shape in block.row_shapes]
            self.values = [rows(shape.value) for shape in block.row_shapes]
            self.others = [rows(other) for shape in block.row_shapes for other in shape.others[:1]]
        self.capacity = capacity
        self.at = torch.zeros(0, dtype=torch.int64)

    @property
    def all(self) -> list[Tensor]:
        return [*self.keys, *self.values, *self.others]

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Stores the new rows [1, heads, T, dim] of a layer; all rows."""
        stored = self.keys[layer_idx], self.values[layer_idx]
        for mine, new in zip(stored, (keys, values), strict=True):
            mine.index_copy_(2, self.at, new)
        return stored

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self.capacity, 0
