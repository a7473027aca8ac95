"""What a stage holds, and how much memory its sessions may take. Start at service.py."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import trio

from shardp2p.errors import LocalProtocolError, OverloadedError
from shardp2p.stage.kept import Kept, KeptCaches, KeptPlace
from shardp2p.stage.live import Compute, Keep, LiveSession
from shardp2p.stage.session import Work
from shardp2p.vocabulary import DType, LayerRange, PeerId, Token
from shardp2p.wire.messages import Activations, Open, Verdict
from shardp2p.wire.prefixes import Prefixes


@runtime_checkable
class SharingCompute(Protocol):
    """A Compute that can begin with the rows of another of the same layers; packer.py has it."""

    async def __call__(self, work: Work, tokens: tuple[Token, ...]) -> Activations | Verdict:
        """As Compute says."""
        ...

    async def copy_rows(self, other: Any, rows: Sequence[int]) -> bool:
        """Take copies of `rows` of another's cache for the first rows of the text, before anything is computed.

        False, and nothing is taken, where the other has not computed them yet.
        """
        ...

    def hand_on(self) -> Any:
        """Another SharingCompute of the same cache, which outlives the session."""
        ...

    def let_go(self) -> None:
        """The session is over: whoever still refers to this, as tracebacks do, holds no memory."""
        ...


OpenCompute = Callable[[Open], Awaitable[Compute]]
"""Takes what a new session needs on the device and gives what computes there; packer.py has it."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What is served. `cache_rows`: rows that all sessions together may keep, where no budget is shared."""

    model_digest: str
    dtype: DType
    cache_rows: int


class CacheBudget:
    """The memory of one device for the caches of all that is held there, in bytes."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.free_bytes = total_bytes
        self.kept = KeptCaches[SharingCompute]()
        """What ended sessions have left there; it counts as free."""

    def take(self, row_bytes: int, rows: int) -> int:
        """Reserve `rows` rows; gives the bytes to `give_back`. Raises: OverloadedError when too few are free."""
        wanted = rows * row_bytes
        if wanted > self.free_bytes:
            free, total = self.free_bytes // row_bytes, self.total_bytes // row_bytes
            when = "try again in some seconds, or ask for fewer tokens" if rows <= total else "ask for fewer tokens"
            raise OverloadedError(f"{rows} cache rows are asked for and {free} of {total} are free; {when}")
        self.free_bytes -= wanted
        self.kept.fit(self.free_bytes)
        return wanted

    def give_back(self, taken_bytes: int) -> None:
        """Free what `take` gave."""
        self.free_bytes += taken_bytes


class HeldBlock:
    """Layers that are served. `row_bytes` is what a cache row takes in each of them."""

    def __init__(
        self,
        layers: LayerRange,
        holding: Holding,
        row_bytes: Sequence[int],
        open_compute: OpenCompute,
        budget: CacheBudget | None = None,
    ) -> None:
        if len(row_bytes) != len(layers) or min(row_bytes) < 1:
            raise LocalProtocolError(f"{len(row_bytes)} sizes of cache rows for the layers {layers}")
        self.layers = layers
        self.holding = holding
        self.open_compute = open_compute
        self.budget = budget or CacheBudget(holding.cache_rows * sum(row_bytes))
        self.is_draining = False
        """Whether it takes no new sessions."""
        self.sessions = 0
        self.evicted = trio.Event()
        """Set when the sessions that are left have to end."""
        self._row_bytes = tuple(row_bytes)
        self._idle = trio.Event()
        self._running: list[tuple[KeptPlace, Prefixes, SharingCompute, LiveSession]] = []  # as many as sessions

    @property
    def cache_rows(self) -> int:
        """Rows of all the layers that would fit if no session were open on the device."""
        return self.budget.total_bytes // sum(self._row_bytes)

    @property
    def free_cache_rows(self) -> int:
        """Rows of all the layers for which there is room now."""
        return 0 if self.is_draining else self.budget.free_bytes // sum(self._row_bytes)

    def can_run(self, layers: LayerRange) -> bool:
        """Whether `layers` are among those held."""
        return self.layers.start <= layers.start and layers.stop <= self.layers.stop

    def open_session(self, layers: LayerRange, rows: int) -> int:
        """Count a session and reserve its rows; gives the bytes for `close_session`. Raises: OverloadedError."""
        held = self._row_bytes[layers.start - self.layers.start : layers.stop - self.layers.start]
        taken_bytes = self.budget.take(sum(held), rows)
        if self.sessions == 0:
            self._idle = trio.Event()
        self.sessions += 1
        return taken_bytes

    def close_session(self, taken_bytes: int) -> None:
        """The reverse of `open_session`."""
        self.budget.give_back(taken_bytes)
        self.sessions -= 1
        if self.sessions == 0:
            self._idle.set()

    def find_rows(self, request: Open, coordinator: PeerId) -> tuple[Kept[SharingCompute], int] | None:
        """The session whose text begins as that of `request`, and for how many tokens; None where none does."""
        needs_tokens = request.sampling is not None and request.sampling.needs_tokens
        if request.prefixes is None or needs_tokens:
            return None
        place = KeptPlace(self, coordinator, request.layers)
        found = self.budget.kept.find(place, request.prefixes, trio.current_time())
        for other, prefixes, compute, live in self._running:
            if other != place:
                continue
            running = Kept(other, prefixes, tuple(range(live.leading_rows)), 0, compute)
            shared = running.shares(request.prefixes)
            if shared > (found[1] if found else 0):
                found = running, shared
        return None if found is None or found[1] > request.cache_rows else found

    def is_there(self, found: tuple[Kept[SharingCompute], int]) -> bool:
        """Whether what `find_rows` found was not dropped since."""
        kept, _ = found
        return self.budget.kept.has(kept) or any(other is kept.cache for _, _, other, _ in self._running)

    async def share(self, compute: Compute, found: tuple[Kept[SharingCompute], int] | None) -> int:
        """Begin a session with what `find_rows` found, if that is still there; gives the number of its rows."""
        if found is None or not isinstance(compute, SharingCompute):
            return 0
        kept, rows = found
        return rows if self.is_there(found) and await compute.copy_rows(kept.cache, kept.rows[:rows]) else 0

    @contextmanager
    def running(self, request: Open, coordinator: PeerId, compute: Compute, live: LiveSession) -> Iterator[None]:
        """Within it, the rows of a session that runs serve others that begin the same."""
        if request.prefixes is None or not isinstance(compute, SharingCompute):
            yield
            return
        entry = KeptPlace(self, coordinator, request.layers), request.prefixes, compute, live
        self._running.append(entry)
        try:
            yield
        finally:
            self._running = [other for other in self._running if other is not entry]

    def keeper(self, request: Open, coordinator: PeerId, compute: Compute, taken_bytes: int) -> Keep | None:
        """What keeps the session's rows at its end, while no other session wants the memory; None where they cannot."""
        if not isinstance(compute, SharingCompute):
            return None

        def keep(prefixes: Prefixes, rows: tuple[int, ...]) -> None:
            if self.is_draining or len(rows) < prefixes.step_tokens:
                return
            place = KeptPlace(self, coordinator, request.layers)
            kept = Kept(place, prefixes, rows, taken_bytes, compute.hand_on())
            self.budget.kept.add(kept, self.budget.free_bytes + taken_bytes, trio.current_time())

        return keep

    @staticmethod
    def let_go(compute: Compute) -> None:
        """The session of `compute` is over."""
        if isinstance(compute, SharingCompute):
            compute.let_go()

    async def wait_idle(self) -> None:
        """Wait until no session is open."""
        while self.sessions:
            await self._idle.wait()
