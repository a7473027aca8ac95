"""What peers could hold of a model, as far as their records tell: the machines that a plan is made of. Pure.

Records do not say what a layer takes with its caches; that is read from how full the peers are that hold some.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from shardp2p.scheduler.coverage import SeenModel
from shardp2p.scheduler.holders import UNMEASURED_LAYER_S
from shardp2p.scheduler.topology import Machine, ModelShape
from shardp2p.vocabulary import PeerId
from shardp2p.wire.records import CoverageRecord, HeldLayers


def shape_of(model: SeenModel, records: Iterable[CoverageRecord]) -> ModelShape:
    """The model as a planner sees it; `layer_bytes` is the median over its holders, `hidden_bytes` is not known."""
    weights = [held.layer_bytes / len(held.layers) for _, held in _holdings(model, records)]
    return ModelShape(model.name, model.digest, model.layers, round(median(weights)) if weights else 1, 0)


def machines_of(model: SeenModel, records: Sequence[CoverageRecord], reserved: float) -> tuple[Machine, ...]:
    """Every peer with the layers it holds of `model` or has free memory for, and how fast it is.

    `reserved` is the share of its memory that a peer keeps free. One that measured no layer of this model yet counts as
    fast as the median of those that did.
    """
    holdings = list(_holdings(model, records))
    room_bytes = _room_bytes(model, holdings, reserved)
    speeds = [held.decode_layer_s for _, held in holdings if held.decode_layer_s]
    usual_s = median(speeds) if speeds else UNMEASURED_LAYER_S
    measured: dict[PeerId, float] = {}
    for record, held in holdings:
        if held.decode_layer_s:
            measured[record.peer_id] = max(held.decode_layer_s, measured.get(record.peer_id, 0.0))
    return tuple(
        Machine(
            record.peer_id,
            min(model.layers, _held_layers(model, record) + int(record.free_memory_bytes // room_bytes)),
            measured.get(record.peer_id, usual_s),
            record.region,
        )
        for record in records
    )


def _holdings(model: SeenModel, records: Iterable[CoverageRecord]) -> Iterable[tuple[CoverageRecord, HeldLayers]]:
    return (
        (record, held)
        for record in records
        for held in record.held
        if held.model_digest == model.digest and held.model_layers == model.layers
    )


def _room_bytes(model: SeenModel, holdings: Sequence[tuple[CoverageRecord, HeldLayers]], reserved: float) -> float:
    """What one layer takes with its caches: the median over peers that hold this model alone; else its weights."""
    rooms = []
    for record, held in holdings:
        used_bytes = record.memory_bytes * (1 - reserved) - record.free_memory_bytes
        if len(record.held) == 1 and used_bytes > held.layer_bytes:
            rooms.append(used_bytes / len(held.layers))
    if rooms:
        return median(rooms)
    return float(max(1, shape_of(model, [record for record, _ in holdings]).layer_bytes))


def _held_layers(model: SeenModel, record: CoverageRecord) -> int:
    return len(
        {layer for _, held in _holdings(model, [record]) for layer in range(held.layers.start, held.layers.stop)}
    )
