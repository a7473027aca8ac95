"""The bandwidth that a relay lends, for all circuits together. Pure.

Each direction of a circuit asks for one small piece at a time, and pieces pass in the order of asking: so those that
want much take turns, and who wants little waits for one piece of each of the others at most.
"""

from __future__ import annotations

from typing import Final

PIECE_BYTES: Final = 16 * 1024
BURST_S: Final = 0.05
"""How much unused time may be caught up: what comes in bursts is not slowed below the rate."""


class Allowance:
    """Says when bytes may pass so that no more than `bytes_per_s` do."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0

    def take(self, count: int, now: float) -> float:
        """When `count` bytes may pass; they count as passed."""
        start = max(self._free_at, now - BURST_S)
        self._free_at = start + count / self._bytes_per_s
        return max(start, now)
