"""Graphs for a machine without a GPU: operators are noted in a capture, and done again over the same memory.

As on a GPU, Python does not run again, memory stays where it was, and what must not happen in a capture fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class ReplayedOps:
    """Implements `shardp2p.runtime.graph.Graphs`."""

    def __init__(self, fails_at: int = 0) -> None:
        """`fails_at`: the graph of this number, from 1, cannot be captured."""
        self.made = 0
        self.replays = 0
        self.is_aside = False
        self.is_capturing = False
        self._fails_at = fails_at

    @contextmanager
    def aside(self) -> Iterator[None]:
        self.is_aside = True
        try:
            yield
        finally:
            self.is_aside = False

    def new(self) -> _Graph:
        self.made += 1
        return _Graph(self, fails=self.made == self._fails_at)


class _Graph(TorchDispatchMode):
    def __init__(self, owner: ReplayedOps, *, fails: bool) -> None:
        super().__init__()
        self._owner = owner
        self._fails = fails
        self._ops: list[tuple[Any, Sequence[Any], Mapping[str, Any], list[Tensor]]] = []

    def begin(self) -> None:
        assert self._owner.is_aside
        assert not self._owner.is_capturing
        self._owner.is_capturing = True
        self.__enter__()

    def end(self) -> None:
        if not self._owner.is_capturing:
            raise RuntimeError("nothing is captured")
        self._owner.is_capturing = False
        self.__exit__(None, None, None)
        if self._fails:
            raise RuntimeError("operation not permitted when stream is capturing")

    def replay(self) -> None:
        assert not self._owner.is_aside
        self._owner.replays += 1
        for func, args, kwargs, outputs in self._ops:
            again = [one for one in tree_leaves(func(*args, **kwargs)) if isinstance(one, Tensor)]
            for output, value in zip(outputs, again, strict=True):
                if output.data_ptr() != value.data_ptr():  # else it is a view, or was written in place
                    output.copy_(value)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if torch.Tag.data_dependent_output in func.tags:
            raise RuntimeError("a value is read while a graph is captured")
        result = func(*args, **(kwargs or {}))
        outputs = [one for one in tree_leaves(result) if isinstance(one, Tensor)]
        self._ops.append((func, args, kwargs or {}, outputs))
        # What is captured is not computed: whoever looks at it too early sees that.
        given = {one.data_ptr() for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)}
        for output in outputs:
            if output.data_ptr() not in given and output.is_floating_point() and _owns(output):
                output.fill_(torch.nan)
        return result


def _owns(tensor: Tensor) -> bool:
    return tensor.storage_offset() == 0 and tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()
