"""A model that the peer could serve. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from shardp2p.scheduler.topology import ModelShape
from shardp2p.weights.footprint import Footprint
from shardp2p.weights.store import StoredModel


@dataclass(frozen=True, slots=True)
class Offered:
    """A model that the peer could serve: where its bytes are, and what its layers take."""

    stored: StoredModel
    footprint: Footprint

    @property
    def shape(self) -> ModelShape:
        """The model as the scheduler sees it."""
        manifest = self.stored.manifest
        layer_bytes = max(self.footprint.layer_bytes)
        return ModelShape(self.stored.name, manifest.digest, manifest.layers, layer_bytes, 2 * manifest.hidden_size)
