"""Layers brought up to serve: loaded, the memory of their caches taken, and measured. On the device's thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shardp2p.runtime.block import Block
from shardp2p.runtime.load import load_block
from shardp2p.runtime.memory import PeakGrowth
from shardp2p.runtime.prepare import prepare
from shardp2p.runtime.speed import measure_speed
from shardp2p.vocabulary import DType, LayerRange, LayerSpeed

SPEED_S: Final = 0.3
"""How long the speed of new layers is measured before they serve."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A block that can serve, by how much the process grew for it at the peak (caches aside), and how fast it is."""

    block: Block
    growth_bytes: int
    speed: LayerSpeed


def bring_up(
    directory: Path,
    layers: LayerRange,
    *,
    dtype: DType,
    device: str,
    digests: Mapping[str, str],
    cache_bytes: int,
    progress: Callable[[int, int], None],
    fast_layout: bool = False,
) -> Ready:
    """Layers of the model in `directory`, with `cache_bytes` for the caches of all sessions. Raises: as load_block."""
    prepare(directory, dtype, device)
    growth = PeakGrowth()
    block = load_block(
        directory, layers, dtype=dtype, device=device, digests=digests, progress=progress, fast_layout=fast_layout
    )
    block.warm_up()
    growth_bytes = growth.growth_bytes()
    block.reserve(cache_bytes)
    return Ready(block, growth_bytes, measure_speed(block, budget_s=SPEED_S))
