"""Good rings among some tens of candidates: grown from every machine, then improved by local search. Pure.

Deterministic: ties go to the faster machine, and nothing is drawn at random.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterator, Sequence
from itertools import pairwise

from shardp2p.scheduler.planning_exact import shortest_order
from shardp2p.scheduler.planning_fill import ROUNDING, Candidates
from shardp2p.scheduler.planning_grow import grow

Found = tuple[float, list[int]]
"""Time per chunk, and the tour: the depot first, where there is one."""

EXACT_ORDER = 8
"""Machines of a ring up to which its order is found by dynamic programming, in milliseconds."""

IMPROVED = 6
"""Of the grown rings, how many are improved: the best ones differ little after that."""

KICK_STEPS = 400_000
"""Moves looked at while a good ring is shaken, so that long rings among many candidates take no longer than others."""


def search(candidates: Candidates, starts: Sequence[int], *, thorough: bool = True) -> Found | None:
    """The best ring found from rings grown at each of `starts`; None when none of them holds the model."""
    grown: dict[tuple[int, ...], Found] = {}
    for start in starts:
        for limit_s in limits(candidates):
            tour = grow(candidates, [start] if candidates.depot is None else [candidates.depot, start], limit_s)
            if tour is not None:
                members = candidates.members(tour)
                if tuple(members) not in grown:
                    grown[tuple(members)] = (candidates.chunk_s(members, candidates.hops_s(tour)), tour)
    best_first = sorted(grown.values(), key=lambda found: found[0])
    improved = [improve(candidates, found) for found in best_first[: IMPROVED if thorough else 1]]
    if not improved:
        return None
    best = min(improved, key=lambda found: found[0])
    return shake(candidates, best) if thorough else best


def limits(candidates: Candidates) -> tuple[float, ...]:
    """Bounds on the slowest stage to grow rings under: the least at which the model fits at all, and above."""
    if candidates.in_flight == 1:
        return (math.inf,)
    low, high = 0.0, max(candidates.layer_s) * candidates.layers
    for _ in range(20):
        middle = (low + high) / 2
        room = sum(
            min(capacity, int(middle / layer_s))
            for capacity, layer_s in zip(candidates.capacities, candidates.layer_s, strict=True)
        )
        low, high = (low, middle) if room >= candidates.layers else (middle, high)
    return (high * 1.3, high * 2, high * 3.5, high * 7, math.inf)


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
    best_s, best = found[0] * (1 - ROUNDING), None
    for hops_s, members, change in _neighbours(candidates, found[1]):
        chunk_s = candidates.chunk_s(members, hops_s, best_s)
        if chunk_s < best_s:
            best_s, best = chunk_s, change
    if best is None:
        return None
    without, node, position = best
    tour = [other for other in found[1] if other != without]
    if node >= 0:
        tour.insert(position, node)
    return best_s, tour


def _neighbours(candidates: Candidates, tour: list[int]) -> Iterator[tuple[float, list[int], tuple[int, int, int]]]:
    """Each with its delay, its members, and the change: who leaves, who comes (-1: nobody) and where."""
    delays, inside = candidates.delays, set(tour)
    outside = [node for node in range(len(candidates.capacities)) if node not in inside]
    for leaver in (-1, *candidates.members(tour)):
        rest = tour if leaver < 0 else [node for node in tour if node != leaver]
        if not rest:
            yield from ((0.0, [node], (leaver, node, 0)) for node in outside)
            continue
        hops_s, members = candidates.hops_s(rest), candidates.members(rest)
        if leaver >= 0 and members:
            yield hops_s, members, (leaver, -1, 0)
        edges = [(delays[a], b, delays[a][b]) for a, b in pairwise((*rest, rest[0]))]
        for node in outside:
            row = delays[node]
            added = [from_a[node] + row[b] - edge_s for from_a, b, edge_s in edges]
            least_s = min(added)
            joined = members.copy()
            insort(joined, node)
            yield hops_s + least_s, joined, (leaver, node, added.index(least_s) + 1)


def shorten(candidates: Candidates, tour: list[int]) -> list[int]:
    """The same machines in a shorter order: the shortest for few, else one that no turned or moved section shortens."""
    members = candidates.members(tour)
    if len(members) <= EXACT_ORDER:
        return list(shortest_order(candidates, members)) if len(members) > 2 else tour
    hops_s = candidates.hops_s(tour)
    while True:
        for changed in _reordered(tour):
            changed_s = candidates.hops_s(changed)
            if changed_s < hops_s * (1 - ROUNDING):
                tour, hops_s = changed, changed_s
                break
        else:
            return tour


def _reordered(tour: list[int]) -> Iterator[list[int]]:
    """Sections of up to three moved elsewhere, either way round; then longer ones turned where they are."""
    count = len(tour)
    for length in (1, 2, 3):
        for start in range(1, count - length + 1):
            section, rest = tour[start : start + length], tour[:start] + tour[start + length :]
            for at in range(1, len(rest) + 1):
                if at != start:
                    yield rest[:at] + section + rest[at:]
                if length > 1:
                    yield rest[:at] + section[::-1] + rest[at:]
    for start in range(1, count):
        for stop in range(start + 4, count + 1):
            yield tour[:start] + tour[start:stop][::-1] + tour[stop:]


def shake(candidates: Candidates, found: Found) -> Found:
    """`found`, or a better ring: sections are taken out and grown anew without them, and the result improved."""
    best, is_better = found, True
    while is_better:
        is_better = False
        for grown in _regrown(candidates, best):
            changed = improve(candidates, grown)
            if changed[0] < best[0] * (1 - ROUNDING):
                best, is_better = changed, True
                break
    return best


def _regrown(candidates: Candidates, found: Found) -> Iterator[Found]:
    chunk_s, tour = found
    size, is_pinned = len(tour), candidates.depot is not None
    budget = max(4, KICK_STEPS // (size * size * len(candidates.capacities)))
    sections = [(start, length) for length in range(1, max(2, size // 2 + 1)) for start in range(is_pinned, size)]
    for start, length in sections[:: max(1, len(sections) // budget)]:
        turned = tour if is_pinned else tour[start - 1 :] + tour[: start - 1]
        cut = turned[start : start + length] if is_pinned else turned[1 : 1 + length]
        kept = [node for node in turned if node not in cut]
        for limit_s in (chunk_s, math.inf) if candidates.in_flight > 1 else (math.inf,):
            regrown = grow(candidates, kept, limit_s, banned=cut) if kept else None
            if regrown is not None:
                yield candidates.chunk_s(candidates.members(regrown), candidates.hops_s(regrown)), regrown
