"""Rings grown greedily: the machine that adds least per layer comes next, where it lengthens the tour least. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection

from shardp2p.scheduler.planning_fill import Candidates


def grow(candidates: Candidates, tour: list[int], banned: Collection[int] = ()) -> list[int] | None:
    """`tour` with machines added until they hold the model; None if they never do.

    `banned` machines are not added.
    """
    room, times, delays = candidates.capacities, candidates.layer_s, candidates.delays
    missing = candidates.layers - sum(room[node] for node in tour if node != candidates.depot)
    following = dict(zip(tour, (*tour[1:], tour[0]), strict=True))
    outside = {
        node: _cheapest(candidates, following, node)
        for node in range(len(room))
        if node not in following and node not in banned and room[node] > 0
    }
    while missing > 0 and outside:
        best, best_s = -1, math.inf
        for node, (added_s, _) in outside.items():
            useful = min(room[node], missing)
            per_layer_s = added_s / useful + times[node]
            if per_layer_s < best_s:
                best, best_s = node, per_layer_s
        _, before = outside.pop(best)
        after = following[before]
        following[before], following[best] = best, after
        missing -= room[best]
        for node, (added_s, at) in outside.items():
            if at == before:
                outside[node] = _cheapest(candidates, following, node)
                continue
            row = delays[node]
            left_s = delays[before][node] + row[best] - delays[before][best]
            right_s = delays[best][node] + row[after] - delays[best][after]
            if left_s < added_s or right_s < added_s:
                outside[node] = (left_s, before) if left_s <= right_s else (right_s, best)
    return None if missing > 0 else _walk(following, tour[0])


def _cheapest(candidates: Candidates, following: dict[int, int], node: int) -> tuple[float, int]:
    """What `node` adds to the tour at its best place, and whom it follows there."""
    delays, row = candidates.delays, candidates.delays[node]
    return min((delays[at][node] + row[after] - delays[at][after], at) for at, after in following.items())


def _walk(following: dict[int, int], start: int) -> list[int]:
    tour, at = [start], following[start]
    while at != start:
        tour.append(at)
        at = following[at]
    return tour
