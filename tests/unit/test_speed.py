"""Measuring a block: exact by a clock that the block itself drives, in bounded time, and sane on a real block."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from shardp2p.runtime.block import Block
from shardp2p.runtime.cache import LayerShape, RowBatch, RowCache
from shardp2p.runtime.load import load_block
from shardp2p.runtime.speed import MAX_ROWS, measure_speed
from shardp2p.vocabulary import LayerRange
from tests.support.models import tiny_llama


@dataclass
class Paced:
    """A block whose chunk of n rows takes start_s + n × row_s for each layer, by its own clock."""

    layers: LayerRange
    start_s: float
    row_s: float
    is_last: bool = False
    context_tokens: int = 10_000
    is_first: bool = True
    hidden_size: int = 4
    vocab_size: int = 7
    dtype: torch.dtype = torch.float32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    now: float = 0.0
    widths: list[int] = field(default_factory=list)

    def new_cache(self, rows: int) -> RowCache:
        return RowCache([LayerShape((1, 2), (1, 2))], rows, self.dtype, self.device, 0)

    def forward(self, inputs: Any, cache: RowCache, batch: RowBatch) -> torch.Tensor:
        assert len(inputs) == len(batch.parents)
        cache.begin(batch)
        cache.commit(batch)
        self.widths.append(len(inputs))
        self.now += len(self.layers) * (self.start_s + len(inputs) * self.row_s)
        return torch.zeros(len(inputs), self.hidden_size)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        assert len(hidden) == 1
        return torch.zeros(1, self.vocab_size)


def measure(block: Paced, budget_s: float = 1.0) -> tuple[float, float]:
    speed = measure_speed(cast(Block, block), budget_s=budget_s, clock=lambda: block.now)
    return speed.decode_layer_s, speed.prefill_layer_s


@pytest.mark.parametrize("is_last", [False, True])
def test_a_fast_block_is_measured_with_wide_chunks(is_last: bool) -> None:
    block = Paced(LayerRange(0, 5), 0.0002, 0.00001, is_last=is_last)
    decode, prefill = measure(block)
    assert decode == pytest.approx(0.00021)
    assert prefill == pytest.approx(0.0002 / MAX_ROWS + 0.00001)
    assert max(block.widths) == MAX_ROWS
    assert block.now < 1.0


@pytest.mark.parametrize("row_s", [0.0001, 0.001, 0.01, 0.1])
def test_the_time_is_bounded_however_slow_the_block_is(row_s: float) -> None:
    block = Paced(LayerRange(0, 3), 3 * row_s, row_s)
    decode, prefill = measure(block)
    assert decode == pytest.approx(4 * row_s)
    assert row_s < prefill <= row_s * (1 + 3 / 16 + 1e-9)
    slowest_s = 3 * (3 + max(block.widths)) * row_s
    assert block.now <= 1.0 + 3 * slowest_s


def test_a_short_context_is_not_exceeded() -> None:
    block = Paced(LayerRange(0, 1), 0.001, 0.001, context_tokens=12)
    decode, prefill = measure(block)
    assert decode == pytest.approx(0.002)
    assert prefill == pytest.approx(0.001 / max(block.widths) + 0.001)


def test_a_clock_that_stands_still_gives_a_speed_all_the_same() -> None:
    decode, prefill = measure(Paced(LayerRange(0, 2), 0.0, 0.0))
    assert 0 < decode < 1e-6
    assert 0 < prefill < 1e-6


@pytest.mark.parametrize("text", ["0:2", "1:3", "2:4"])
def test_a_real_block_has_a_speed(text: str, tmp_path: Path) -> None:
    block = load_block(tiny_llama(tmp_path / "model", layers=4), LayerRange.parse(text), dtype="float32")
    block.warm_up()
    speed = measure_speed(block, budget_s=0.05)
    assert 0 < speed.decode_layer_s < math.inf
    assert 0 < speed.prefill_layer_s < 100 * speed.decode_layer_s
