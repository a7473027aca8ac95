"""When the next chunk of drafts may go, and which drafts are worth it: as the ring is seen to work. Pure.

A chunk that waits before a busy stage would be chosen better later, so the next goes when the slowest stage is through
with the last. A draft that is right saves up to a lap, and costs every stage its row: it goes if that is likely to pay.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Final

from shardp2p.coordinator.commands import Limits
from shardp2p.runtime.row_cost import RowCost
from shardp2p.wire.messages import Chunk, Verdict

MOST_PROBABILITY: Final = 0.5
"""No ring makes a draft that is more likely right than wrong not worth sending."""

CREDIT_LAPS: Final = 0.1
"""What drafts may cost before it counts whether they were right."""

TRUST_LAPS: Final = 8.0
"""How much the account counts for less than drafts that save as much as they cost."""

LEAST_DOUBT: Final = 0.5
"""Where drafts save far more than they cost, those of half the worth still go."""

WAY_RISE: Final = 0.1
"""How far what is thought of the way follows a longer one, with each verdict. A shorter one it follows at once."""

FORGET: Final = 0.98
"""What is known of earlier drafts weighs when one more verdict is here: a text changes its ways."""

DRAFT_ROWS: Final = 64
"""Chunks of more rows are of a prompt, and say little about chunks of drafts."""


class Pace:
    """What the chunks so far have cost, and what follows for the next."""

    def __init__(self, limits: Limits) -> None:
        self._is_paced = limits.is_paced
        self._sent: deque[tuple[int, float, int]] = deque()  # number, time and rows of the chunks in the ring
        self._slowest = RowCost()
        self._ring = RowCost()
        self._wide = RowCost()  # as _ring, of more than one row: the second often costs far more than those after it
        self._way_s: float | None = None  # of a lap, what is neither computing nor waiting
        self._next_at = -inf
        self._bare_s = 0.0  # what a row alone takes all stages: less than a line through wider chunks says
        self._spent_laps = 0.0  # what the rows of drafts have cost
        self._saved_laps = 0.0  # drafts that were right

    @property
    def next_at(self) -> float:
        """When the next chunk of drafts may go."""
        return self._next_at

    @property
    def least_probability(self) -> float:
        """Drafts of less are not worth a row: fewer of them are while drafts cost more than they save, else more."""
        if not self._lap_s:
            return 0.0
        return min(MOST_PROBABILITY, self._doubt() * self._row_laps)

    def are_worth(self, expected_right: float, rows: int) -> bool:
        """Whether drafts, so many of which are likely right, are worth that a chunk has `rows` rows in place of one."""
        if rows < 2 or not self._bare_s or not self._lap_s:
            return True
        extra_s = self._wide.seconds(rows) - self._bare_s
        return expected_right >= min(MOST_PROBABILITY, self._doubt() * extra_s / self._lap_s)

    def _doubt(self) -> float:
        """What drafts cost of late, as a multiple of what they saved; both begin with a credit."""
        doubt = (self._spent_laps + CREDIT_LAPS) / (self._saved_laps + CREDIT_LAPS)
        if doubt >= 1.0:
            return doubt
        return max(LEAST_DOUBT, (self._spent_laps + TRUST_LAPS) / (self._saved_laps + TRUST_LAPS))

    @property
    def _lap_s(self) -> float:
        """What a row alone takes when nothing is before it, which is what a draft that is right saves. 0: not known."""
        return 0.0 if self._way_s is None else self._way_s + (self._bare_s or self._ring.seconds(1))

    def _note_way(self, way_s: float) -> None:
        """A lap took so much besides computing. Waits behind other chunks are in it: what is more counts little."""
        if self._way_s is None:
            self._way_s = max(0.0, way_s)
        elif way_s >= self._way_s:
            self._way_s += (way_s - self._way_s) * WAY_RISE
        elif way_s >= 0.0:  # else somebody lies
            self._way_s = way_s

    @property
    def _row_laps(self) -> float:
        """What a row costs the ring, as a share of a lap."""
        return self._ring.row_s / self._lap_s if self._lap_s else 0.0

    def note_sent(self, chunk: Chunk, now: float) -> None:
        """A chunk goes into the ring."""
        self._sent.append((chunk.ref.seq, now, len(chunk.tokens)))
        if self._is_paced:
            self._next_at = max(self._next_at, now) + self._slowest.seconds(len(chunk.tokens))

    def note_verdict(self, verdict: Verdict, chunk: Chunk, now: float) -> None:
        """The answer to a chunk is here."""
        sent_at = now
        while self._sent and self._sent[0][0] <= verdict.ref.seq:
            _, sent_at, _ = self._sent.popleft()
        rows = chunk.quiet + sum(choice is not None for choice in verdict.choices)
        if not self._is_paced or not rows or len(chunk.tokens) > DRAFT_ROWS:
            return
        self._slowest.note_usual(rows, verdict.slowest_us / 1e6)
        self._ring.note_usual(rows, verdict.compute_us / 1e6)
        if rows > 1:
            self._wide.note_usual(rows, verdict.compute_us / 1e6)
        lap_s = max(0.0, now - sent_at)
        if lap_s > 0.0:  # else the clock stands still or goes back
            self._note_way(lap_s - verdict.compute_us / 1e6)
        after_root = max(0, chunk.root + 1 - chunk.ref.first_slot - chunk.quiet)
        drafts = sum(choice is not None for choice in verdict.choices[after_root:])
        self._charge(rows, drafts, min(verdict.compute_us / 1e6, lap_s))
        # What is still in the ring is all that the slowest stage can have before it, whatever was thought of it.
        self._next_at = min(self._next_at, now + sum(self._slowest.seconds(one) for _, _, one in self._sent))

    def _charge(self, rows: int, drafts: int, compute_s: float) -> None:
        """Put the cost of a chunk's drafts on the account: all that it took beyond a row alone, where that is known."""
        if rows == 1 and not drafts:
            self._bare_s += (compute_s - self._bare_s) * (0.1 if self._bare_s else 1.0)
        extra_s = max(0.0, compute_s - self._bare_s) if self._bare_s else drafts * self._ring.row_s
        self._spent_laps = self._spent_laps * FORGET + (extra_s / self._lap_s if drafts and self._lap_s else 0.0)
        self._saved_laps *= FORGET

    def note_right(self) -> None:
        """A draft that was sent is right: it saved up to a lap."""
        self._saved_laps += 1.0

    def drop(self) -> None:
        """Nothing that was sent comes back."""
        self._sent.clear()
        self._next_at = -inf
