"""How much of a wide chunk runs at once while sessions that decode come and go between its parts. Pure.

Who decodes comes back about once a lap. A part is as wide as fits into the time until then, so that on a long way round
the ring a prompt loses little and nobody waits. Where too little fits, the device waits for who is about to come, and
the part runs right after: it is then longest until somebody is back. A part is put off once at most: prompts end too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Final

from shardp2p.runtime.row_cost import RowCost

LEAST_ROWS: Final = 16
"""Fewer would read all weights for next to nothing, and a prompt would never end."""

MOST_STRETCH: Final = 2.0
"""How many times as long as one row a part may take: whoever comes earlier than foreseen waits for it to end, at every
stage of the ring."""

LATE: Final = 1.25
"""Who has been away for so many times its usual pause is not waited for any more."""


@dataclass(frozen=True, slots=True)
class Step:
    """What to do with a wide chunk: run that many rows now; or 0: let others go first, for whom it may be waited."""

    rows: int
    wait_s: float = 0.0


class Slicing:
    """The choice of parts, by what forwards have taken so far."""

    def __init__(self) -> None:
        self._cost = RowCost()

    def note(self, rows: int, seconds: float) -> None:
        """A forward of so many rows, of all its sessions together, took so long."""
        if rows:
            self._cost.note(rows, seconds)

    def step(self, left: int, room_s: float, *, others_wait: bool, was_put_off: bool) -> Step:
        """What to do with a chunk of which `left` rows are to run.

        `room_s`: how long until somebody else will want the device, inf when that is not known. `was_put_off`: whether
        others went before since its last part; then it runs.
        """
        if left < 1.5 * LEAST_ROWS:
            return Step(left)
        if not was_put_off:
            if others_wait:
                return Step(0)
            least_s = self._cost.seconds(min(left, LEAST_ROWS))
            if room_s < least_s:
                return Step(0, min(LATE * max(room_s, 0.0) + least_s / 4, least_s))
        rows = max(LEAST_ROWS, self._rows_within(room_s))
        # No part is left over that is less than half of one.
        return Step(left if left < 1.5 * rows else rows)

    def _rows_within(self, seconds: float) -> int:
        """How many rows fit, in the bounds of what a mistake may cost."""
        if not self._cost.row_s:
            return LEAST_ROWS
        most_s = MOST_STRETCH * self._cost.seconds(1)
        return int((min(seconds, most_s) - self._cost.base_s) / self._cost.row_s)


def room_s(now: float, awaited: Iterable[tuple[float, float]]) -> float:
    """How long until the first is back of those that left at a time and usually stay away for so long."""
    rooms = [left_at + pause_s - now for left_at, pause_s in awaited if now < left_at + LATE * pause_s < inf]
    return min(rooms, default=inf)
