"""What a newcomer would make of the best ring, for every place where it could sit at once. Pure.

A ring whose driver is its first peer is a cycle, so it may be read from the newcomer on: it hands over after some
layer, others run the rest around the end of the model, and it takes over again. One programme over two rounds of the
model gives the cost of the others for every pair of those two layers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardp2p.scheduler.holders import Holder
from shardp2p.scheduler.ring_cells import Costs, Delay, Hops, Indices, active_in
from shardp2p.vocabulary import LayerRange, PeerId

NEAREST_PER_LAYER = 6
"""Holders of each layer that a newcomer considers: those that cost least in hops from it and in computing."""


def considered(layers: int, peer: PeerId, holders: Sequence[Holder], delay: Delay) -> list[Holder]:
    """Of each layer's holders the few with which a newcomer at `peer` would most likely form a ring."""
    cells = [LayerRange(layer, layer + 1) for layer in range(layers)]
    near: dict[PeerId, float] = {}
    for holder in holders:
        if holder.peer_id not in near:
            near[holder.peer_id] = delay(peer, holder.peer_id) + delay(holder.peer_id, peer)
    cost = np.array([near[holder.peer_id] + holder.layer_s * len(holder.layers) for holder in holders])
    speed = np.array([holder.layer_s for holder in holders])
    chosen: set[int] = set()
    for active in active_in(cells, holders, np.arange(len(holders), dtype=np.intp)):
        for order in (cost, speed):
            chosen.update(int(i) for i in active[np.argsort(order[active], kind="stable")[: NEAREST_PER_LAYER // 2]])
    return [holders[index] for index in sorted(chosen)]


def laps_with(layers: int, peer: PeerId, layer_s: float, holders: Sequence[Holder], delay: Delay) -> Costs:
    """The best lap in which `peer`, a newcomer, runs exactly the layers from `start` to `stop`: at [start, stop].

    Where start > stop it runs the last layers and the first ones. Infinite where start = stop, or where the others lack
    one of the remaining layers.
    """
    around = _others_around(layers, peer, holders, delay)
    edges = np.arange(layers + 1)
    own = edges[None, :] - edges[:, None]
    laps: Costs = np.where(own == 0, np.inf, around + np.where(own > 0, own, own + layers) * layer_s)
    return laps


def best_by_start(laps: Costs, width: int) -> Costs:
    """For each start of `width` layers, on from the last to the first if need be: the best lap through some of them."""
    layers = laps.shape[0] - 1
    if width >= layers:
        return np.array([laps.min()])
    ahead = np.where(np.triu(np.ones_like(laps, dtype=bool)), laps, np.inf)
    best = [ahead[start : start + width, start + 1 : start + width + 1].min() for start in range(layers - width + 1)]
    for start in range(layers - width + 1, layers):
        stop = start + width - layers
        apart = ahead[start:layers, start + 1 :].min(), ahead[:stop, 1 : stop + 1].min()
        best.append(min(*apart, laps[start:layers, 1 : stop + 1].min()))
    return np.array(best)


def _others_around(layers: int, peer: PeerId, holders: Sequence[Holder], delay: Delay) -> Costs:
    """[start, stop]: what the others take from layer `stop` around the end to `start`, hops from and to `peer` too."""
    cells = [LayerRange(layer, layer + 1) for layer in range(layers)]
    active = active_in(cells, holders, np.arange(len(holders), dtype=np.intp))
    speed = np.array([holder.layer_s for holder in holders])
    hops = Hops(holders, delay)
    leave = np.array([delay(peer, holder.peer_id) for holder in holders])
    arrive = np.array([delay(holder.peer_id, peer) for holder in holders])
    around: Costs = np.full((layers + 1, layers + 1), np.inf)
    before: Indices = np.empty(0, dtype=np.intp)
    costs: Costs = np.full((layers + 1, 0), np.inf)
    for position in range(1, 2 * layers - 1):
        # Row `stop` of the costs: it left the newcomer there, and the last layer run is that of this position.
        now = active[position % layers]
        after: Costs = np.full((layers + 1, len(now)), np.inf)
        if len(before) and len(now):
            after = (costs[:, :, None] + hops.between(before, now)[None, :, :]).min(axis=1)
        if position <= layers:
            after[position] = leave[now]
        after = after + speed[now][None, :]
        if len(now):
            # In the second round a row is whole, and over, once it comes to where it left.
            start = (position + 1) % layers
            rows = slice(start + 1, None) if position + 1 >= layers else slice(0, start)
            around[start, rows] = (after[rows] + arrive[now][None, :]).min(axis=1)
        before, costs = now, after
    around[0, layers] = 0.0
    return around
