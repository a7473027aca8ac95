"""The moves, one peer at a time, that bring a plan's peers to their seats while no layer is ever lost. Pure.

A peer may move once others hold all of its layers. Peers that no ring runs through go first, so that the new ring is
there before the old one is given up; where a peer is the only one with some layers, one that nobody needs takes those.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from shardp2p.scheduler.holders import counts
from shardp2p.scheduler.options import run_of
from shardp2p.scheduler.plan import Stage
from shardp2p.scheduler.reseating_spare import Step
from shardp2p.scheduler.settling import rank
from shardp2p.scheduler.target import Layers, Ranges, turnings, widened
from shardp2p.scheduler.topology import ModelShape
from shardp2p.vocabulary import PeerId

RELIEVED = 3
"""Peers, those with the fewest layers that nobody else holds, of which one is relieved next: bounds the search."""

KEPT = 3
"""Paths of each kind that are looked at more closely: those with the fewest steps."""


@dataclass(frozen=True, slots=True)
class Path:
    """Steps in their order, what all peers hold at the end, and how many seats of the plan nobody could reach."""

    steps: tuple[Step, ...]
    seats: Mapping[PeerId, Ranges]
    missed: int


def paths(
    shape: ModelShape, stages: Sequence[Stage], seats: Mapping[PeerId, Ranges], running: Collection[PeerId]
) -> list[Path]:
    """Short paths to the seats of `stages`, turned in several ways, the shortest first; then some that end early.

    `seats` lack no layer; those in `running` move last. From the second state of a path its rest is found again, one
    step shorter: so peers that each compute it anew come to its end.
    """
    whole: list[Path] = []
    partial: list[Path] = []
    for arcs in turnings(stages, shape.layers, {peer: _layers(ranges) for peer, ranges in seats.items()}):
        walk = _Walk(shape, arcs, seats, running)
        if len(whole) >= KEPT and len(walk.unseated()) >= len(whole[-1].steps):
            break
        path = walk.to_end()
        (partial if path.missed else whole).append(path)
        whole = sorted(whole, key=lambda one: len(one.steps))[:KEPT]
    return [*whole, *sorted(partial, key=lambda one: (one.missed, len(one.steps)))[:KEPT]]


class _Walk:
    """One turning of the plan, and the peers on their way to it."""

    def __init__(
        self,
        shape: ModelShape,
        arcs: Mapping[PeerId, Layers],
        seats: Mapping[PeerId, Ranges],
        running: Collection[PeerId],
    ) -> None:
        self._layers = shape.layers
        self._arcs = arcs
        self._ranges = dict(seats)
        self._seats = {peer: _layers(ranges) for peer, ranges in seats.items()}
        self._held = counts(shape.layers, [part for ranges in seats.values() for part in ranges])
        order = {peer: (peer in running, rank(shape.digest, peer)) for peer in seats}
        self._order = sorted(arcs, key=order.__getitem__)
        self._free = sorted(seats.keys() - arcs.keys(), key=order.__getitem__)
        self._steps: list[Step] = []

    def unseated(self) -> list[PeerId]:
        """The plan's peers that do not hold what it gives them."""
        return [peer for peer in self._order if not self._arcs[peer] <= self._seats[peer]]

    def to_end(self) -> Path:
        """Move until all sit, or nobody can."""
        for _ in range(2 * len(self._seats)):
            step = self._next()
            if step is None:
                break
            held = self._without(step.peer_id)
            self._ranges[step.peer_id], self._seats[step.peer_id] = step.ranges, _layers(step.ranges)
            self._held = [count + (layer in self._seats[step.peer_id]) for layer, count in enumerate(held)]
            self._steps.append(step)
        return Path(tuple(self._steps), self._ranges, len(self.unseated()))

    def _next(self) -> Step | None:
        waiting = self.unseated()
        for peer in waiting:
            if self._may_leave(peer):
                held, now = self._without(peer), self._seats[peer]
                return Step(peer, widened(self._arcs[peer], len(now), held, now))
        return next(self._reliefs(waiting), None)

    def _reliefs(self, waiting: Sequence[PeerId]) -> Iterator[Step]:
        """How a peer without a seat in the plan takes over most of what only one that waits holds."""
        alone = {peer: [layer for layer in self._seats[peer] if self._held[layer] == 1] for peer in waiting}
        for peer in sorted(waiting, key=lambda one: len(alone[one]))[:RELIEVED]:
            best: tuple[int, int, Step] | None = None
            for free in filter(self._may_leave, self._free):
                width = len(self._seats[free])
                start, taken = _window(alone[peer], width, self._layers)
                if taken and (best is None or (taken, -width) > best[:2]):
                    best = taken, -width, Step(free, run_of(start, width, self._layers))
            if best is not None:
                yield best[2]

    def _may_leave(self, peer: PeerId) -> bool:
        return all(self._held[layer] > 1 for layer in self._seats[peer])

    def _without(self, peer: PeerId) -> list[int]:
        return [count - (layer in self._seats[peer]) for layer, count in enumerate(self._held)]


def _window(wanted: Sequence[int], width: int, layers: int) -> tuple[int, int]:
    """Where a run of `width` layers on the circle has most of `wanted`, and how many."""
    width = min(width, layers)
    found = [(sum((layer - start) % layers < width for layer in wanted), -start) for start in sorted(wanted)]
    taken, start = max(found, default=(0, 0))
    return -start, taken


def _layers(ranges: Ranges) -> Layers:
    return frozenset(layer for part in ranges for layer in range(part.start, part.stop))
