"""The cheapest ring through peers that hold ranges of layers: exact, cutting ranges wherever that helps. Pure.

A dynamic programme over (layer, holder): the cost of having run the layers so far, the last of them on that holder.
A ring whose driver is its own first peer closes on itself, so it is solved once for each first peer that could still
win. What makes that fast with a thousand holders: a ring within a small pool gives an upper bound, a programme without
delays and one without the closing hop give lower bounds, and a holder that no ring below the upper bound can pass is
dropped before anything that grows with the square of the holders.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from shardp2p.scheduler.holders import Holder
from shardp2p.scheduler.ring_cells import Costs, Delay, Hops, Indices, active_in, cells_of, fastest_of, possible_below
from shardp2p.vocabulary import LayerRange, PeerId

SOURCES_AT_ONCE = 8
"""First peers that one pass of the programme tries: enough to keep numpy busy, few enough to stop early."""


@dataclass(frozen=True, slots=True)
class Leg:
    """A holder of the search and the part of its layers that it runs."""

    holder: int
    layers: LayerRange


@dataclass(frozen=True, slots=True)
class Ring:
    """Legs from the first layer to the last, and the seconds of a lap."""

    legs: tuple[Leg, ...]
    lap_s: float


def cheapest_ring(
    layers: int, holders: Sequence[Holder], delay: Delay, *, driver: PeerId | None = None, hop_s: float = 0.0
) -> Ring | None:
    """The ring with the shortest lap, or None where layers are missing.

    `hop_s` is charged for every hop between peers. Without `driver` the first stage's peer drives. Of equal rings the
    one through earlier holders wins.
    """
    cells = cells_of(layers, holders)
    everyone = np.arange(len(holders), dtype=np.intp)
    pool = fastest_of(cells, holders)
    if len(pool) == len(everyone):
        return _Search(cells, holders, everyone, delay, driver, hop_s).solve(np.inf)
    best = _Search(cells, holders, pool, delay, driver, hop_s).solve(np.inf)
    if best is None:
        return None
    kept = possible_below(cells, holders, everyone, best.lap_s)
    return _Search(cells, holders, kept, delay, driver, hop_s).solve(best.lap_s) or best


class _Search:
    """One problem over the holders `among`."""

    def __init__(
        self,
        cells: Sequence[LayerRange],
        holders: Sequence[Holder],
        among: Indices,
        delay: Delay,
        driver: PeerId | None,
        hop_s: float,
    ) -> None:
        self._cells = cells
        self._holders = holders
        self._driver = driver
        self._active = active_in(cells, holders, among)
        self._speed = np.array([holder.layer_s for holder in holders])
        self._hops = Hops(holders, delay, hop_s)

    def solve(self, bound_s: float) -> Ring | None:
        """The best ring that is cheaper than `bound_s`, or None."""
        if not self._cells or any(not len(active) for active in self._active):
            return None
        if self._driver is not None:
            return self._solve_pinned(self._driver)
        to_end = self._prune(bound_s)
        if to_end is None:
            return None
        best: Ring | None = None
        for sources, promise_s in self._sources(to_end):
            if promise_s >= bound_s:
                break
            found = self._solve_from(sources, bound_s)
            if found is not None:
                best, bound_s = found, found.lap_s
        return best

    def _prune(self, bound_s: float) -> list[Costs] | None:
        """Drop what no ring below the bound passes, even with a free last hop. Gives the costs to the end."""
        forth, back = self._open_costs()
        reach = self._through(forth, back)
        kept = [reach[active] <= bound_s for active in self._active]
        if not all(keep.any() for keep in kept):
            return None
        self._active = [active[keep] for active, keep in zip(self._active, kept, strict=True)]
        return [costs[keep] for costs, keep in zip(back, kept, strict=True)]

    def least_laps(self) -> Costs:
        """For each holder the cheapest way through it from the first layer to the last."""
        if not self._cells or any(not len(active) for active in self._active):
            return np.full(len(self._holders), np.inf)
        return self._through(*self._open_costs())

    def _through(self, forth: list[Costs], back: list[Costs]) -> Costs:
        reach = np.full(len(self._holders), np.inf)
        for active, one, other, work in zip(self._active, forth, back, self._work(), strict=True):
            reach[active] = np.minimum(reach[active], one + other - work)
        return reach

    def _work(self) -> list[Costs]:
        return [self._speed[active] * len(cell) for cell, active in zip(self._cells, self._active, strict=True)]

    def _open_costs(self) -> tuple[list[Costs], list[Costs]]:
        """For each cell and active holder: the cheapest way from the first cell to it, and from it to the last."""
        work = self._work()
        forth, back = [work[0]], [work[-1]]
        for cell in range(1, len(self._cells)):
            hops = self._hops.between(self._active[cell - 1], self._active[cell])
            forth.append((forth[-1][:, None] + hops).min(axis=0) + work[cell])
        for cell in range(len(self._cells) - 2, -1, -1):
            hops = self._hops.between(self._active[cell], self._active[cell + 1])
            back.append((hops + back[-1][None, :]).min(axis=1) + work[cell])
        return forth, back[::-1]

    def _sources(self, to_end: list[Costs]) -> Iterator[tuple[Indices, float]]:
        """First holders, the most promising first, a few at once, and what no ring from them or later ones beats."""
        first, last = self._active[0], self._active[-1]
        promise = to_end[0] + self._hops.between(last, first).min(axis=0)
        order = np.argsort(promise, kind="stable")
        for at in range(0, len(order), SOURCES_AT_ONCE):
            batch = order[at : at + SOURCES_AT_ONCE]
            yield first[batch], float(promise[batch[0]])

    def _solve_from(self, sources: Indices, bound_s: float) -> Ring | None:
        """The best ring that begins and ends at one of `sources`, if cheaper than the bound."""
        start = np.full((len(sources), len(self._active[0])), np.inf)
        rows, columns = np.nonzero(sources[:, None] == self._active[0][None, :])
        start[rows, columns] = 0.0
        return self._run(start, self._hops.between(self._active[-1], sources).T, bound_s)

    def _solve_pinned(self, driver: PeerId) -> Ring | None:
        hop = self._hops.hop_s
        first = [hop(driver, self._holders[index].peer_id) for index in self._active[0]]
        last = [hop(self._holders[index].peer_id, driver) for index in self._active[-1]]
        return self._run(np.array([first]), np.array([last]), np.inf)

    def _run(self, start: Costs, closing: Costs, bound_s: float) -> Ring | None:
        """The programme for several starts [S, first holders] and closings [S, last holders] at once."""
        work = self._work()
        costs = start + work[0]
        steps: list[Indices] = []
        for cell in range(1, len(self._cells)):
            hops = self._hops.between(self._active[cell - 1], self._active[cell])
            through = costs[:, :, None] + hops[None, :, :]
            step = through.argmin(axis=1)
            costs = np.take_along_axis(through, step[:, None, :], axis=1)[:, 0, :] + work[cell]
            steps.append(step)
        total = costs + closing
        row, column = divmod(int(total.argmin()), total.shape[1])
        lap_s = float(total[row, column])
        if not lap_s < bound_s:
            return None
        path = [column]
        for step in reversed(steps):
            path.append(int(step[row, path[-1]]))
        chosen = [int(self._active[cell][place]) for cell, place in enumerate(reversed(path))]
        return Ring(_legs(self._cells, chosen), lap_s)


def least_laps(layers: int, holders: Sequence[Holder], delay: Delay, *, hop_s: float = 0.0) -> list[float]:
    """For each holder a bound below which no ring through it is: its best ring, were the last hop free."""
    cells = cells_of(layers, holders)
    search = _Search(cells, holders, np.arange(len(holders), dtype=np.intp), delay, None, hop_s)
    return [float(seconds) for seconds in search.least_laps()]


def _legs(cells: Sequence[LayerRange], chosen: Sequence[int]) -> tuple[Leg, ...]:
    legs: list[Leg] = []
    for cell, holder in zip(cells, chosen, strict=True):
        if legs and legs[-1].holder == holder:
            legs[-1] = Leg(holder, LayerRange(legs[-1].layers.start, cell.stop))
        else:
            legs.append(Leg(holder, cell))
    return tuple(legs)
