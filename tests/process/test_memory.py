"""How much a stage process grows by loading its layers, at the peak: in its own words, checked with the kernel's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from shardp2p.lab.local_swarm import even_splits, local_swarm
from shardp2p.vocabulary import DType
from tests.support.models import smollm2_directory

GROWTH_LIMIT = 1.15
SPREAD_BYTES = 40_000_000
"""By how much the peaks of two stages may differ beside what they say of their growth: the program is the same."""


def peak_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_stage_grows_by_little_more_than_its_layers(dtype: DType) -> None:
    data_dir = smollm2_directory().parent.parent
    splits = even_splits(30, 3)
    async with local_swarm("smollm2", splits, dtype=dtype, threads=1, data_dir=data_dir, are_forked=False) as stages:
        for stage in stages:
            assert stage.layer_bytes <= stage.load_growth_bytes <= GROWTH_LIMIT * stage.layer_bytes
        # The growth is each process's own claim: what the kernel's books say beside it must be the same for all.
        programs = [peak_bytes(stage.pid) - stage.load_growth_bytes for stage in stages]
        assert max(programs) - min(programs) <= SPREAD_BYTES
