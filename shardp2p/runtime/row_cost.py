"""What a forward costs by its rows, as it was seen. Pure."""

from __future__ import annotations

from typing import Final

FORGET: Final = 0.98
"""What an observation weighs when one more has been made: the last 50 or so decide."""

KNOWN: Final = 3.5
"""So much weight of observations says what is usual."""

MOST_TIMES: Final = 8.0
"""A chunk that took more than so many times what is usual was held up, or is a lie: it counts for so much."""

LEAST_USUAL_S: Final = 1e-3
"""What is taken for usual at least."""


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

    def note_usual(self, rows: int, seconds: float) -> None:
        """The same, where one chunk that was held up is to say little of the next."""
        if self._weight > KNOWN:
            seconds = min(seconds, MOST_TIMES * max(self.seconds(rows), LEAST_USUAL_S))
        self.note(rows, seconds)

    def seconds(self, rows: int) -> float:
        """What a chunk of so many rows would take."""
        return self.base_s + self.row_s * rows
