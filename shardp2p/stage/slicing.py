"""How much of a wide chunk runs at once while sessions that decode come and go between its parts. Pure.

Whoever decodes waits at most for the part that runs when its chunk comes. A part is as wide as takes little longer than
what decoding takes anyway: a few rows on a CPU, hundreds on a GPU, which reads the weights longer than it multiplies.
"""

from __future__ import annotations

from math import inf
from typing import Final

STRETCH: Final = 1.5
"""How much longer than a forward of narrow chunks a part may take."""

FIRST_ROWS: Final = 16
LEAST_ROWS: Final = 8
"""Fewer would read all weights for next to nothing, and a prompt would never end."""

MOST_ROWS: Final = 1024
"""No chunk of a prompt is usually wider, so that there is no need to know of more."""

STEP: Final = 1.25
"""By how much the width follows what was measured: one slow forward says little."""

FORGET: Final = 0.8
"""What the earlier forwards of narrow chunks weigh against the next."""


class SliceWidth:
    """The width of the next part, by what forwards have taken so far."""

    def __init__(self) -> None:
        self.rows = FIRST_ROWS
        self._narrow_s = inf

    def end_of_part(self, start: int, rows: int) -> int:
        """Where the part ends that begins at row `start` of `rows`; no part is left over that is less than half one."""
        return rows if rows - start < 1.5 * self.rows else start + self.rows

    def note_narrow(self, seconds: float) -> None:
        """A forward of narrow chunks alone took so long."""
        known = seconds if self._narrow_s == inf else self._narrow_s
        self._narrow_s = FORGET * known + (1 - FORGET) * seconds

    def note_slice(self, rows: int, seconds: float) -> None:
        """A forward with `rows` rows of a wide chunk took so long."""
        if self._narrow_s == inf or rows != self.rows:
            return
        if seconds > STRETCH * self._narrow_s:
            self.rows = max(LEAST_ROWS, int(self.rows / STEP))
        else:
            self.rows = min(MOST_ROWS, int(self.rows * STEP))
