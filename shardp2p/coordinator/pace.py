"""When the next chunk of drafts may go, and which drafts are worth it: as the ring is seen to work. Pure.

A chunk that waits before a busy stage would be chosen better later, so the next goes when the slowest stage is through
with the last. A draft that is right saves up to a lap, and costs every stage its row: it goes if that is likely to pay.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Final

from shardp2p.coordinator.commands import Limits
from shardp2p.wire.messages import Chunk, Verdict

FORGET: Final = 0.98
"""What an observation weighs when one more has been made: the last 50 or so decide."""

MOST_PROBABILITY: Final = 0.5
"""No ring makes a draft that is more likely right than wrong not worth sending."""

DRAFT_ROWS: Final = 64
"""Chunks of more rows are of a prompt, and say little about chunks of drafts."""


class Pace:
    """What the chunks so far have cost, and what follows for the next."""

    def __init__(self, limits: Limits) -> None:
        self._is_paced = limits.is_paced
        self._sent: deque[tuple[int, float]] = deque()  # number and time of the chunks in the ring
        self._slowest = RowCost()
        self._ring = RowCost()
        self._lap_s = 0.0
        self._next_at = -inf

    @property
    def next_at(self) -> float:
        """When the next chunk of drafts may go."""
        return self._next_at

    @property
    def least_probability(self) -> float:
        """Drafts of less are not worth a row."""
        if not self._lap_s:
            return 0.0
        return min(MOST_PROBABILITY, self._ring.row_s / self._lap_s)

    def note_sent(self, chunk: Chunk, now: float) -> None:
        """A chunk goes into the ring."""
        self._sent.append((chunk.ref.seq, now))
        if self._is_paced:
            self._next_at = max(self._next_at, now) + self._slowest.seconds(len(chunk.tokens))

    def note_verdict(self, verdict: Verdict, chunk: Chunk, now: float) -> None:
        """The answer to a chunk is here."""
        sent_at = now
        while self._sent and self._sent[0][0] <= verdict.ref.seq:
            _, sent_at = self._sent.popleft()
        rows = chunk.quiet + sum(choice is not None for choice in verdict.choices)
        if not self._is_paced or not rows or len(chunk.tokens) > DRAFT_ROWS:
            return
        self._slowest.note(rows, verdict.slowest_us / 1e6)
        self._ring.note(rows, verdict.compute_us / 1e6)
        lap_s = now - sent_at
        self._lap_s += (lap_s - self._lap_s) * (0.1 if self._lap_s else 1.0)

    def drop(self) -> None:
        """Nothing that was sent comes back."""
        self._sent.clear()
        self._next_at = -inf


class RowCost:
    """What a chunk costs by its rows: a straight line through what was seen, by least squares."""

    def __init__(self) -> None:
        self._weight = self._rows = self._seconds = self._rows2 = self._rows_seconds = 0.0
        self.base_s = 0.0
        self.row_s = 0.0

    def note(self, rows: int, seconds: float) -> None:
        """A chunk of so many rows took so long."""
        self._weight = self._weight * FORGET + 1
        self._rows = self._rows * FORGET + rows
        self._seconds = self._seconds * FORGET + seconds
        self._rows2 = self._rows2 * FORGET + rows * rows
        self._rows_seconds = self._rows_seconds * FORGET + rows * seconds
        mean_rows, mean_s = self._rows / self._weight, self._seconds / self._weight
        spread = self._rows2 - self._rows * mean_rows
        slope = (self._rows_seconds - self._rows * mean_s) / spread if spread > 0.5 else 0.0
        # Neither rows that save time nor a chunk that costs nothing is anything but noise.
        self.row_s = min(max(slope, 0.0), mean_s / mean_rows)
        self.base_s = mean_s - self.row_s * mean_rows

    def seconds(self, rows: int) -> float:
        """What a chunk of so many rows would take."""
        return self.base_s + self.row_s * rows
