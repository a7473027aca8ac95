"""Who holds which layers of one model, as live records say it, and what that leaves missing. Pure.

A peer that holds several ranges appears once for each. Everything that places, routes or repairs starts from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from shardp2p.vocabulary import DType, LayerRange, PeerId
from shardp2p.wire.records import CoverageRecord, Reachability

HolderState = Literal["placing", "loading", "serving", "draining"]
"""placing: chosen, and may still give way; loading: on its way; serving; draining: takes no new request."""

UNMEASURED_LAYER_S = 0.05
"""A layer whose time nobody measured: slow, so that a measured peer is preferred."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A range of layers of the model at hand on one peer; `layer_s` is what one layer takes for a chunk."""

    peer_id: PeerId
    layers: LayerRange
    layer_s: float = UNMEASURED_LAYER_S
    state: HolderState = "serving"
    cache_rows: int = 0
    free_cache_rows: int = 0
    context_tokens: int = 0
    dtype: DType = "float32"
    addresses: tuple[str, ...] = ()
    reachability: Reachability = "unknown"

    @property
    def is_coming(self) -> bool:
        """Whether it serves, or will soon if all goes well."""
        return self.state != "draining"


def holders_of(digest: str, records: Iterable[CoverageRecord]) -> tuple[Holder, ...]:
    """What `records` say of the model of that manifest digest, in the order of peer ids and layers."""
    found = [
        Holder(
            peer_id=record.peer_id,
            layers=held.layers,
            layer_s=held.decode_layer_s or UNMEASURED_LAYER_S,
            state=state_of(record, held.state),
            cache_rows=held.cache_rows,
            free_cache_rows=held.free_cache_rows,
            context_tokens=held.context_tokens,
            dtype=held.dtype,
            addresses=record.addresses,
            reachability=record.reachability,
        )
        for record in records
        if not record.is_departure
        for held in record.held
        if held.model_digest == digest
    ]
    return tuple(sorted(found, key=lambda holder: (holder.peer_id, holder.layers)))


def state_of(record: CoverageRecord, held: str) -> HolderState:
    """What a peer does with layers of which its record says `held`."""
    if record.state == "draining" or held == "draining":
        return "draining"
    if held == "serving":
        return "serving"
    return "placing" if record.state == "placing" else "loading"


def counts(layers: int, ranges: Iterable[LayerRange]) -> list[int]:
    """How many of `ranges` hold each layer of 0:layers."""
    steps = [0] * (layers + 1)
    for held in ranges:
        if held.start < layers:
            steps[held.start] += 1
            steps[min(held.stop, layers)] -= 1
    held_by, at = [], 0
    for step in steps[:layers]:
        at += step
        held_by.append(at)
    return held_by


def missing_ranges(layers: int, ranges: Iterable[LayerRange]) -> tuple[LayerRange, ...]:
    """The parts of 0:layers that none of `ranges` holds. Takes time in the number of ranges alone."""
    gaps, covered = [], 0
    for held in sorted(ranges):
        if held.start >= layers:
            break
        if held.start > covered:
            gaps.append(LayerRange(covered, held.start))
        covered = max(covered, held.stop)
    if covered < layers:
        gaps.append(LayerRange(covered, layers))
    return tuple(gaps)


def as_ranges(layers: Iterable[int]) -> tuple[LayerRange, ...]:
    """The fewest ranges that hold exactly these layers."""
    ranges: list[LayerRange] = []
    for layer in sorted(set(layers)):
        if ranges and ranges[-1].stop == layer:
            ranges[-1] = LayerRange(ranges[-1].start, layer + 1)
        else:
            ranges.append(LayerRange(layer, layer + 1))
    return tuple(ranges)


def named(ranges: Sequence[LayerRange]) -> str:
    """Ranges as a sentence has them: `0:4, 6:8 and 9:10`."""
    words = [str(layers) for layers in ranges]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
