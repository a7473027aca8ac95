"""Work on a device that is captured once and replayed, each time over the same memory: CUDA graphs.

A replay starts some dozens of kernels with one call, and Python has no part in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch


class Graph(Protocol):
    """What the device did between `begin` and `end`, ready to be done again."""

    def begin(self) -> None:
        """Capture what is asked of the device from here on, instead of doing it. Within `Graphs.aside` alone."""
        ...

    def end(self) -> None:
        """Raises: RuntimeError where something cannot be captured."""
        ...

    def replay(self) -> None:
        """Do it all, with what the memory that it reads holds now. The device is asked, not waited for."""
        ...


class Graphs(Protocol):
    """What makes the graphs of one device; they are replayed one at a time."""

    def aside(self) -> AbstractContextManager[None]:
        """For warm-ups and captures: after all that was asked of the device before, and before all that comes."""
        ...

    def new(self) -> Graph: ...


class CudaGraphs:
    """Those of a CUDA device: captured on a stream of their own, with one pool for the memory of all of them.

    When a capture has failed, torch cannot say any more whose memory is whose, so there is none after it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._anchor: _CudaGraph | None = None
        self._failed: list[_CudaGraph] = []  # what torch still refers to

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Implements `Graphs`."""
        usual = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(usual)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            usual.wait_stream(self._stream)

    def new(self) -> Graph:
        """Implements `Graphs`. Raises: RuntimeError where a capture has failed before."""
        if self._failed:
            raise RuntimeError("a capture has failed before")
        if self._anchor is None:  # a pool that was used has to be in use from then on
            self._anchor = _CudaGraph(self._pool, self._failed)
            self._anchor.begin()
            torch.zeros(1, device=self._device)
            self._anchor.end()
        return _CudaGraph(self._pool, self._failed)


class _CudaGraph:
    def __init__(self, pool: Any, failed: list[_CudaGraph]) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self._pool = pool
        self._failed = failed

    def begin(self) -> None:
        with self._noting_failure():
            # Other threads, as a draft model's, go on asking the device for memory meanwhile.
            self._graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")

    def end(self) -> None:
        with self._noting_failure():
            self._graph.capture_end()

    def replay(self) -> None:
        self._graph.replay()

    @contextmanager
    def _noting_failure(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError:
            self._failed.append(self)
            raise
