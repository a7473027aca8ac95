"""Waiting in a thread, to less than a millisecond: an event loop's timeouts are whole ones."""

from __future__ import annotations

import time
from typing import Final

LATE_AT_MOST_S: Final = 0.002
"""Whoever wakes later than this was kept from running, which says nothing of the next time."""

WEIGHT: Final = 0.05


def wait_s(seconds: float) -> None:
    """Return after so long; at once where that is not above 0. For threads whose only work it is."""
    if seconds > 0:
        time.sleep(seconds)  # noqa: TID251


class Lateness:
    """How late what follows a wait usually happens, learned from each time: waits that much shorter end on time."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def note(self, late_s: float) -> None:
        """It happened so long after it was due; less than 0: before."""
        learned = self.seconds + WEIGHT * max(-LATE_AT_MOST_S, min(late_s, LATE_AT_MOST_S))
        self.seconds = max(0.0, min(learned, LATE_AT_MOST_S))
