"""Good rings among some tens of candidates: grown from every machine, then improved by local search. Pure.

Deterministic: ties go to the faster machine, and nothing is drawn at random.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from shardp2p.scheduler.planning_exact import shortest_order
from shardp2p.scheduler.planning_fill import ROUNDING, Candidates, Floats
from shardp2p.scheduler.planning_grow import grow

Found = tuple[float, list[int]]
"""Time per chunk, and the tour: the depot first, where there is one."""

EXACT_ORDER = 8
"""Machines of a ring up to which its order is found by dynamic programming, in milliseconds."""

IMPROVED = 6
"""Of the grown rings, how many are improved: the best ones differ little after that."""

PACES, PACES_OF_MANY = 9, 4
"""Limits on the slowest stage that are tried for a full pipeline, if thoroughly and if not."""

PACE_STEP = 1.004
"""The factor between them at which to stop."""

KICKS = 120
"""Rings grown anew from parts of a good one: what they find still is rare after that."""

KICKED_STAGES = 16
"""Stages of a ring from which on it gets fewer kicks: improving it takes time in their square."""


def search(candidates: Candidates, starts: Sequence[int], *, thorough: bool = True) -> Found | None:
    """The best ring found from rings grown at each of `starts`; None when none of them holds the model.

    For a full pipeline, the shortest laps under a falling limit on the slowest stage: a lap has a slope to follow where
    the slower of two things is flat. The limit is halved in between (in logarithms) until it meets the lap's share.
    """
    if candidates.in_flight == 1:
        found = _search_lap(candidates, starts, IMPROVED if thorough else 1)
        return shake(candidates, found) if thorough and found is not None else found
    low_s, high_s, pace_s = least_pace_s(candidates), math.inf, math.inf
    best: Found | None = None
    for _ in range(PACES if thorough else PACES_OF_MANY):
        found = _search_lap(candidates.paced(pace_s), starts, IMPROVED if thorough else 1)
        if found is None:
            low_s = pace_s
        else:
            chunk_s = _chunk_s(candidates, found[1])
            if best is None or chunk_s < best[0]:
                best = chunk_s, found[1]
            low_s, high_s = (low_s, min(chunk_s, high_s)) if chunk_s <= pace_s else (pace_s, min(chunk_s, high_s))
        if not low_s * PACE_STEP < high_s < math.inf:
            break
        pace_s = math.sqrt(low_s * high_s)
    if best is None:
        return None
    best = improve(candidates, best)
    return shake(candidates, best) if thorough else best


def _search_lap(candidates: Candidates, starts: Sequence[int], count: int) -> Found | None:
    """The best of the `count` best rings grown at `starts`, each improved."""
    grown: dict[tuple[int, ...], Found] = {}
    for start in starts:
        tour = grow(candidates, [start] if candidates.depot is None else [candidates.depot, start])
        members = () if tour is None else tuple(candidates.members(tour))
        if tour is not None and members not in grown:
            chunk_s = candidates.chunk_s(members, candidates.hops_s(tour))
            if chunk_s < math.inf:
                grown[members] = chunk_s, tour
    best_first = sorted(grown.values(), key=lambda found: found[0])
    improved = [improve(candidates, found) for found in best_first[:count]]
    return min(improved, key=lambda found: found[0], default=None)


def least_pace_s(candidates: Candidates) -> float:
    """The least limit on the slowest stage under which the model fits all machines together."""
    low, high = 0.0, max(candidates.layer_s) * candidates.layers
    for _ in range(20):
        middle = (low + high) / 2
        if sum(candidates.paced(middle).capacities) < candidates.layers:
            low = middle
        else:
            high = middle
    return high


def improve(candidates: Candidates, found: Found) -> Found:
    """A ring from which no single exchange, addition, omission or turn of a section leads to a better one."""
    best_s, tour = found
    while True:
        tour = shorten(candidates, tour)
        members = candidates.members(tour)
        best_s = min(best_s, candidates.chunk_s(members, candidates.hops_s(tour)))
        better = _best_neighbour(candidates, (best_s, tour))
        if better is None:
            return best_s, tour
        best_s, tour = better


def _best_neighbour(candidates: Candidates, found: Found) -> Found | None:
    """The best ring that one machine less, one more, or one in the place of another gives; None if none is better."""
    best_s = found[0] * (1 - ROUNDING)
    best: tuple[int | None, int | None, int] | None = None
    in_flight, hops_s = candidates.in_flight, candidates.hops_s(found[1])
    members, places = candidates.members(found[1]), _Places(candidates, found[1])
    for leaver in (None, *members):
        rest = [node for node in members if node != leaver]
        saved_s, added_s, follows = places.without(leaver)
        if leaver is not None and rest:
            chunk_s = candidates.chunk_s(rest, hops_s - saved_s, best_s)
            if chunk_s < best_s:
                best_s, best = chunk_s, (leaver, None, -1)
        limit_s = best_s if in_flight > 1 else math.inf
        shares_s = (hops_s - saved_s + added_s + candidates.joined_work_s(rest, limit_s)) / in_flight
        for node in np.flatnonzero(shares_s < best_s).tolist() if in_flight > 1 else [int(shares_s.argmin())]:
            chunk_s = float(shares_s[node])
            if in_flight > 1:
                joined = rest.copy()
                insort(joined, node)
                chunk_s = candidates.chunk_s(joined, hops_s - saved_s + float(added_s[node]), best_s)
            if chunk_s < best_s:
                best_s, best = chunk_s, (leaver, node, int(follows[node]))
    return None if best is None else (best_s, _changed(found[1], *best))


class _Places:
    """Where each machine would lengthen a tour least, also when one of the tour's own has left."""

    def __init__(self, candidates: Candidates, tour: list[int]) -> None:
        self._delays, self._tour = candidates.table.delays, tour
        self._count = len(candidates.capacities)
        self._inside = [node for node in tour if node != candidates.depot]
        nodes = np.array(tour)
        following = np.roll(nodes, -1)
        # [edge, machine]; of edges that go with a leaver the row is masked.
        self._added = self._detours(nodes, following)

    def without(self, leaver: int | None) -> tuple[float, Floats, npt.NDArray[np.int64]]:
        """The delay that goes with `leaver`; then for each machine [n] what it adds at best, and whom it follows there.

        Machines of the tour never come (infinite).
        """
        tour, added, saved_s = self._tour, self._added, 0.0
        follows = np.array(tour)
        if leaver is not None:
            at = tour.index(leaver)
            before, after = tour[at - 1], tour[(at + 1) % len(tour)]
            if before == leaver:
                return 0.0, self._barred(np.zeros(self._count)), np.full(self._count, -1)
            merged = self._detours(np.array([before]), np.array([after]))
            added = np.concatenate((np.delete(added, [at - 1, at], axis=0), merged))
            follows = np.append(np.delete(follows, [at - 1, at]), before)
            delays = self._delays
            saved_s = float(delays[before, leaver] + delays[leaver, after] - delays[before, after])
        best = added.argmin(axis=0)
        return saved_s, self._barred(added[best, np.arange(self._count)]), follows[best]

    def _detours(self, nodes: npt.NDArray[np.int64], following: npt.NDArray[np.int64]) -> Floats:
        delays, count = self._delays, self._count
        return delays[nodes, :count] + delays[:count, following].T - delays[nodes, following][:, None]

    def _barred(self, added_s: Floats) -> Floats:
        added_s[self._inside] = math.inf
        return added_s


def _changed(tour: list[int], leaver: int | None, node: int | None, follows: int) -> list[int]:
    rest = [other for other in tour if other != leaver]
    if node is not None:
        rest.insert(rest.index(follows) + 1 if rest else 0, node)
    return rest


def shorten(candidates: Candidates, tour: list[int]) -> list[int]:
    """The same machines in a shorter order: the shortest for few, else one that no turned or moved section shortens."""
    members = candidates.members(tour)
    if len(members) <= EXACT_ORDER:
        return list(shortest_order(candidates, members)) if len(members) > 2 else tour
    while (shorter := _moved(candidates, tour) or _turned(candidates, tour)) is not None:
        tour = shorter
    return tour


def _moved(candidates: Candidates, tour: list[int]) -> list[int] | None:
    """`tour` with the section of up to three moved, either way round, where that shortens it most."""
    delays, best_s, best = candidates.delays, -ROUNDING * candidates.hops_s(tour), None
    for length in (1, 2, 3):
        for start in range(1, len(tour) - length + 1):
            section, rest = tour[start : start + length], tour[:start] + tour[start + length :]
            first, last, before, after = section[0], section[-1], tour[start - 1], rest[start % len(rest)]
            saved_s = delays[before][first] + delays[last][after] - delays[before][after]
            turn_s = sum(delays[b][a] - delays[a][b] for a, b in pairwise(section))
            for at, (left, right) in enumerate(pairwise((*rest, rest[0])), 1):
                row, edge_s = delays[left], delays[left][right]
                straight_s = row[first] + delays[last][right] - edge_s - saved_s
                turned_s = row[last] + delays[first][right] - edge_s - saved_s + turn_s
                if min(straight_s, turned_s) < best_s:
                    best_s = min(straight_s, turned_s)
                    best = rest[:at] + (section if straight_s <= turned_s else section[::-1]) + rest[at:]
    return best


def _turned(candidates: Candidates, tour: list[int]) -> list[int] | None:
    """`tour` with the section turned where that shortens it most."""
    delays, best_s, best = candidates.delays, -ROUNDING * candidates.hops_s(tour), None
    for start in range(1, len(tour)):
        turn_s, before = 0.0, tour[start - 1]
        for stop in range(start + 1, len(tour)):
            one, other, after = tour[stop - 1], tour[stop], tour[(stop + 1) % len(tour)]
            turn_s += delays[other][one] - delays[one][other]
            ends_s = delays[before][other] + delays[tour[start]][after]
            added_s = turn_s + ends_s - delays[before][tour[start]] - delays[other][after]
            if added_s < best_s:
                best_s, best = added_s, tour[:start] + tour[start : stop + 1][::-1] + tour[stop + 1 :]
    return best


def shake(candidates: Candidates, found: Found, kicks: int = KICKS) -> Found:
    """`found`, or a better ring: `kicks` times at most a section is taken out, and the ring grown anew without it.

    In a full pipeline what is improved then is the lap, under the best time per chunk as the limit of a stage.
    """
    best, since = found, 0
    kicks = max(1, min(kicks, KICKS * KICKED_STAGES**2 // len(found[1]) ** 2))
    while kicks > 0 and since < len(sections := _sections(candidates, best[1])):
        start, length = sections[since]
        kicks, since = kicks - 1, since + 1
        turned = best[1] if candidates.depot is not None else best[1][start - 1 :] + best[1][: start - 1]
        start = start if candidates.depot is not None else 1
        cut = turned[start : start + length]
        paced = candidates.paced(best[0]) if candidates.in_flight > 1 else candidates
        regrown = grow(paced, [node for node in turned if node not in cut], banned=cut)
        if regrown is None:
            continue
        _, tour = improve(paced, (_chunk_s(paced, regrown), regrown))
        chunk_s = _chunk_s(candidates, tour)
        if chunk_s < best[0] * (1 - ROUNDING):
            best, since = (chunk_s, tour), 0
    return best


def _sections(candidates: Candidates, tour: list[int]) -> list[tuple[int, int]]:
    """Where to cut and how much: single machines, then up to half of the tour, of which something always stays."""
    size, first = len(tour), 0 if candidates.depot is None else 1
    lengths = range(1, min(max(2, size // 2 + 1), size))
    return [(start, length) for length in lengths for start in range(1, size + 1 - first)]


def _chunk_s(candidates: Candidates, tour: list[int]) -> float:
    return candidates.chunk_s(candidates.members(tour), candidates.hops_s(tour))
