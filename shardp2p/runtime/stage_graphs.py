"""Which forwards of a block are replayed, and what is kept for it: few rows, of one session or several.

The first forward of so many rows through some layers is recorded, at a block's warm-up those of all its layers. A wide
chunk has enough to compute to keep a device busy, and is run as ever; so is whatever cannot be recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog
from torch import Tensor

from shardp2p.runtime.graph import Graphs
from shardp2p.runtime.packing import Part
from shardp2p.runtime.recording import Recordable, Recording
from shardp2p.vocabulary import LayerRange

log = structlog.get_logger()

WIDTHS: Final = (1, 2, 4, 8, 16, 32)
"""Rows of a recording; what is less is padded."""

MOST_RANGES: Final = 4
"""Of layers that recordings are kept of: a block's own, and what clients cut out of it."""

IDLE_FORWARDS: Final = 1000
"""Of few rows, after which a range of layers that was in none of them gives its place to another."""


@dataclass(slots=True)
class _Kept:
    """The recordings of a range of layers by width; None: these are run as ever. `used` is the latest forward."""

    used: int = 0
    recordings: dict[int, Recording | None] = field(default_factory=dict)


class StageGraphs:
    """The recordings of a block and of its parts."""

    def __init__(self, graphs: Graphs) -> None:
        self._graphs = graphs
        self._forwards = 0
        self._kept: dict[LayerRange, _Kept] = {}

    def run(self, block: Recordable, parts: Sequence[Part]) -> list[Tensor] | None:
        """The hidden [T, H] of each of `parts`, or None: they have to be run as ever. No cache counts the rows yet."""
        count = sum(len(part.rows.parents) for part in parts)
        width = next((one for one in WIDTHS if one >= count), None)
        recordings = None if width is None else self._recordings_of(block.layers)
        if width is None or recordings is None:
            return None
        if width not in recordings:
            recordings[width] = self._record(block, width, parts)
        recording = recordings[width]
        return None if recording is None else recording.run(block.pack(parts), parts)

    def _recordings_of(self, layers: LayerRange) -> dict[int, Recording | None] | None:
        """Those of a range, for which others may have to go; None where there is no room."""
        self._forwards += 1
        if layers not in self._kept and len(self._kept) == MOST_RANGES:
            oldest = min(self._kept, key=lambda one: self._kept[one].used)
            if self._forwards - self._kept[oldest].used <= IDLE_FORWARDS:
                return None
            del self._kept[oldest]
        kept = self._kept.setdefault(layers, _Kept())
        kept.used = self._forwards
        return kept.recordings

    def _record(self, block: Recordable, width: int, parts: Sequence[Part]) -> Recording | None:
        try:
            return Recording(block, width, self._graphs, parts)
        except RuntimeError as error:  # torch's for want of memory too: what is run as ever needs less
            log.info("forward_not_recorded", layers=str(block.layers), width=width, reason=str(error))
            return None
