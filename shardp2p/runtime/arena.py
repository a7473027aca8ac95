"""Memory for the caches of a device, taken once at the start: what sessions will need is there, whoever else grows.

A cache asks for its tensors one by one, so that a gap of one tensor's size is enough for it. Sessions come and go for
days; what no gap is large enough for comes from the device's head-room instead.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections import deque
from typing import Final, NamedTuple

import torch
from torch import Tensor

from shardp2p.errors import ConfigError, LocalProtocolError

ALIGNMENT_BYTES: Final = 256
"""Where a tensor may start: what CUDA's own allocator promises, and a multiple of any vector width."""


class Piece(NamedTuple):
    """Bytes [start, stop) of an arena."""

    start: int
    stop: int


class CacheArena:
    """`total_bytes` of a device. Caches are opened in the device thread and may be dropped in any."""

    def __init__(self, total_bytes: int, device: torch.device) -> None:
        """Takes the memory and writes all of it, so that the system cannot find later that it has none.

        Raises: ConfigError when the device has not that much.
        """
        if total_bytes < 1:
            raise LocalProtocolError(f"an arena of {total_bytes} bytes")
        try:
            self._memory = torch.empty(total_bytes, dtype=torch.uint8, device=device).zero_()
        except (RuntimeError, MemoryError) as error:
            raise ConfigError(
                f"{total_bytes / 2**20:,.0f} MiB for caches are more than {device} has free; start with a smaller "
                "--cache-rows or --memory"
            ) from error
        self.device = self._memory.device
        self.total_bytes = total_bytes
        self._gaps = [Piece(0, total_bytes)]  # ascending, never touching one another
        self._returned: deque[list[Piece]] = deque()  # one entry for each cache that was dropped
        self._lock = threading.Lock()

    @property
    def free_bytes(self) -> int:
        """What no cache holds, in gaps of any size."""
        with self._lock:
            self._collect()
            return sum(gap.stop - gap.start for gap in self._gaps)

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Piece] | None:
        """A tensor of any content, and the piece to give back later; None where no gap is large enough."""
        size_bytes = math.prod(shape) * dtype.itemsize
        length = -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        with self._lock:
            self._collect()
            fitting = [at for at, gap in enumerate(self._gaps) if gap.stop - gap.start >= length]
            if not fitting:
                return None
            # The smallest that fits leaves the large ones whole.
            at = min(fitting, key=lambda index: self._gaps[index].stop - self._gaps[index].start)
            start, stop = self._gaps[at]
            self._gaps[at : at + 1] = [Piece(start + length, stop)] if start + length < stop else []
        return self._memory[start : start + size_bytes].view(dtype).view(shape), Piece(start, start + length)

    def give_back(self, pieces: list[Piece]) -> None:
        """Take back pieces that nobody uses any more; they are free from the next `take` on.

        The garbage collector may call it anywhere, in the middle of `take` too, so it waits for no lock.
        """
        self._returned.append(pieces)

    def _collect(self) -> None:
        while self._returned:
            for piece in self._returned.popleft():
                self._merge(piece)

    def _merge(self, piece: Piece) -> None:
        at = bisect_left(self._gaps, piece)
        first, last, (start, stop) = at, at, piece
        if at and self._gaps[at - 1].stop >= start:
            first, start = at - 1, self._gaps[at - 1].start
        if at < len(self._gaps) and self._gaps[at].start <= stop:
            last, stop = at + 1, self._gaps[at].stop
        if stop - start != piece.stop - piece.start + sum(gap.stop - gap.start for gap in self._gaps[first:last]):
            raise LocalProtocolError(f"bytes {piece.start} to {piece.stop} of an arena were given back twice")
        self._gaps[first:last] = [Piece(start, stop)]
