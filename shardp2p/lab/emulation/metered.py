"""A generation machine that counts the CPU time it takes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from shardp2p.coordinator.commands import Command
from shardp2p.coordinator.generation import Generation
from shardp2p.vocabulary import Branch
from shardp2p.wire.messages import Verdict


class MeteredGeneration(Generation):
    """The machine itself; `cpu_s` is what its calls have taken since it began."""

    cpu_s = 0.0

    def next_command(self) -> Command | None:
        """The same."""
        with self._metered():
            return super().next_command()

    def wake(self, now: float) -> None:
        """The same."""
        with self._metered():
            super().wake(now)

    def receive_verdict(self, verdict: Verdict, now: float = 0.0) -> None:
        """The same."""
        with self._metered():
            super().receive_verdict(verdict, now)

    def receive_draft(self, request: int, branches: Sequence[Sequence[Branch]], now: float = 0.0) -> None:
        """The same."""
        with self._metered():
            super().receive_draft(request, branches, now)

    @contextmanager
    def _metered(self) -> Iterator[None]:
        began = time.thread_time()
        yield
        self.cpu_s += time.thread_time() - began
