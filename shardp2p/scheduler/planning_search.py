"""Good rings among some tens of candidates: grown from every machine, then improved by local search. Pure.

Deterministic: ties go to the faster machine, and nothing is drawn at random.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterator, Sequence
from heapq import nsmallest
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

PACES = 9
"""Limits on the slowest stage that are tried for a full pipeline, and the factor between them at which to stop."""

PACE_STEP = 1.004

KICK_STEPS = 400_000
"""Moves looked at while a good ring is shaken, so that long rings among many candidates take no longer than others."""


def search(candidates: Candidates, starts: Sequence[int], *, thorough: bool = True) -> Found | None:
    """The best ring found from rings grown at each of `starts`; None when none of them holds the model.

    For a full pipeline, the shortest laps under a falling limit on the slowest stage: a lap has a slope to follow where
    the slower of two things is flat. The limit is halved in between (in logarithms) until it meets the lap's share.
    """
    if candidates.in_flight == 1:
        return _search_lap(candidates, starts, thorough)
    low_s, high_s, pace_s = least_pace_s(candidates), math.inf, math.inf
    best: Found | None = None
    for _ in range(PACES):
        found = _search_lap(candidates.paced(pace_s), starts, thorough)
        if found is None:
            low_s = pace_s
        else:
            chunk_s = candidates.chunk_s(candidates.members(found[1]), candidates.hops_s(found[1]))
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


def _search_lap(candidates: Candidates, starts: Sequence[int], thorough: bool) -> Found | None:
    grown: dict[tuple[int, ...], Found] = {}
    for start in starts:
        tour = grow(candidates, [start] if candidates.depot is None else [candidates.depot, start])
        members = () if tour is None else tuple(candidates.members(tour))
        if tour is not None and members not in grown:
            chunk_s = candidates.chunk_s(members, candidates.hops_s(tour))
            if chunk_s < math.inf:
                grown[members] = chunk_s, tour
    best_first = sorted(grown.values(), key=lambda found: found[0])
    improved = [improve(candidates, found) for found in best_first[: IMPROVED if thorough else 1]]
    best = min(improved, key=lambda found: found[0], default=None)
    return shake(candidates, best) if thorough and best is not None else best


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
    best_s, best = found[0] * (1 - ROUNDING), None
    delays, tour, hops_s = candidates.delays, found[1], candidates.hops_s(found[1])
    members, places = candidates.members(tour), _places(candidates, tour)
    for leaver in (-1, *members):
        rest = [node for node in members if node != leaver]
        rest_s, before, after = hops_s, -1, -1
        if leaver >= 0:
            at = tour.index(leaver)
            before, after = tour[at - 1], tour[(at + 1) % len(tour)]
            rest_s += delays[before][after] - delays[before][leaver] - delays[leaver][after]
            chunk_s = candidates.chunk_s(rest, rest_s, best_s) if rest else math.inf
            if chunk_s < best_s:
                best_s, best = chunk_s, (leaver, -1, -1)
        work_s = candidates.joining(rest, best_s if candidates.in_flight > 1 else math.inf)
        for node, cheapest in places.items():
            added_s, follows = next(place for place in cheapest if place[1] not in (before, leaver))
            if leaver >= 0:
                merged_s = delays[before][node] + delays[node][after] - delays[before][after]
                if before == leaver:
                    added_s, follows = 0.0, -1
                elif merged_s < added_s:
                    added_s, follows = merged_s, before
            if rest_s + added_s + work_s(node) < best_s * candidates.in_flight:
                joined = rest.copy()
                insort(joined, node)
                chunk_s = candidates.chunk_s(joined, rest_s + added_s, best_s)
                if chunk_s < best_s:
                    best_s, best = chunk_s, (leaver, node, follows)
    return None if best is None else (best_s, _changed(tour, *best))


NOWHERE = (math.inf, -2)
"""A place that is never the cheapest, for tours that have no other."""


def _places(candidates: Candidates, tour: list[int]) -> dict[int, list[tuple[float, int]]]:
    """For each machine that is not in `tour`, what it would add at its three cheapest places, and whom it follows.

    Three: where a machine leaves, two places go.
    """
    delays, inside = candidates.delays, set(tour)
    edges = [(delays[a], a, b, delays[a][b]) for a, b in pairwise((*tour, tour[0]))]
    return {
        node: [*nsmallest(3, [(from_a[node] + delays[node][b] - edge_s, a) for from_a, a, b, edge_s in edges]), NOWHERE]
        for node in range(len(candidates.capacities))
        if node not in inside
    }


def _changed(tour: list[int], leaver: int, node: int, follows: int) -> list[int]:
    rest = [other for other in tour if other != leaver]
    if node >= 0:
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
        paced = candidates.paced(chunk_s) if candidates.in_flight > 1 else candidates
        regrown = grow(paced, kept, banned=cut) if kept else None
        if regrown is not None:
            yield candidates.chunk_s(candidates.members(regrown), candidates.hops_s(regrown)), regrown
