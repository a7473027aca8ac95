"""The seats that a plan asks for: which layers each of its peers should hold, on the circle of layers. Pure.

A ring returns to its driver, so turning all of a plan's layers by as many leaves its lap as it is. And a peer has often
room for more layers than the plan gives it: the rest of its seat is for others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardp2p.scheduler.holders import Holder
from shardp2p.scheduler.options import options
from shardp2p.scheduler.plan import Stage
from shardp2p.vocabulary import LayerRange, PeerId

Layers = frozenset[int]
Ranges = tuple[LayerRange, ...]


def seats_by_peer(holders: Sequence[Holder]) -> dict[PeerId, Layers]:
    """The layers that each peer holds, in the order of peer ids."""
    seats: dict[PeerId, Layers] = {}
    for holder in sorted(holders, key=lambda one: one.peer_id):
        held = frozenset(range(holder.layers.start, holder.layers.stop))
        seats[holder.peer_id] = seats.get(holder.peer_id, frozenset()) | held
    return seats


def ranges_by_peer(holders: Sequence[Holder]) -> dict[PeerId, Ranges]:
    """The ranges that each peer holds, in the order of peer ids and layers."""
    ranges: dict[PeerId, Ranges] = {}
    for holder in sorted(holders, key=lambda one: (one.peer_id, one.layers)):
        ranges[holder.peer_id] = (*ranges.get(holder.peer_id, ()), holder.layers)
    return ranges


def turnings(stages: Sequence[Stage], layers: int, seats: Mapping[PeerId, Layers]) -> list[dict[PeerId, Layers]]:
    """The layers of each stage's peer, turned in all ways; first that in which most peers find them in their `seats`.

    Then that which has most layers in common with them.
    """
    found: list[tuple[int, int, int, dict[PeerId, Layers]]] = []
    for offset in range(layers):
        arcs = {
            stage.peer_id: frozenset(
                (layer + offset) % layers for layer in range(stage.layers.start, stage.layers.stop)
            )
            for stage in stages
        }
        seated = sum(arc <= seats.get(peer, frozenset()) for peer, arc in arcs.items())
        common = sum(len(arc & seats.get(peer, frozenset())) for peer, arc in arcs.items())
        found.append((-seated, -common, offset, arcs))
    return [arcs for *_, arcs in sorted(found, key=lambda one: one[:3])]


def widened(arc: Layers, width: int, held: Sequence[int], now: Layers = frozenset()) -> Ranges:
    """A run of `width` layers around `arc`, where it helps scarce layers most; then such as it holds `now`.

    `held` is how many others hold each layer. `len(arc) <= width <= len(held)`.
    """
    found = [option for option in options(len(held), width, held) if arc <= option.layers]
    best = max(
        found,
        key=lambda one: (one.relief, one.balance, len(one.layers & now), -len(one.ranges), -one.start),
    )
    return best.ranges
