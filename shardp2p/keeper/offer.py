"""What a peer offers to its swarm."""

from __future__ import annotations

from dataclasses import dataclass

from shardp2p.runtime.budget import Budget
from shardp2p.seating import Offered
from shardp2p.vocabulary import DType, LayerRange


@dataclass(frozen=True, slots=True)
class Offer:
    """What a peer offers to the swarm. `pinned` are the layers that its user chose; None leaves them to the swarm."""

    models: tuple[Offered, ...]
    budget: Budget
    dtype: DType
    device: str
    threads: int = 0
    region: str = ""
    pinned: LayerRange | None = None
    fast_layout: bool = False
