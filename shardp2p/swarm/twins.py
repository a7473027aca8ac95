"""Whether another process speaks under our identity: a key that was copied to a second machine. Pure.

One record that we did not make is what an earlier run of ours has left behind. We go beyond it, and then a dead run is
silent; a live one goes beyond ours in turn.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

TWIN_RECORDS: Final = 3
"""Records that went beyond ours within TWIN_S; an earlier run leaves one, or two where views differ."""
TWIN_S: Final = 60.0
TOLD_S: Final = 600.0
"""How often it is told while it goes on."""


@dataclass(frozen=True, slots=True)
class TwinSeen:
    """Another process has our identity, and whether it is the older one: then it is for us to end."""

    is_older: bool


class Twins:
    """Counts the records of our own peer id that others made."""

    def __init__(self) -> None:
        self._heard: deque[float] = deque(maxlen=TWIN_RECORDS)
        self._told_at = float("-inf")

    def hear(self, their_start_s: float, our_start_s: float, now: float) -> list[TwinSeen]:
        """A record went beyond ours, of a run that began at `their_start_s` (Unix time; ours at `our_start_s`).

        Both compare the same two numbers, so one of two ends, and both where they are equal.
        """
        self._heard.append(now)
        if len(self._heard) < TWIN_RECORDS or now - self._heard[0] > TWIN_S or now - self._told_at < TOLD_S:
            return []
        self._told_at = now
        return [TwinSeen(is_older=their_start_s <= our_start_s)]
