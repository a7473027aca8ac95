"""Where a joiner sits: which layers of a model a peer should load, and why. Pure, and the same on every peer.

The aims, in this order: layers that too few peers hold come first; then the best ring, if that gets clearly faster;
then the layers with the fewest holders; then bytes that the peer has on its disk. Layers lie on a circle, since a ring
returns to its driver: a joiner may take the last layers and the first ones. What others hold is never moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

import numpy as np

from shardp2p.scheduler.holders import Holder, as_ranges, counts, missing_ranges, named
from shardp2p.scheduler.joining import best_by_start, considered, laps_with
from shardp2p.scheduler.options import SPARED, Option, allowed, options, thin
from shardp2p.scheduler.ring_cells import Delay
from shardp2p.scheduler.ring_search import cheapest_ring
from shardp2p.scheduler.topology import UNKNOWN_DELAY_S, Machine, ModelShape, Topology
from shardp2p.vocabulary import LayerRange, PeerId

CLEARLY = 0.05
"""The share of a lap that a place must save to count as faster: less is within what measuring errs by."""

NOBODY = PeerId("")
"""Stands for whoever will hold the layers that are missing."""

Aim = Literal["coverage", "speed", "redundancy", "nothing"]


@dataclass(frozen=True, slots=True)
class Placement:
    """The ranges that a peer should hold, in ascending order, what decided, and the reasons in words."""

    ranges: tuple[LayerRange, ...]
    aim: Aim
    reasons: tuple[str, ...]


def place(
    shape: ModelShape,
    joiner: Machine,
    coverage: Sequence[Holder],
    topology: Topology,
    *,
    stored: Sequence[LayerRange] = (),
    barred: frozenset[int] = frozenset(),
) -> Placement:
    """Where `joiner` should sit among `coverage`, which may be in any order and have the joiner's own past in it.

    `stored` are layers whose bytes it has, `barred` layers that it cannot hold. Loading holders count as if they
    served; draining ones do not count.
    """
    layers, width = shape.layers, min(joiner.fits_layers, shape.layers - len(barred))
    if width == 0:
        return Placement((), "nothing", (f"no room for one layer of {shape.layer_bytes / 2**20:.0f} MiB",))
    joiner = replace(joiner, fits_layers=width)
    others = sorted(
        (holder for holder in coverage if holder.is_coming and holder.peer_id != joiner.peer_id),
        key=lambda holder: (holder.peer_id, holder.layers),
    )
    held = counts(layers, [holder.layers for holder in others])
    level = allowed(held, width)
    found = [option for option in options(layers, width, held, level) if not barred & option.layers]
    if not found:
        return Placement((), "nothing", (f"no {width} layers in a row that it can hold",))
    most = max(option.relief[:SPARED] for option in found)
    scarce = [option for option in found if option.relief[:SPARED] == most]
    laps, now_s = _laps(shape, joiner, others, topology)
    fastest = min(laps[option.start] for option in scarce)
    fast = [option for option in scarce if laps[option.start] * (1 - CLEARLY) <= fastest]
    has = _covered(layers, stored)
    best = max(
        fast,
        key=lambda option: (
            -thin([count + (layer in option.layers) for layer, count in enumerate(held)], level),
            option.balance,
            len(has & option.layers),
            -len(option.ranges),
            -laps[option.start],
            -option.start,
        ),
    )
    return Placement(best.ranges, *_explain(best, held, laps[best.start], now_s, len(fast) < len(scarce), has, width))


def _laps(
    shape: ModelShape, joiner: Machine, others: Sequence[Holder], topology: Topology
) -> tuple[list[float], float]:
    """For each start the best lap with the joiner there, or without it; and the best lap without it.

    Layers that nobody holds are given to a stand-in of middling speed and distance.
    """
    gaps = missing_ranges(shape.layers, [holder.layers for holder in others])
    near = considered(shape.layers, joiner.peer_id, others, topology.delay_s)
    speed_s = median([joiner.layer_s, *(holder.layer_s for holder in near)])
    whole = [*near, *(Holder(NOBODY, gap, speed_s, "placing") for gap in gaps)]
    delay = _with_stand_in(joiner.peer_id, near, topology.delay_s)
    ring = cheapest_ring(shape.layers, whole, delay)
    now_s = ring.lap_s if ring is not None else float("inf")
    width = min(joiner.fits_layers, shape.layers)
    laps = best_by_start(laps_with(shape.layers, joiner.peer_id, joiner.layer_s, whole, delay), width)
    return [float(lap_s) for lap_s in np.minimum(laps, now_s)], float("inf") if gaps else now_s


def _with_stand_in(joiner: PeerId, near: Sequence[Holder], delay: Delay) -> Delay:
    typical_s = median([delay(joiner, holder.peer_id) for holder in near] or [UNKNOWN_DELAY_S])

    def known_or_typical(one: PeerId, other: PeerId) -> float:
        return typical_s if NOBODY in (one, other) else delay(one, other)

    return known_or_typical


def _covered(layers: int, ranges: Sequence[LayerRange]) -> set[int]:
    return {layer for held in ranges for layer in range(held.start, min(held.stop, layers))}


def _explain(
    best: Option, held: Sequence[int], lap_s: float, now_s: float, is_faster: bool, has: set[int], width: int
) -> tuple[Aim, tuple[str, ...]]:
    """What decided, and why in words."""
    reasons = [f"there is room for {width} of {len(held)} layers"]
    fewest = min(held)
    if fewest < SPARED:
        scarce = as_ranges(layer for layer, count in enumerate(held) if count == fewest)
        of_these = sum(1 for layer in best.layers if held[layer] == fewest)
        holders = "nobody holds" if fewest == 0 else f"only {fewest} peer holds"
        reasons.append(f"{holders} the layers {named(scarce)}; it takes {of_these} of these {sum(map(len, scarce))}")
    if is_faster and now_s < float("inf"):
        reasons.append(f"the best ring gets {1 - lap_s / now_s:.0%} faster: {1000 * lap_s:.1f} ms a lap")
    elif is_faster:
        reasons.append("among such places it is the one nearest to the peers around it in the ring")
    elif fewest >= SPARED:
        reasons.append("no place makes the best ring clearly faster: it takes the layers with the fewest holders")
    if kept := len(has & best.layers):
        reasons.append(f"it has the bytes of {kept} of these layers already")
    if fewest == 0:
        return "coverage", tuple(reasons)
    return "speed" if is_faster and fewest >= SPARED else "redundancy", tuple(reasons)
