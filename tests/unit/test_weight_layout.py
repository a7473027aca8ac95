"""Weights that are laid out for a CPU's products take no more memory, and give what they gave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shardp2p.runtime import weight_layout
from shardp2p.runtime.block import Block
from shardp2p.runtime.cache import RowBatch
from shardp2p.runtime.load import load_block
from shardp2p.runtime.weight_layout import WeightLayout
from shardp2p.vocabulary import DType, LayerRange
from tests.support.models import tiny_llama

ALL = LayerRange(0, 3)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights just large enough, and a head that is the embedding."""
    return tiny_llama(tmp_path_factory.mktemp("wide"), layers=3, hidden=256)


def blocks(
    directory: Path, layers: LayerRange, dtype: DType, monkeypatch: pytest.MonkeyPatch, **options: bool
) -> tuple[Block, Block]:
    """As read, and laid out."""
    with monkeypatch.context() as patch:
        patch.setattr(WeightLayout, "lay_out", lambda *_: None)
        plain = load_block(directory, layers, dtype=dtype)
    return plain, load_block(directory, layers, dtype=dtype, **options)


def logits(block: Block, counts: tuple[int, ...]) -> list[Tensor]:
    """Of chunks of so many rows, one after the other."""
    cache, results = block.new_cache(sum(counts)), []
    for count in counts:
        ids = [(7 * at + count) % 250 + 3 for at in range(count)]
        inputs = block.token_inputs(ids)
        if not block.is_first:
            inputs = torch.linspace(-1, 1, 256 * count).view(count, 256).to(block.dtype)
        hidden = block.forward(inputs, cache, RowBatch.chain(cache.rows, count))
        results.append(block.logits(hidden) if block.is_last else hidden)
    return results


def laid_out(block: Any) -> int:
    """How many of the layers' weights are."""
    return sum(one.weight.is_meta for layer in block._inner.layers for one in layer.modules() if hasattr(one, "weight"))


@pytest.mark.parametrize("text", ["0:3", "0:2", "1:3"])
def test_bfloat16_results_are_equal_in_every_bit(text: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, ours = blocks(directory, LayerRange.parse(text), "bfloat16", monkeypatch, fast_layout=True)
    counts = (40, 1, 1, 2, 3, 5, 8, 13, 64)
    assert all(map(torch.equal, logits(plain, counts), logits(ours, counts)))
    part = LayerRange(1, 2)
    assert all(map(torch.equal, logits(plain.part(part), counts), logits(ours.part(part), counts)))
    assert laid_out(plain) == 0
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        assert laid_out(ours) > 0


def test_float32_stays_as_it_is_unless_that_is_asked_for(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, ours = blocks(directory, ALL, "float32", monkeypatch)
    assert laid_out(ours) == 0
    assert all(map(torch.equal, logits(plain, (9, 1)), logits(ours, (9, 1))))


def test_float32_that_may_round_gives_the_same_choices(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_layout, "_is_faster", lambda *_: True)
    plain, ours = blocks(directory, ALL, "float32", monkeypatch, fast_layout=True)
    assert laid_out(ours) > 0
    counts = (40, 1, 1, 3, 8)
    for one, other in zip(logits(plain, counts), logits(ours, counts), strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=4e-5 * float(one.abs().max()))
        assert torch.equal(one.argmax(-1), other.argmax(-1))


def test_float32_that_gains_nothing_stays_as_it_is(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_layout, "_is_faster", lambda *_: False)
    plain, ours = blocks(directory, ALL, "float32", monkeypatch, fast_layout=True)
    assert laid_out(ours) == 0
    assert all(map(torch.equal, logits(plain, (9, 1)), logits(ours, (9, 1))))


def test_a_layout_that_changes_a_bit_or_has_no_kernel_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Linear(256, 256, dtype=torch.bfloat16)
    inputs = torch.ones((1, 3, 256), dtype=torch.bfloat16)
    with torch.inference_mode():
        expected = module(inputs)

    def inexact(weight: Tensor) -> Any:
        return lambda given, bias: nn.functional.linear(given, weight, bias) + 1

    def without_kernel(_: Tensor) -> Any:
        raise RuntimeError("mkldnn_linear: mkldnn bf16 path needs another cpu")

    for product in (inexact, without_kernel):
        monkeypatch.setattr(weight_layout, "_product", product)
        WeightLayout(torch.bfloat16).lay_out(module)
        with torch.inference_mode():
            assert torch.equal(module(inputs), expected)
        assert not module.weight.is_meta


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_bias_that_is_read_after_the_weight_is_added(has_bias: bool) -> None:
    module, plain = (nn.Linear(256, 512, bias=has_bias, dtype=torch.bfloat16) for _ in range(2))
    plain.load_state_dict(module.state_dict())
    bias, module.bias = module.bias, None
    WeightLayout(torch.bfloat16).lay_out(module)
    module.bias = bias
    inputs = torch.linspace(-1, 1, 5 * 256).view(1, 5, 256).to(torch.bfloat16)
    with torch.inference_mode():
        assert torch.equal(module(inputs), plain(inputs))


def test_a_head_stays_as_it_is_since_it_may_be_the_embedding_too(directory: Path) -> None:
    block = load_block(directory, ALL, dtype="bfloat16", fast_layout=True)
    assert block._head is not None
    assert not block._head.lm_head.weight.is_meta  # type: ignore[union-attr]
