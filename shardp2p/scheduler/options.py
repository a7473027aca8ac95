"""The ways in which a peer could use its memory for a model, and how much each helps scarce layers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from shardp2p.scheduler.holders import as_ranges
from shardp2p.vocabulary import LayerRange

SPARED = 2
"""A layer on one peer is gone when that peer dies; from this many holders on, speed may decide."""

MAX_RANGES = 4
"""Into how many ranges a peer's memory may be split: each is one more stage where a ring uses it."""


@dataclass(frozen=True, slots=True)
class Option:
    """A way to use the memory. `relief` counts its layers that have 0, 1, … holders, below what is spared; `balance`
    its layers by how many hold them, scarcest first. Both compare as tuples: more of the scarcest is better.
    """

    start: int
    ranges: tuple[LayerRange, ...]
    relief: tuple[int, ...]
    balance: tuple[int, ...]

    @property
    def layers(self) -> set[int]:
        """Every layer of the ranges."""
        return {layer for part in self.ranges for layer in range(part.start, part.stop)}


def options(layers: int, width: int, held: Sequence[int], spared: int = SPARED) -> list[Option]:
    """Every run of layers on the circle; and the scarcest layers, wherever they are, when no run relieves as many.

    `held` is how many peers hold each layer; those below `spared` count as scarce. `0 < width <= layers`.
    """
    levels = sorted({*range(spared), *held})
    is_at = np.array(held)[None, :] == np.array(levels)[:, None]
    sums = np.concatenate([np.zeros((len(levels), 1), dtype=np.intp), np.tile(is_at, 2).cumsum(axis=1)], axis=1)
    starts = layers if width < layers else 1
    by_level = (sums[:, width : width + starts] - sums[:, :starts]).T.tolist()
    found = [
        Option(start, run_of(start, width, layers), tuple(counted[:spared]), tuple(counted))
        for start, counted in enumerate(by_level)
    ]
    scattered = scarcest(width, held)
    if help_of(scattered, held, spared) > max(option.relief for option in found):
        counted = [sum(1 for layer in scattered if held[layer] == level) for level in levels]
        found.append(Option(0, as_ranges(scattered), tuple(counted[:spared]), tuple(counted)))
    return found


def help_of(taken: Iterable[int], held: Sequence[int], spared: int = SPARED) -> tuple[int, ...]:
    """The relief that holding the layers `taken` is, beside what `held` counts."""
    relief = [0] * spared
    for layer in taken:
        if held[layer] < spared:
            relief[held[layer]] += 1
    return tuple(relief)


def allowed(held: Sequence[int], width: int = 0) -> int:
    """How many holders every layer could have, were all memory that is used, and `width` layers more, dealt evenly.

    On the circle peers could sit one after another, round and round: so it is the whole part of the mean.
    """
    return max(SPARED, (sum(held) + width) // len(held))


def thin(held: Sequence[int], level: int) -> int:
    """How many more holdings it takes until every layer has `level`."""
    return sum(max(0, level - count) for count in held)


def run_of(start: int, width: int, layers: int) -> tuple[LayerRange, ...]:
    """A run of `width` layers on the circle, `width <= layers`; two ranges where it goes on at the first layer."""
    if width >= layers:
        return (LayerRange(0, layers),)
    if start + width <= layers:
        return (LayerRange(start, start + width),)
    return LayerRange(0, start + width - layers), LayerRange(start, layers)


def scarcest(width: int, held: Sequence[int]) -> list[int]:
    """The `width` layers with the fewest holders, in few ranges: longest runs of the scarcest first."""
    taken: set[int] = set()
    for level in sorted(set(held)):
        if len(taken) == width:
            break
        runs = as_ranges(layer for layer, count in enumerate(held) if count <= level)
        for run in sorted(runs, key=lambda run: (-len(run), run.start)):
            room = width - len(taken)
            fresh = [layer for layer in range(run.start, run.stop) if layer not in taken][:room]
            if fresh and len(as_ranges([*taken, *fresh])) <= MAX_RANGES:
                taken.update(fresh)
    return sorted(taken)
