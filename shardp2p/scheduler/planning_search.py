"""Good rings among some tens of candidates: grown from every machine, then improved by local search. Pure.

Deterministic: ties go to the faster machine, and nothing is drawn at random.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from shardp2p.scheduler.planning_fill import ROUNDING, Candidates
from shardp2p.scheduler.planning_grow import grow
from shardp2p.scheduler.planning_improve import Found, improve

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
