"""The units in which a ring is searched, and which holders have each. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from shardp2p.scheduler.holders import Holder
from shardp2p.vocabulary import LayerRange, PeerId

Costs = npt.NDArray[np.float64]
"""Seconds; infinite where there is no way."""

Indices = npt.NDArray[np.intp]

Delay = Callable[[PeerId, PeerId], float]
"""One way, in seconds, from a peer to another."""

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


class Hops:
    """What a hop costs between any two of `holders`: nothing within a peer, else its delay and `hop_s`.

    Each pair is looked up when it is first needed, since most pairs never follow each other in a ring.
    """

    def __init__(self, holders: Sequence[Holder], delay: Delay, hop_s: float = 0.0) -> None:
        self._peers = [holder.peer_id for holder in holders]
        self._delay, self._hop_s = delay, hop_s
        self._costs: Costs = np.full((len(holders), len(holders)), np.nan)

    def between(self, senders: Indices, receivers: Indices) -> Costs:
        """[senders, receivers] in seconds."""
        block: Costs = self._costs[senders[:, None], receivers]
        unknown = np.isnan(block)
        if unknown.any():
            for row, column in np.argwhere(unknown).tolist():
                one, other = int(senders[row]), int(receivers[column])
                self._costs[one, other] = block[row, column] = self.hop_s(self._peers[one], self._peers[other])
        return block

    def hop_s(self, one: PeerId, other: PeerId) -> float:
        """From one peer to another."""
        return 0.0 if one == other else self._delay(one, other) + self._hop_s
