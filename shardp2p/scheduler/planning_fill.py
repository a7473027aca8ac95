"""How many layers each machine of a ring takes, and what the ring costs then. Pure.

For given machines the layers matter through two sums only: the work Σ l·t, and the slowest stage max l·t. So the order
of a ring and its fill separate: a shorter tour is better for every fill, and the fill needs only the tour's length.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

ROUNDING = 1e-9
"""Relative; sums of the same seconds in another order differ by less."""


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

    def __post_init__(self) -> None:
        # What a slowest stage can take: the optimum over fills is found among these by bisection.
        steps: set[float] = set()
        if self.in_flight > 1:
            for capacity, layer_s in zip(self.capacities, self.layer_s, strict=True):
                steps.update(count * layer_s for count in range(1, min(capacity, self.layers) + 1))
        object.__setattr__(self, "bottlenecks", sorted(steps))

    def paced(self, limit_s: float) -> Candidates:
        """The same machines with room for what they compute within `limit_s`, and one chunk in flight."""
        if limit_s == math.inf:
            return replace(self, in_flight=1)
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

    def joining(self, members: Sequence[int], limit_s: float) -> Callable[[int], float]:
        """Tells of any further machine the least work with it, no stage slower than `limit_s`; infinite: no room.

        Takes constant time per machine: what the members compute beyond one layer each is added up beforehand.
        """
        spare, base_s = self.layers - len(members) - 1, 0.0
        sums, before = [0.0], [0]
        for member in members:
            layer_s = self.layer_s[member]
            room = min(self.capacities[member], int(min(limit_s / layer_s, self.layers) + ROUNDING))
            if room < 1 or spare < 0:
                return lambda _: math.inf
            base_s += layer_s
            sums.extend(sums[-1] + count * layer_s for count in range(1, room))
            before.append(len(sums) - 1)

        def work_s(node: int) -> float:
            layer_s = self.layer_s[node]
            room = min(self.capacities[node], int(min(limit_s / layer_s, self.layers) + ROUNDING))
            faster = min(spare, before[bisect_left(members, node)])
            own = min(room - 1, spare - faster)
            others = spare - own
            if own < 0 or others >= len(sums):
                return math.inf
            return base_s + (1 + own) * layer_s + sums[others]

        return work_s

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
