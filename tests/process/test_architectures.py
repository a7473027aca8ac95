"""Every architecture in three blocks: the chain is the whole model, bit for bit; trees are as plain forwards."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.utils import logging

from shardp2p.errors import LocalProtocolError
from shardp2p.runtime.block import Block
from shardp2p.runtime.cache import RowBatch
from shardp2p.runtime.load import load_block
from shardp2p.vocabulary import DType, LayerRange
from shardp2p.wire.tensor import TORCH_DTYPES
from tests.support.checkpoints import ARCHITECTURES, VOCABULARY, WINDOW, make_checkpoint

SPLIT = ("0:2", "2:3", "3:6")
CUTS = (slice(0, 4), slice(4, 6))


class Chain:
    """Blocks one after the other, each with its own cache."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.blocks = blocks
        self.clear()

    @classmethod
    def load(cls, directory: Path, dtype: DType) -> Chain:
        return cls([load_block(directory, LayerRange.parse(text), dtype=dtype) for text in SPLIT])

    def clear(self) -> None:
        self.caches = [block.new_cache(96) for block in self.blocks]

    def run(self, tokens: Sequence[int], rows: RowBatch) -> torch.Tensor:
        hidden = torch.tensor(tokens)
        for block, cache in zip(self.blocks, self.caches, strict=True):
            hidden = block.forward(hidden, cache, rows)
        return self.blocks[-1].logits(hidden)


def whole_model(directory: Path, dtype: DType) -> Any:
    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=TORCH_DTYPES[dtype]).eval()
    for parameter in model.parameters():
        # transformers leaves mapped tensors where they lie in the file; an odd address changes how kernels round.
        parameter.data = parameter.data.clone()
    return model


@pytest.fixture(scope="module", params=ARCHITECTURES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def float32_models(checkpoint: Path) -> tuple[Any, Chain]:
    return whole_model(checkpoint, "float32"), Chain.load(checkpoint, "float32")


def test_chain_of_blocks_equals_the_whole_model_bit_for_bit(float32_models: tuple[Any, Chain]) -> None:
    _assert_equal_steps(*float32_models)


def test_chain_of_blocks_equals_the_whole_model_bit_for_bit_in_bfloat16(checkpoint: Path) -> None:
    _assert_equal_steps(whole_model(checkpoint, "bfloat16"), Chain.load(checkpoint, "bfloat16"))


def test_parts_of_overlapping_blocks_equal_the_whole_model_bit_for_bit(
    float32_models: tuple[Any, Chain], checkpoint: Path
) -> None:
    """Cut from the start, the middle and the end of what is held; the blocks themselves still run as before."""
    whole, chain = float32_models
    front, back = (load_block(checkpoint, LayerRange.parse(text), dtype="float32") for text in ("0:5", "1:6"))
    cuts = ((front, "0:1"), (front, "1:3"), (back, "3:4"), (back, "4:6"))
    _assert_equal_steps(whole, Chain([block.part(LayerRange.parse(text)) for block, text in cuts]))
    everything = load_block(checkpoint, LayerRange(0, 6), dtype="float32")
    ends = [everything.part(LayerRange(0, 4)), everything.part(LayerRange(4, 6))]
    assert [part.row_bytes for part in ends] == [sum(everything.layer_row_bytes[cut]) for cut in CUTS]
    _assert_equal_steps(whole, Chain(ends))
    _assert_equal_steps(whole, Chain([everything]))
    _assert_equal_steps(whole, chain)


def test_a_block_gives_no_part_that_it_does_not_hold(checkpoint: Path) -> None:
    block = load_block(checkpoint, LayerRange(1, 3), dtype="float32")
    for text in ("0:2", "2:4", "4:5"):
        with pytest.raises(LocalProtocolError, match=f"the layers {text} are none of the block 1:3"):
            block.part(LayerRange.parse(text))


def _assert_equal_steps(whole: Any, chain: Chain) -> None:
    chain.clear()
    rng = random.Random(2)
    tokens = [rng.randrange(3, VOCABULARY) for _ in range(WINDOW - 3)]
    cache = DynamicCache(config=whole.config)
    # A prefill within the window, single steps across its edge, and a second prefill beyond it.
    for count in (len(tokens), *[1] * 6, 9, 1, 1):
        tokens = tokens[:count] + [rng.randrange(3, VOCABULARY) for _ in range(count - len(tokens))]
        with torch.no_grad():
            expected = whole(input_ids=torch.tensor([tokens]), cache=cache, use_cache=True).logits[0]
        logits = chain.run(tokens, RowBatch.chain(chain.caches[0].rows, count))
        assert torch.equal(logits, expected)
        tokens = [int(expected[-1].argmax())]


def test_token_trees_equal_plain_forwards_through_compaction(float32_models: tuple[Any, Chain]) -> None:
    whole, chain = float32_models
    chain.clear()
    rng = random.Random(1)
    prompt = [rng.randrange(3, VOCABULARY) for _ in range(WINDOW + 3)]
    texts = {row: prompt[: row + 1] for row in range(len(prompt))}
    chain.run(prompt, RowBatch.chain(0, len(prompt)))
    for step in range(5):
        first = chain.caches[0].rows
        parents, tokens = [], []
        for row in range(first, first + 5):
            parents.append(rng.choice(list(texts)[-8:]))
            tokens.append(rng.randrange(3, VOCABULARY))
            texts[row] = [*texts[parents[-1]], tokens[-1]]
        positions = tuple(len(texts[parent]) for parent in parents)
        logits = chain.run(tokens, RowBatch(tuple(parents), positions))
        for index in range(5):
            with torch.no_grad():
                expected = whole(input_ids=torch.tensor([texts[first + index]]), use_cache=False).logits[0, -1]
            torch.testing.assert_close(logits[index], expected, atol=1e-4, rtol=0)
        if step == 2:
            texts = _compact(chain, texts, leaf=first + 4)


def _compact(chain: Chain, texts: dict[int, list[int]], leaf: int) -> dict[int, list[int]]:
    """Keeps the path of `leaf` only; the texts under their new row numbers."""
    kept = sorted(row for row, text in texts.items() if texts[leaf][: len(text)] == text)
    for cache in chain.caches:
        cache.keep(kept)
    return {new: texts[row] for new, row in enumerate(kept)}
