"""When another size of the swarm is worth a record of our own. Pure.

All peers see the swarm pass a step of `pace.lifetime_s` at about the same moment. What they told before stays true of
them, only their pace is no longer the best one, so each draws when it says so, and the records do not come as a burst.
"""

from __future__ import annotations

from typing import Final

from shardp2p.swarm.chance import Chance
from shardp2p.swarm.pace import minor_change_s

YOUNG_S: Final = 10.0
"""A newcomer hears within this time how large the swarm is that it came to."""
SIZE_S: Final = 1.5
"""How long the record of a newcomer stands although the swarm is of another size: its next change is on its way."""


class Resizing:
    """One peer's. Tell it of every record, and ask it at every tick."""

    def __init__(self, rng: Chance) -> None:
        self._rng = rng
        self._young_until: float | None = None
        self._recorded_at = 0.0
        self._due_at: float | None = None

    def recorded(self, now: float) -> None:
        """There is a new record, which tells the lifetime that the size needs."""
        if self._young_until is None:
            self._young_until = now + YOUNG_S
        self._recorded_at = now
        self._due_at = None

    def is_due(self, now: float, size: int, *, is_off: bool) -> bool:
        """Whether to make a record for the size alone, if the lifetime in ours `is_off` from what it needs."""
        if not is_off:
            self._due_at = None
            return False
        if self._young_until is not None and now < self._young_until:
            return now >= self._recorded_at + SIZE_S
        if self._due_at is None:
            self._due_at = now + self._rng.random() * minor_change_s(size)
        return now >= self._due_at
