"""Why a peer takes the seats that it claimed, by who else holds their layers. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from shardp2p.scheduler.holders import named
from shardp2p.seating.room import Room
from shardp2p.swarm.life import Seats
from shardp2p.vocabulary import LayerRange
from shardp2p.wire.records import CoverageRecord


def copies(room: Room, seats: Seats, others: Sequence[CoverageRecord]) -> str:
    """`nobody else took them`, `a second copy`, or which of the layers are which. `others` have no record of ours."""
    alone: list[LayerRange] = []
    shared: list[LayerRange] = []
    held_by: list[int] = []
    for seat in seats:
        by_layer = room.held(seat.digest, others)
        for layer in range(seat.layers.start, seat.layers.stop):
            parts = shared if by_layer[layer] else alone
            if parts and parts[-1].stop == layer:
                parts[-1] = LayerRange(parts[-1].start, layer + 1)
            else:
                parts.append(LayerRange(layer, layer + 1))
            held_by += [by_layer[layer]] if by_layer[layer] else []
    if not shared:
        return "nobody else took them"
    copy = "a second copy" if min(held_by) == 1 else f"one more copy beside {min(held_by)}"
    return f"nobody else took {named(alone)}; {copy} of {named(shared)}" if alone else copy
