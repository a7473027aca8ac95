"""From a ring to one that no single change makes better: whom it has, and in which order. Pure.

Deterministic: ties go to the faster machine, and nothing is drawn at random.
"""

from __future__ import annotations

import math
from bisect import insort

import numpy as np
import numpy.typing as npt

from shardp2p.scheduler.planning_fill import ROUNDING, Candidates, Floats
from shardp2p.scheduler.planning_order import shorten

Found = tuple[float, list[int]]
"""Time per chunk, and the tour: the depot first, where there is one."""


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
