"""On a CUDA device: what is captured and replayed gives what is computed, and takes memory once."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from shardp2p.runtime import static_rows
from shardp2p.runtime.block import Block
from shardp2p.runtime.cache import RowBatch
from shardp2p.runtime.graph import CudaGraphs
from shardp2p.runtime.load import load_block
from shardp2p.runtime.stage_graphs import WIDTHS
from shardp2p.runtime.static_rows import StaticRows
from shardp2p.vocabulary import DType, LayerRange
from tests.support.checkpoints import VOCABULARY, make_checkpoint

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device, and torch sees none here", allow_module_level=True)

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
LAYERS = LayerRange(0, 3)
ARCHITECTURES = ("llama", "gemma3_text", "gpt_oss", "qwen3_moe")
TOLERANCE: dict[DType, float] = {"float32": 1e-4, "bfloat16": 0.05}
"""Of the largest value: what kernels for another width may round otherwise."""


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: make_checkpoint(name, tmp_path_factory.mktemp(name), layers=3) for name in ARCHITECTURES}


def blocks(directory: Path, dtype: DType) -> tuple[Block, Block]:
    """The layers as they are computed, and as they are replayed."""
    plain, replayed = (load_block(directory, LAYERS, dtype=dtype, device=DEVICE) for _ in range(2))
    plain.replay_few_rows(None)
    return plain, replayed


def tokens(count: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, VOCABULARY) for _ in range(count)]


def assert_close(one: Tensor, other: Tensor, tolerance: float) -> None:
    assert (one - other).abs().max() <= tolerance * one.abs().max()


def recorded(block: Block) -> dict[int, bool]:
    """Which widths are replayed."""
    assert block._graphs is not None
    return {
        width: recording is not None
        for kept in block._graphs._kept.values()
        for width, recording in kept.recordings.items()
    }


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_width_is_replayed_and_gives_what_is_computed(
    architecture: str, dtype: DType, directories: dict[str, Path]
) -> None:
    pair = blocks(directories[architecture], dtype)
    pair[1].warm_up()
    assert recorded(pair[1]) == dict.fromkeys(WIDTHS, True)
    caches = [block.new_cache(256) for block in pair]
    for count in (20, *WIDTHS, *(width - 1 for width in WIDTHS[2:])):
        ids, rows = tokens(count, seed=count), RowBatch.chain(caches[0].rows, count)
        hidden = [
            block.forward(block.token_inputs(ids), cache, rows) for block, cache in zip(pair, caches, strict=True)
        ]
        assert_close(hidden[0], hidden[1], TOLERANCE[dtype])
    tree = RowBatch((5, 5, 6, caches[0].rows), (6, 6, 7, 7))
    hidden = [
        block.forward(block.token_inputs(tokens(4)), cache, tree) for block, cache in zip(pair, caches, strict=True)
    ]
    assert_close(hidden[0], hidden[1], TOLERANCE[dtype])


def test_answers_are_those_of_the_cpu(directories: dict[str, Path]) -> None:
    _, replayed = blocks(directories["llama"], "float32")
    texts = []
    for block in (load_block(directories["llama"], LAYERS, dtype="float32"), replayed):
        text, cache = tokens(9), block.new_cache(64)
        fresh: Sequence[int] = text
        while len(text) < 50:
            rows = RowBatch.chain(cache.rows, len(fresh))
            hidden = block.forward(block.token_inputs(fresh), cache, rows)
            fresh = [int(block.logits(hidden[-1:]).argmax())]
            text.extend(fresh)
        texts.append(text)
    assert texts[0] == texts[1]


def test_sessions_are_replayed_together(directories: dict[str, Path]) -> None:
    results = []
    for block in blocks(directories["llama"], "float32"):
        caches = [block.new_cache(64), block.new_cache(32)]
        for number, cache in enumerate(caches):
            block.forward(block.token_inputs(tokens(9 + number)), cache, RowBatch.chain(0, 9 + number))
        given = ((caches[0], 3), (caches[1], 1))
        parts = [
            block.prepare(block.token_inputs(tokens(count, 1)), cache, RowBatch.chain(cache.rows, count))
            for cache, count in given
        ]
        results.append(block.forward_many(parts))
    for one, other in zip(*results, strict=True):
        assert_close(one, other, TOLERANCE["float32"])


def test_memory_does_not_grow_with_sessions_or_ranges_of_layers(directories: dict[str, Path]) -> None:
    _, block = blocks(directories["llama"], "bfloat16")
    block.reserve(block.row_bytes * 200)
    block.warm_up()

    def serve(one: Block, rows: int) -> None:
        cache = one.new_cache(rows)
        for count in (7, 1, 1):
            one.forward(one.new_inputs(count), cache, RowBatch.chain(cache.rows, count))
        cache.close()

    ranges = [LayerRange.parse(text) for text in ("0:1", "0:2", "1:2", "1:3", "2:3")]
    for layers in ranges:
        serve(block.part(layers), 64)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for number in range(60):
        serve(block, 20 + number)
        serve(block.part(ranges[number % len(ranges)]), 20 + number)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before


def test_a_block_that_is_dropped_gives_its_memory_back(directories: dict[str, Path]) -> None:
    def allocated_after_use() -> int:
        block = load_block(directories["llama"], LAYERS, dtype="float32", device=DEVICE)
        block.warm_up()
        del block
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    first = allocated_after_use()
    assert allocated_after_use() <= first


def test_what_other_threads_ask_of_the_device_meanwhile_spoils_no_capture(directories: dict[str, Path]) -> None:
    import threading

    ends, failures = threading.Event(), []

    def allocate() -> None:
        try:
            while not ends.is_set():
                torch.zeros(random.randrange(1, 2**22), device=DEVICE).sum().item()
        except RuntimeError as error:
            failures.append(error)

    thread = threading.Thread(target=allocate, daemon=True)
    thread.start()
    try:
        _, block = blocks(directories["llama"], "bfloat16")
        block.warm_up()
    finally:
        ends.set()
        thread.join()
    assert failures == []
    assert recorded(block) == dict.fromkeys(WIDTHS, True)


def test_after_a_capture_that_failed_the_device_computes_and_others_capture() -> None:
    graphs, values = CudaGraphs(torch.device(DEVICE)), torch.ones(4, device=DEVICE)
    with graphs.aside():
        graph = graphs.new()
        graph.begin()
        with pytest.raises(RuntimeError):
            values.sum().item()
        with pytest.raises(RuntimeError):
            graph.end()
    assert values.sum().item() == 4
    with graphs.aside(), pytest.raises(RuntimeError, match="failed before"):
        graphs.new()
    others = CudaGraphs(torch.device(DEVICE))
    with others.aside():
        again = others.new()
        again.begin()
        doubled = values * 2
        again.end()
    again.replay()
    assert doubled.sum().item() == 8


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("width", static_rows.WIDTHS)
def test_a_draft_models_replays_equal_its_forwards(width: int, dtype: DType, directories: dict[str, Path]) -> None:
    block = load_block(directories["gemma3_text"], LAYERS, dtype=dtype, device=DEVICE)
    capacity, count = 128, max(1, width - 1)
    captured, computed = (StaticRows(block, capacity, captures=captures) for captures in (True, False))
    for step in range(3):
        at = range(step * count, (step + 1) * count)
        seen = np.roll(np.tri(capacity, dtype=np.bool_), 1, axis=1)[[position % capacity for position in at]]
        seen[:, 0] = False
        mask = dict.fromkeys(block.windows, seen)
        places = [1 + position % (capacity - 1) for position in at]
        ids = tokens(count, seed=step)
        hidden = [rows.forward(ids, list(at), places, mask, width=width).clone() for rows in (captured, computed)]
        assert torch.equal(hidden[0], hidden[1])
