"""The units in which a ring is searched, and which holders have each. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from shardp2p.scheduler.holders import Holder
from shardp2p.vocabulary import LayerRange

Costs = npt.NDArray[np.float64]
"""Seconds; infinite where there is no way."""

Indices = npt.NDArray[np.intp]

MAX_CELLS = 512
"""Ranges of a deeper model are cut only where some range begins or ends: a layer count is a claim, time is ours."""

POOL_PER_CELL = 6
"""The fastest holders of each layer, among which the first ring is sought."""


def cells_of(layers: int, holders: Sequence[Holder]) -> list[LayerRange]:
    """The units of which a leg consists: layers, or what lies between two edges of ranges."""
    if layers <= MAX_CELLS:
        return [LayerRange(layer, layer + 1) for layer in range(layers)]
    edges = {0, layers}
    for holder in holders:
        edges |= {edge for edge in (holder.layers.start, holder.layers.stop) if edge < layers}
    return [LayerRange(start, stop) for start, stop in pairwise(sorted(edges))]


def active_in(cells: Sequence[LayerRange], holders: Sequence[Holder], among: Indices) -> list[Indices]:
    """For each cell, which of `among` hold it."""
    starts = [cell.start for cell in cells]
    by_cell: list[list[int]] = [[] for _ in cells]
    for index in among:
        held = holders[index].layers
        for cell in range(bisect_left(starts, held.start), bisect_left(starts, held.stop)):
            by_cell[cell].append(int(index))
    return [np.array(indices, dtype=np.intp) for indices in by_cell]


def fastest_of(cells: Sequence[LayerRange], holders: Sequence[Holder]) -> Indices:
    """The fastest few of each cell."""
    speed = np.array([holder.layer_s for holder in holders])
    chosen: set[int] = set()
    for active in active_in(cells, holders, np.arange(len(holders), dtype=np.intp)):
        chosen.update(int(i) for i in active[np.argsort(speed[active], kind="stable")[:POOL_PER_CELL]])
    return np.array(sorted(chosen), dtype=np.intp)


def possible_below(cells: Sequence[LayerRange], holders: Sequence[Holder], among: Indices, bound_s: float) -> Indices:
    """Those of `among` that some ring of at most `bound_s` could pass, were all delays nothing."""
    speed = np.array([holder.layer_s for holder in holders])
    fastest = [
        float(speed[active].min()) * len(cell)
        for cell, active in zip(cells, active_in(cells, holders, among), strict=True)
    ]
    total = sum(fastest)
    cheapest = np.full(len(holders), np.inf)
    for cell, cost, active in zip(cells, fastest, active_in(cells, holders, among), strict=True):
        cheapest[active] = np.minimum(cheapest[active], total - cost + speed[active] * len(cell))
    return among[cheapest[among] <= bound_s]
