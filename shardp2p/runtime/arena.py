"""Memory for the caches of a device, taken once at the start: what sessions will need is there, whoever else grows.

Caches come and go for days and in all sizes, so that free bytes end up in gaps. When no gap is large enough for a new
cache, those that are there move together: everything that is free can always be used.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from itertools import pairwise
from typing import Final, Protocol

import torch
from torch import Tensor

from shardp2p.errors import ConfigError, LocalProtocolError

ALIGNMENT_BYTES: Final = 256
"""Where a tensor may start: what CUDA's own allocator promises, and a multiple of any vector width."""
MOVED_BYTES: Final = 16 * 2**20
"""Are copied at once: a cache may overlap with where it goes, so what is copied is out of the way first."""


class Movable(Protocol):
    """What uses a part of an arena."""

    def bind(self, memory: Tensor) -> None:
        """Use these bytes from now on: the part's first ones, or the same contents where they have moved to."""
        ...


class Lease:
    """Bytes [start, stop) of an arena, and who has them."""

    def __init__(self, start: int, stop: int, owner: Movable) -> None:
        self.start = start
        self.stop = stop
        self.owner = weakref.ref(owner)


class CacheArena:
    """`total_bytes` of a device. Caches are opened in the device thread and may be dropped in any.

    Opening one may move the others: no forward runs meanwhile, and nobody may keep a cache's tensors from one forward
    to the next.
    """

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
        self.total_bytes = total_bytes
        self._leases: list[Lease] = []  # ascending; as many as there are caches
        self._returned: deque[Lease] = deque()
        self._lock = threading.Lock()

    @property
    def free_bytes(self) -> int:
        """What no cache holds."""
        with self._lock:
            self._collect()
            return self._free_bytes()

    def take(self, size_bytes: int, owner: Movable) -> Lease | None:
        """Give `owner` that many bytes, of any content; None where fewer are free."""
        length = aligned(size_bytes)
        with self._lock:
            self._collect()
            if length > self._free_bytes():
                return None
            at = self._gap_for(length)
            if at is None:
                self._compact()
                at = len(self._leases)
            start = self._leases[at - 1].stop if at else 0
            lease = Lease(start, start + length, owner)
            self._leases.insert(at, lease)
        owner.bind(self._memory[start : start + length])
        return lease

    def give_back(self, lease: Lease) -> None:
        """Free what nobody uses any more.

        The garbage collector may call it anywhere, in the middle of `take` too, so it waits for no lock.
        """
        self._returned.append(lease)

    def _collect(self) -> None:
        while self._returned:
            self._leases.remove(self._returned.popleft())

    def _free_bytes(self) -> int:
        # What is too little at the end to be aligned counts as taken.
        whole = self.total_bytes // ALIGNMENT_BYTES * ALIGNMENT_BYTES
        return whole - sum(lease.stop - lease.start for lease in self._leases)

    def _gap_for(self, length: int) -> int | None:
        """The number of the lease before which there is the smallest gap that is large enough, or None."""
        starts = [*(lease.start for lease in self._leases), self.total_bytes]
        stops = [0, *(lease.stop for lease in self._leases)]
        fitting = [(start - stop, at) for at, (start, stop) in enumerate(zip(starts, stops, strict=True))]
        return min(((gap, at) for gap, at in fitting if gap >= length), default=(0, None))[1]

    def _compact(self) -> None:
        """Move every cache down to the end of the one before it."""
        at = 0
        for lease in self._leases:
            length = lease.stop - lease.start
            if lease.start > at:
                self._move(lease.start, at, length)
                lease.start, lease.stop = at, at + length
                owner = lease.owner()
                if owner is not None:
                    owner.bind(self._memory[at : at + length])
            at += length
        assert all(one.stop == other.start for one, other in pairwise(self._leases))

    def _move(self, source: int, to: int, length: int) -> None:
        for done in range(0, length, MOVED_BYTES):
            count = min(MOVED_BYTES, length - done)
            moved = self._memory[source + done : source + done + count].clone()
            self._memory[to + done : to + done + count] = moved


def aligned(size_bytes: int) -> int:
    """The multiple of ALIGNMENT_BYTES that so many bytes take."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
