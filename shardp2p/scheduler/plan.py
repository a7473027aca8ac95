"""A plan: which peers run which layers of a model for a request, in ring order. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from shardp2p.errors import LocalProtocolError
from shardp2p.vocabulary import DType, LayerRange, ModelId, PeerId


@dataclass(frozen=True, slots=True)
class Stage:
    """A peer and the layers that it runs. `addresses` are multiaddrs at which it can be dialled, best first."""

    peer_id: PeerId
    layers: LayerRange
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """The stages of a ring, covering the model's layers from first to last without gap or overlap."""

    model: ModelId
    model_digest: str
    dtype: DType
    context_tokens: int
    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        at = 0
        for stage in self.stages:
            if stage.layers.start != at:
                raise LocalProtocolError(f"a plan with a gap or an overlap at layer {at}")
            at = stage.layers.stop

    def describe(self, peer: PeerId) -> str:
        """How an error calls a peer of the ring: its place and its layers."""
        for number, stage in enumerate(self.stages, 1):
            if stage.peer_id == peer:
                return f"stage {number} of {len(self.stages)} (layers {stage.layers}, peer {peer})"
        return f"peer {peer}"
