"""Prints what a block's forwards of few rows take on a CUDA device, computed and replayed, and what recordings cost.

    python scripts/time_graphs.py [DIRECTORY] [--layers 0:10] [--dtype bfloat16] [--before 512]

DIRECTORY is a Hugging Face model, by default the demo model. Milliseconds are medians of --runs single forwards, the
two ways in turn, each until the device is done.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

import platformdirs
import torch

from shardp2p.runtime.block import Block
from shardp2p.runtime.cache import RowBatch, RowCache
from shardp2p.runtime.load import load_block
from shardp2p.runtime.stage_graphs import WIDTHS
from shardp2p.vocabulary import LayerRange
from shardp2p.weights.store import ModelStore


def run_s(block: Block, cache: RowCache, before: int, rows: int) -> float:
    """Seconds for `rows` rows after `before` others."""
    cache.truncate(before)
    inputs = block.new_inputs(rows)
    torch.cuda.synchronize()
    started = perf_counter()
    block.forward(inputs, cache, RowBatch.chain(before, rows))
    torch.cuda.synchronize()
    return perf_counter() - started


def main() -> int:
    """Exit code 3 where there is no device."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", nargs="?", type=Path)
    parser.add_argument("--layers", type=LayerRange.parse, default=LayerRange(10, 20))
    parser.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], default="bfloat16")
    parser.add_argument("--before", type=int, default=512, help="cache rows that are there already")
    parser.add_argument("--runs", type=int, default=50)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        print("needs a CUDA device, and torch sees none here", file=sys.stderr)
        return 3
    store = ModelStore(platformdirs.user_data_path("shardp2p") / "models")
    directory = given.directory or store.resolve("smollm2").directory
    plain, replayed = (load_block(directory, given.layers, dtype=given.dtype, device="cuda") for _ in range(2))
    plain.replay_few_rows(None)
    plain.warm_up()
    torch.cuda.synchronize()
    free, started = torch.cuda.mem_get_info()[0], perf_counter()
    replayed.warm_up()
    torch.cuda.synchronize()
    took_s, taken = perf_counter() - started, free - torch.cuda.mem_get_info()[0]
    print(f"{torch.cuda.get_device_name()}, {directory.name}, layers {given.layers}, {given.dtype}")
    print(f"{len(WIDTHS)} recordings in {took_s:.2f} s, {taken / 2**20:.0f} MiB of the device\n")
    print(f"{'rows':>4}  {'computed':>9}  {'replayed':>9}  {'times':>5}")
    caches = [block.new_cache(given.before + WIDTHS[-1]) for block in (plain, replayed)]
    for block, cache in zip((plain, replayed), caches, strict=True):
        block.forward(block.new_inputs(given.before), cache, RowBatch.chain(0, given.before))
    for rows in WIDTHS:
        ways = list(zip((plain, replayed), caches, strict=True))
        taken_s = [[run_s(block, cache, given.before, rows) for block, cache in ways] for _ in range(given.runs)]
        computed_ms, replayed_ms = (1000 * median(one[way] for one in taken_s) for way in range(2))
        print(f"{rows:>4}  {computed_ms:>6.2f} ms  {replayed_ms:>6.2f} ms  {computed_ms / replayed_ms:>5.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
