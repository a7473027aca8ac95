"""A bound below every ring, for swarms too large to look at all rings: an integer program whose answer is proven.

scipy's HiGHS solves it; it is needed by this comparison alone.

The program. Binary x[i,j]: the ring goes from i to j; y[i]: i is in the ring; l[i]: its layers. Minimise
Σ d·x + Σ t·l with x leaving and entering i as often as y[i], y[i] <= l[i] <= c[i]·y[i], Σ l = L. Every ring of two or
more machines is a solution (a ring of one is priced apart), so its optimum is a lower bound; so is that of a program
with fewer rows, that of its linear relaxation, and the dual bound of a search that was stopped. Tours that fall apart
are cut off where they appear, by rows that hold for every ring (see _cut).

Left out beforehand is an arc that no ring cheaper than the known one can use: the arc, the shortest way back over any
machines, and the least work with both its ends add up to that ring's cost. The bound is then the lesser of the known
cost and the program's.

For a full pipeline: a ring of time z per chunk has no stage slower than z, so its lap is at least the least lap B(z)
under capacities floor(z / t), and B falls as z grows. So no ring is faster than min(z, B(z) / in_flight), for any z.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shardp2p.errors import ConfigError
from shardp2p.scheduler.planning_fill import ROUNDING, Candidates

Array = npt.NDArray[np.float64]

ROUNDS = 60
"""Of cutting off tours that fall apart, in all."""

PROGRAM_S = 20.0
"""Of one integer program; its dual bound counts when it is stopped."""

CLOSE = 1.005
"""A known ring within this factor of the bound is not examined further."""

REFINEMENTS = 5
"""Values of z that are tried for a pipeline."""


def lower_bound_s(candidates: Candidates, known_s: float) -> float:
    """A time per chunk that no ring of `candidates` goes below; at most `known_s`, the time of a ring at hand.

    Raises: ConfigError when scipy is not installed.
    """
    in_flight = candidates.in_flight
    if in_flight == 1:
        return _least_lap_s(candidates, known_s)
    bound_s, low_s, high_s = 0.0, 0.0, known_s
    pace_s = known_s * (1 - ROUNDING)
    for _ in range(REFINEMENTS):
        rooms = candidates.paced(pace_s).capacities
        share_s = _least_lap_s(_only(candidates, rooms), pace_s * in_flight) / in_flight
        bound_s = max(bound_s, min(pace_s, share_s))
        low_s, high_s = (pace_s, high_s) if share_s >= pace_s * (1 - ROUNDING) else (low_s, pace_s)
        if known_s <= bound_s * CLOSE or high_s <= bound_s * CLOSE:
            break
        pace_s = math.sqrt(max(low_s, bound_s) * high_s)
    return bound_s


def _only(candidates: Candidates, rooms: Sequence[int]) -> Candidates:
    """The machines that have room under these capacities; one chunk in flight."""
    kept = [node for node, room in enumerate(rooms) if room > 0]
    ends = kept if candidates.depot is None else [*kept, candidates.depot]
    return Candidates(
        layers=candidates.layers,
        in_flight=1,
        capacities=[rooms[node] for node in kept],
        layer_s=[candidates.layer_s[node] for node in kept],
        delays=[[candidates.delays[i][j] for j in ends] for i in ends],
        depot=None if candidates.depot is None else len(kept),
    )


def _least_lap_s(candidates: Candidates, known_s: float) -> float:
    """A lap that no ring goes below; at most `known_s`."""
    if sum(candidates.capacities) < candidates.layers:
        return known_s
    if candidates.depot is None:
        known_s = min(
            known_s,
            *(
                layer_s * candidates.layers
                for capacity, layer_s in zip(candidates.capacities, candidates.layer_s, strict=True)
                if capacity >= candidates.layers
            ),
            math.inf,
        )
    arcs = _useful_arcs(candidates, known_s)
    if not arcs:
        return known_s
    return min(known_s, _Program(candidates, arcs).bound_s(known_s))


def _useful_arcs(candidates: Candidates, known_s: float) -> list[tuple[int, int]]:
    delays = np.array(candidates.delays, dtype=np.float64)
    np.fill_diagonal(delays, 0.0)
    ways = delays.copy()
    for middle in range(len(ways)):
        ways = np.minimum(ways, ways[:, middle, None] + ways[None, middle, :])
    work = [_least_work_s(candidates, node) for node in range(len(candidates.capacities))]
    if candidates.depot is None:
        tours = delays + ways.T
    else:
        work.append(min(work))
        tours = ways[candidates.depot][:, None] + delays + ways[:, candidates.depot][None, :]
    least = np.array(work)
    useful = tours + np.maximum(least[:, None], least[None, :]) < known_s * (1 - ROUNDING)
    np.fill_diagonal(useful, False)
    return [(int(i), int(j)) for i, j in np.argwhere(useful)]


def _least_work_s(candidates: Candidates, node: int) -> float:
    """The least of all fills that give `node` a layer, whatever the number of stages."""
    missing, total_s = candidates.layers - 1, candidates.layer_s[node]
    for other, (capacity, layer_s) in enumerate(zip(candidates.capacities, candidates.layer_s, strict=True)):
        count = min(capacity - (other == node), missing)
        total_s += count * layer_s
        missing -= count
    return total_s


@dataclass(frozen=True)
class _Row:
    columns: tuple[int, ...]
    factors: tuple[float, ...]
    low: float
    high: float


class _Program:
    """The integer program over some arcs. Columns: the arcs, then y of every node, then l of every machine."""

    def __init__(self, candidates: Candidates, arcs: Sequence[tuple[int, int]]) -> None:
        self._candidates, self._arcs = candidates, list(arcs)
        self._machines = len(candidates.capacities)
        self._nodes = len(candidates.delays)
        costs = [candidates.delays[i][j] for i, j in self._arcs]
        self._costs = np.array([*costs, *([0.0] * self._nodes), *candidates.layer_s])
        self._lower, self._upper = np.zeros(len(self._costs)), np.ones(len(self._costs))
        self._upper[len(arcs) + self._nodes :] = candidates.capacities
        if candidates.depot is not None:
            self._lower[self._y(candidates.depot)] = 1.0
        self._rows = list(self._first_rows())

    def _y(self, node: int) -> int:
        return len(self._arcs) + node

    def _l(self, machine: int) -> int:
        return len(self._arcs) + self._nodes + machine

    def _first_rows(self) -> Iterator[_Row]:
        candidates, machines = self._candidates, range(self._machines)
        leaving: list[list[int]] = [[] for _ in range(self._nodes)]
        entering: list[list[int]] = [[] for _ in range(self._nodes)]
        for column, (i, j) in enumerate(self._arcs):
            leaving[i].append(column)
            entering[j].append(column)
        for node in range(self._nodes):
            for columns in (leaving[node], entering[node]):
                yield _Row((*columns, self._y(node)), (*[1.0] * len(columns), -1.0), 0.0, 0.0)
        for machine in machines:
            yield _Row((self._l(machine), self._y(machine)), (1.0, -1.0), 0.0, math.inf)
            yield _Row((self._l(machine), self._y(machine)), (1.0, -candidates.capacities[machine]), -math.inf, 0.0)
        layers = float(candidates.layers)
        yield _Row(tuple(self._l(machine) for machine in machines), (1.0,) * self._machines, layers, layers)
        rooms = tuple(float(capacity) for capacity in candidates.capacities)
        yield _Row(tuple(self._y(machine) for machine in machines), rooms, layers, math.inf)

    def bound_s(self, known_s: float) -> float:
        """A lower bound on every ring of these arcs that costs less than `known_s`."""
        bound_s, is_integer = 0.0, False
        for _ in range(ROUNDS):
            value_s, solution, reduced = self._solve(is_integer)
            bound_s = max(bound_s, value_s)
            if bound_s * CLOSE >= known_s or solution is None:
                break
            if reduced is not None:
                # An arc whose reduced cost closes the gap is in no better ring.
                self._upper[: len(self._arcs)][value_s + reduced[: len(self._arcs)] > known_s] = 0.0
            cuts = list(self._cuts(solution))
            self._rows.extend(cuts)
            if not cuts:
                if is_integer:
                    break
                is_integer = True
        return bound_s

    def _solve(self, is_integer: bool) -> tuple[float, Array | None, Array | None]:
        """The bound (infinite: no solution), a solution if there is one, and a linear program's reduced costs."""
        try:
            from scipy import optimize, sparse  # type: ignore[import-untyped]
        except ImportError:
            raise ConfigError("scipy is not installed; the comparison needs it: pip install 'shardp2p[dev]'") from None
        sizes = [len(row.columns) for row in self._rows]
        matrix = sparse.csr_array(
            (
                np.concatenate([row.factors for row in self._rows]),
                np.concatenate([row.columns for row in self._rows]),
                np.concatenate([[0], np.cumsum(sizes)]),
            ),
            shape=(len(self._rows), len(self._costs)),
        )
        low, high = np.array([row.low for row in self._rows]), np.array([row.high for row in self._rows])
        if is_integer:
            integrality = np.ones(len(self._costs))
            integrality[self._l(0) :] = 0
            found: Any = optimize.milp(
                self._costs,
                integrality=integrality,
                bounds=optimize.Bounds(self._lower, self._upper),
                constraints=optimize.LinearConstraint(matrix, low, high),
                options={"time_limit": PROGRAM_S, "mip_rel_gap": 1e-4},
            )
            if found.status == 2:
                return math.inf, None, None
            bound_s = found.mip_dual_bound if found.mip_dual_bound is not None else 0.0
            return float(bound_s), found.x if found.status == 0 else None, None
        equal = low == high
        below, above = ~equal & (high < math.inf), ~equal & (low > -math.inf)
        found = optimize.linprog(
            self._costs,
            A_ub=sparse.vstack([matrix[below], -matrix[above]]),
            b_ub=np.concatenate([high[below], -low[above]]),
            A_eq=matrix[equal],
            b_eq=high[equal],
            bounds=np.column_stack([self._lower, self._upper]),
            method="highs",
        )
        if found.status == 2:
            return math.inf, None, None
        if found.status != 0:
            return 0.0, None, None
        return float(found.fun), found.x, found.lower.marginals

    def _cuts(self, solution: Array) -> Iterator[_Row]:
        """Rows that the solution breaks: found in the components of its arcs, at several least values of an arc."""
        seen: set[frozenset[int]] = set()
        for least in (1e-6, 0.1, 0.25, 0.4, 0.6, 0.85):
            for component in self._components(solution, least):
                if component in seen or len(component) < 2:
                    continue
                seen.add(component)
                row = self._cut(component, solution)
                if row is not None:
                    yield row

    def _components(self, solution: Array, least: float) -> list[frozenset[int]]:
        root = list(range(self._nodes))

        def find(node: int) -> int:
            while root[node] != node:
                root[node] = root[root[node]]
                node = root[node]
            return node

        for (i, j), value in zip(self._arcs, solution, strict=False):
            if value > least:
                root[find(i)] = find(j)
        groups: dict[int, set[int]] = {}
        for node in range(self._nodes):
            groups.setdefault(find(node), set()).add(node)
        return [frozenset(group) for group in groups.values()]

    def _cut(self, inside: frozenset[int], solution: Array) -> _Row | None:
        """The row that a ring obeys and `solution` does not, for a set of nodes; None if it obeys.

        A ring that meets the set and something beyond it leaves the set. It meets something beyond when the depot is
        there, or when the set has not the room for the model; else where y says so.
        """
        candidates = self._candidates
        leaving = tuple(column for column, (i, j) in enumerate(self._arcs) if i in inside and j not in inside)
        left = sum(solution[column] for column in leaving)
        machines = [node for node in inside if node != candidates.depot]
        others = [node for node in range(self._nodes) if node not in inside]
        if not machines or not others:
            return None
        met = max(inside, key=lambda node: solution[self._y(node)])
        room = sum(candidates.capacities[node] for node in machines)
        if room < candidates.layers or candidates.depot in others:
            if left < solution[self._y(met)] - 1e-6:
                return _Row((*leaving, self._y(met)), (*[1.0] * len(leaving), -1.0), 0.0, math.inf)
            return None
        beyond = max(others, key=lambda node: solution[self._y(node)])
        if left < solution[self._y(met)] + solution[self._y(beyond)] - 1 - 1e-6:
            columns = (*leaving, self._y(met), self._y(beyond))
            return _Row(columns, (*[1.0] * len(leaving), -1.0, -1.0), -1.0, math.inf)
        return None
