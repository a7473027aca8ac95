"""The same machines in a shorter order. Pure."""

from __future__ import annotations

from itertools import pairwise

from shardp2p.scheduler.planning_exact import shortest_order
from shardp2p.scheduler.planning_fill import ROUNDING, Candidates

EXACT_ORDER = 8
"""Machines of a ring up to which its order is found by dynamic programming, in milliseconds."""


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
