"""How much a process grows by loading a block: its layers, and little besides, at the peak too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.checkpoints import make_checkpoint
from tests.support.models import smollm2_directory

GROWTH_LIMIT = 1.15

CHILD = """
import json, sys
from pathlib import Path
import torch
from shardp2p.runtime.load import load_block
from shardp2p.vocabulary import LayerRange

def status_bytes(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1]) * 1024

torch.set_num_threads(1)
tiny, directory, layers, dtype = sys.argv[1:]
# The code of the libraries is paged in by a tiny model; what follows is the weights' own.
load_block(Path(tiny), LayerRange(0, 2), dtype=dtype).warm_up()
Path("/proc/self/clear_refs").write_text("5")
before = status_bytes("VmRSS")
block = load_block(Path(directory), LayerRange.parse(layers), dtype=dtype)
peak, after = status_bytes("VmHWM") - before, status_bytes("VmRSS") - before
cache = block.new_cache(2000)
with_cache = status_bytes("VmRSS") - before - after
print(json.dumps({"layer_bytes": block.layer_bytes, "peak": peak, "cache_bytes": cache.bytes, "cache": with_cache}))
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("llama", tmp_path_factory.mktemp("tiny"), layers=2)


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
@pytest.mark.parametrize(
    ("layers", "dtype"), [("0:15", "float32"), ("10:20", "bfloat16"), ("20:30", "bfloat16")], ids=lambda value: value
)
def test_loading_grows_the_process_by_little_more_than_the_layers(tiny: Path, layers: str, dtype: str) -> None:
    command = [sys.executable, "-c", CHILD, str(tiny), str(smollm2_directory()), layers, dtype]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    measured = json.loads(output)
    assert measured["layer_bytes"] > 70_000_000
    assert 0.95 * measured["layer_bytes"] <= measured["peak"] <= GROWTH_LIMIT * measured["layer_bytes"]
    # The cache is really there from the start, not handed out page by page later.
    assert 0.9 * measured["cache_bytes"] <= measured["cache"] <= 1.1 * measured["cache_bytes"] + 1_000_000
