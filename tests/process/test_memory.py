"""How much a stage process grows by loading its layers: what it says of itself, and what the kernel says of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from shardp2p.lab.local_swarm import StageProcess, local_swarm
from shardp2p.vocabulary import LayerRange
from tests.support.models import smollm2_directory

GROWTH_LIMIT = 1.15
LIBRARY_BYTES = 64_000_000
"""Program code that is read when a model first runs: the same in every stage, however many layers it holds."""


def peak_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_stage_grows_by_little_more_than_its_layers(dtype: str) -> None:
    data_dir = smollm2_directory().parent.parent
    splits = [LayerRange(10, 11), LayerRange(10, 20)]
    async with local_swarm("smollm2", splits, dtype=dtype, threads=1, data_dir=data_dir) as (small, large):  # type: ignore[arg-type]
        assert small.load_growth_bytes <= GROWTH_LIMIT * small.layer_bytes + LIBRARY_BYTES
        more_bytes = large.layer_bytes - small.layer_bytes
        assert more_bytes > 60_000_000
        for measure in (reported, seen):
            grown_bytes = measure(large) - measure(small)
            assert 0.9 * more_bytes <= grown_bytes <= GROWTH_LIMIT * more_bytes, measure.__name__


def reported(stage: StageProcess) -> int:
    """The growth at the peak of loading, in the stage's own words."""
    return stage.load_growth_bytes


def seen(stage: StageProcess) -> int:
    """The highest that the process has been in the kernel's books."""
    return peak_bytes(stage.pid)
