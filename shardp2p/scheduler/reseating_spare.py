"""How a peer that serves takes layers of which too few hold a copy, instead of layers that many hold. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shardp2p.scheduler.holders import counts
from shardp2p.scheduler.options import options, thin
from shardp2p.scheduler.target import Ranges
from shardp2p.vocabulary import PeerId

TRIED = 8
"""Steps, those that help most, of which the best ring is asked whether it can spare the peer."""


@dataclass(frozen=True, slots=True)
class Step:
    """A peer and all that it holds from then on."""

    peer_id: PeerId
    ranges: Ranges


def _always(_: Step) -> bool:
    return True


def mend(
    layers: int,
    ranges: Mapping[PeerId, Ranges],
    order: Sequence[PeerId],
    level: int,
    *,
    least: float = 0.0,
    is_allowed: Callable[[Step], bool] = _always,
) -> Step | None:
    """The step of one peer in `order` that brings layers nearest to `level` holders; None where no step helps.

    It helps with more than the share `least` of its memory, or ends the shortage, and takes no layer from its last
    holder. Of equal steps the first peer's is taken.
    """
    held = counts(layers, [part for parts in ranges.values() for part in parts])
    scarce = thin(held, level)
    found: list[tuple[int, int, Step]] = []
    for at, peer in enumerate(order if scarce else ()):
        own = counts(layers, ranges[peer])
        without = [count - mine for count, mine in zip(held, own, strict=True)]
        width = sum(own)
        if min(without) == 0 or not any(mine and count >= level for count, mine in zip(without, own, strict=True)):
            continue
        best = min(
            (
                (_left(without, one.layers, level), len(one.ranges), one.start, one.ranges)
                for one in options(layers, width, without, level)
            ),
        )
        helped = scarce - best[0]
        if helped > 0 and (helped >= least * width or best[0] == 0):
            found.append((best[0], at, Step(peer, best[3])))
    nearest = sorted(found, key=lambda one: one[:2])[:TRIED]
    return next((step for *_, step in nearest if is_allowed(step)), None)


def _left(held: Sequence[int], taken: set[int], level: int) -> int:
    return thin([count + (layer in taken) for layer, count in enumerate(held)], level)
