"""The best ring by dynamic programming over subsets (Held and Karp, 1962), for a dozen machines at most. Pure.

Exact for both objectives: for a given subset the cost grows with the length of the tour alone (planning_fill.py), so
the shortest tour through each subset is enough, and each subset is filled once.
"""

from __future__ import annotations

import math

from shardp2p.scheduler.planning_fill import Candidates

Tour = tuple[int, ...]


def best_tour(candidates: Candidates) -> tuple[float, Tour] | None:
    """Time per chunk and tour of the best ring; None when the model fits no subset. Takes 2^n · n² steps."""
    best_s, best = math.inf, 0
    for mask, hops_s in enumerate(_shortest(candidates)):
        if mask:
            members = [node for node in range(len(candidates.capacities)) if mask >> node & 1]
            chunk_s = candidates.chunk_s(members, hops_s, best_s)
            if chunk_s < best_s:
                best_s, best = chunk_s, mask
    if not best:
        return None
    return best_s, shortest_order(candidates, [node for node in range(len(candidates.capacities)) if best >> node & 1])


def _shortest(candidates: Candidates) -> list[float]:
    """The shortest tour through each subset, by bit mask. A tour starts at the depot, else at its lowest member."""
    tours = [math.inf] * (1 << len(candidates.capacities))
    for mask, ends in enumerate(_paths(candidates)):
        start = _start(candidates, mask)
        for last, path_s in ends.items():
            tours[mask] = min(tours[mask], path_s + candidates.delays[last][start])
    return tours


def _start(candidates: Candidates, mask: int) -> int:
    return (mask & -mask).bit_length() - 1 if candidates.depot is None else candidates.depot


def _paths(candidates: Candidates) -> list[dict[int, float]]:
    """For each subset and last member, the shortest path from the subset's start through all of it."""
    count, delays = len(candidates.capacities), candidates.delays
    paths: list[dict[int, float]] = [{} for _ in range(1 << count)]
    for node in range(count):
        paths[1 << node][node] = 0.0 if candidates.depot is None else delays[candidates.depot][node]
    for mask in range(1, 1 << count):
        # Without a depot a path keeps the lowest member as its start: only higher ones are appended.
        lowest = _start(candidates, mask) + 1 if candidates.depot is None else 0
        open_nodes = [node for node in range(lowest, count) if not mask >> node & 1]
        for last, path_s in paths[mask].items():
            row = delays[last]
            for node in open_nodes:
                longer = paths[mask | 1 << node]
                reached_s = path_s + row[node]
                if reached_s < longer.get(node, math.inf):
                    longer[node] = reached_s
    return paths


def shortest_order(candidates: Candidates, members: list[int]) -> Tour:
    """A shortest tour through all of `members` (the depot first, where there is one). Takes 2^n · n² steps."""
    delays = candidates.delays
    start, *others = members if candidates.depot is None else [candidates.depot, *members]
    count = len(others)
    if not count:
        return (start,)
    table: list[dict[int, tuple[float, int]]] = [{} for _ in range(1 << count)]
    for at, node in enumerate(others):
        table[1 << at][at] = (delays[start][node], -1)
    for mask in range(1, 1 << count):
        open_ats = [at for at in range(count) if not mask >> at & 1]
        for last, (path_s, _) in table[mask].items():
            row = delays[others[last]]
            for at in open_ats:
                longer = table[mask | 1 << at]
                reached_s = path_s + row[others[at]]
                if at not in longer or reached_s < longer[at][0]:
                    longer[at] = (reached_s, last)
    mask = (1 << count) - 1
    last = min(table[mask], key=lambda at: table[mask][at][0] + delays[others[at]][start])
    backwards = []
    while last >= 0:
        backwards.append(others[last])
        mask, last = mask & ~(1 << last), table[mask][last][1]
    return (start, *reversed(backwards))
