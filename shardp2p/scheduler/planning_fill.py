"""How many layers each machine of a ring takes, and what the ring costs then. Pure.

For given machines the layers matter through two sums only: the work Σ l·t, and the slowest stage max l·t. So the order
of a ring and its fill separate: a shorter tour is better for every fill, and the fill needs only the tour's length.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

ROUNDING = 1e-9
"""Relative; sums of the same seconds in another order differ by less."""


Floats = npt.NDArray[np.float64]


class Table:
    """The numbers of candidates as arrays, for what is asked of all of them at once."""

    def __init__(
        self, capacities: Sequence[int], layer_s: Sequence[float], delays: Sequence[Sequence[float]] | Floats
    ) -> None:
        self.rooms = np.array(capacities, dtype=np.int64)
        self.layer_s = np.array(layer_s, dtype=np.float64)
        self.delays = np.asarray(delays, dtype=np.float64)
        self.machines = np.arange(len(self.rooms))


@dataclass(frozen=True)
class Candidates:
    """Machines as dense indices, the fastest first, and the delays between them.

    `capacities` and `layer_s` have one entry per machine, `delays[i][j]` is from i to j. A pinned driver is one more
    index behind the machines, `depot`; a tour begins there.
    """

    layers: int
    in_flight: int
    capacities: Sequence[int]
    layer_s: Sequence[float]
    delays: Sequence[Sequence[float]]
    depot: int | None = None
    bottlenecks: Sequence[float] = field(init=False)
    table: Table = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "table", Table(self.capacities, self.layer_s, self.delays))
        # What a slowest stage can take: the optimum over fills is found among these by bisection.
        steps: set[float] = set()
        if self.in_flight > 1:
            for capacity, layer_s in zip(self.capacities, self.layer_s, strict=True):
                steps.update(count * layer_s for count in range(1, min(capacity, self.layers) + 1))
        object.__setattr__(self, "bottlenecks", sorted(steps))

    def paced(self, limit_s: float) -> Candidates:
        """The same machines with room for what they compute within `limit_s`, and one chunk in flight."""
        rooms = [
            min(capacity, int(min(limit_s / layer_s, self.layers) + ROUNDING))
            for capacity, layer_s in zip(self.capacities, self.layer_s, strict=True)
        ]
        return replace(self, in_flight=1, capacities=rooms)

    def hops_s(self, tour: Sequence[int]) -> float:
        """The delay once around `tour`."""
        delays, at, total = self.delays, tour[-1], 0.0
        for node in tour:
            total += delays[at][node]
            at = node
        return total

    def members(self, tour: Sequence[int]) -> list[int]:
        """The machines of `tour`, the fastest first."""
        return sorted(node for node in tour if node != self.depot)

    def fill(self, members: Sequence[int], limit_s: float = math.inf) -> list[int] | None:
        """Layers per member for the least work where no stage takes longer than `limit_s`; None if they do not fit.

        Every member takes one layer, then the fastest take what they can; moving a layer to a slower one adds work.
        """
        spare = self.layers - len(members)
        counts: list[int] = []
        for member in members:
            room = self.capacities[member]
            if limit_s < math.inf:
                room = min(room, int(limit_s / self.layer_s[member] + ROUNDING))
            extra = min(room - 1, spare)
            if extra < 0:
                return None
            counts.append(1 + extra)
            spare -= extra
        return None if spare else counts

    def best_fill(self, members: Sequence[int], hops_s: float) -> list[int] | None:
        """Layers per member that minimise the time per chunk in a tour of `hops_s`; None if the model does not fit."""
        counts = self.fill(members)
        if counts is None or self.in_flight == 1:
            return counts
        # The work falls as the allowed bottleneck grows: the best is where lap/in_flight meets it, or just before.
        low = bisect_left(
            self.bottlenecks, True, key=lambda limit_s: self._lap_share_s(members, hops_s, limit_s) <= limit_s
        )
        tried = (self.fill(members, self.bottlenecks[at]) for at in (low - 1, low) if 0 <= at < len(self.bottlenecks))
        found = [*(one for one in tried if one is not None), counts]
        return min(found, key=lambda one: self._cost_s(members, one, hops_s))

    def chunk_s(self, members: Sequence[int], hops_s: float, below_s: float = math.inf) -> float:
        """The least time per chunk of these members in a tour of `hops_s`; infinite where it is not below `below_s`."""
        if hops_s >= below_s * self.in_flight:
            return math.inf
        if self.in_flight == 1:
            return self._lap_share_s(members, hops_s, math.inf)
        # Whoever is better has no slower stage than `below_s`, so one fill with that limit settles most questions.
        if self._lap_share_s(members, hops_s, below_s) >= below_s:
            return math.inf
        counts = self.best_fill(members, hops_s)
        return math.inf if counts is None else self._cost_s(members, counts, hops_s)

    def joined_work_s(self, members: Sequence[int], limit_s: float) -> Floats:
        """For each machine [n] the least work with it beside `members`, no stage slower than `limit_s`."""
        table, spare = self.table, self.layers - len(members) - 1
        rooms = table.rooms
        if limit_s < math.inf:
            rooms = np.minimum(rooms, (np.minimum(limit_s / table.layer_s, self.layers) + ROUNDING).astype(np.int64))
        inside = np.array(members, dtype=np.int64)
        extras = rooms[inside] - 1
        if spare < 0 or (len(members) and extras.min() < 0):
            return np.full(len(rooms), math.inf)
        # What the members compute beyond a layer each, the fastest first; a joiner stands between the two of its speed.
        times = table.layer_s[inside]
        sums = np.concatenate(([0.0], np.cumsum(np.repeat(times, extras))))
        before = np.concatenate(([0], np.cumsum(extras)))
        faster = np.minimum(before[np.searchsorted(inside, table.machines)], spare)
        own = np.minimum(rooms - 1, spare - faster)
        others = spare - own
        work_s = times.sum() + (1 + own) * table.layer_s + sums[np.minimum(others, len(sums) - 1)]
        return np.where((own < 0) | (others >= len(sums)), math.inf, work_s)

    def _cost_s(self, members: Sequence[int], counts: Sequence[int], hops_s: float) -> float:
        stages_s = [self.layer_s[member] * count for member, count in zip(members, counts, strict=True)]
        return max(*stages_s, (hops_s + sum(stages_s)) / self.in_flight)

    def _lap_share_s(self, members: Sequence[int], hops_s: float, limit_s: float) -> float:
        # Written out beside fill(): a search spends its time here.
        spare, total, is_limited = self.layers - len(members), hops_s, limit_s < math.inf
        capacities, times = self.capacities, self.layer_s
        for member in members:
            extra, layer_s = capacities[member] - 1, times[member]
            if is_limited:
                extra = min(extra, int(limit_s / layer_s + ROUNDING) - 1)
            if extra > spare:
                extra = spare
            if extra < 0:
                return math.inf
            total += (1 + extra) * layer_s
            spare -= extra
        return math.inf if spare else total / self.in_flight
