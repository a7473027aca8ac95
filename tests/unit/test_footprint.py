"""A footprint from a manifest alone: every tensor is counted once, where the layer range needs it."""

from __future__ import annotations

import itertools
import math
from typing import get_args

import pytest

from shardp2p.errors import ConfigError
from shardp2p.vocabulary import DType, LayerRange, ModelId
from shardp2p.weights.footprint import ITEM_BYTES, footprint
from shardp2p.weights.manifest import FileEntry, Manifest, TensorEntry

LAYERS = 4


def make_manifest(*, head: str | None = None, names: tuple[str, ...] = ("k_proj", "v_proj")) -> Manifest:
    """A model of bfloat16 whose layers grow. `head` is of a stored head's digest; the embeddings have e."""
    shapes = {"model.embed_tokens.weight": (100, 8), "model.norm.weight": (8,)}
    for layer in range(LAYERS):
        shapes[f"model.layers.{layer}.mlp.up_proj.weight"] = (8, 16 * (layer + 1))
        for at, name in enumerate(names):
            shapes[f"model.layers.{layer}.self_attn.{name}.weight"] = (4 + 2 * at, 8)
        shapes[f"model.layers.{layer}.self_attn.k_proj.bias"] = (4,)
    # A layer that only helps to train: no range has it.
    shapes[f"model.layers.{LAYERS}.mlp.up_proj.weight"] = (8, 9)
    if head:
        shapes["lm_head.weight"] = (100, 8)
    digests = {"model.embed_tokens.weight": "e" * 64, "lm_head.weight": (head or "") * 64}
    tensors = tuple(
        TensorEntry(name, "model.safetensors", "BF16", shape, 2 * math.prod(shape), digests.get(name, "a" * 64))
        for name, shape in sorted(shapes.items())
    )
    files = (FileEntry("model.safetensors", 10**6, "b" * 64),)
    return Manifest(
        ModelId("tiny"), "LlamaForCausalLM", "llama", LAYERS, 128, 8, 100, "BF16", files=files, tensors=tensors
    )


@pytest.mark.parametrize("head", [None, "e", "f"])
@pytest.mark.parametrize("dtype", get_args(DType))
def test_every_range_takes_the_bytes_of_its_tensors_in_its_dtype(head: str | None, dtype: DType) -> None:
    manifest = make_manifest(head=head)
    foreseen = footprint(manifest, dtype)
    assert (foreseen.layers, foreseen.digest) == (LAYERS, manifest.digest)
    for start, stop in itertools.combinations(range(LAYERS + 1), 2):
        layers = LayerRange(start, stop)
        assert foreseen.weight_bytes(layers) == manifest.layer_bytes(layers) // 2 * ITEM_BYTES[dtype]


def test_an_equal_head_that_is_stored_counts_once_where_the_model_ties_it() -> None:
    whole, embedding = LayerRange(0, LAYERS), 100 * 8 * 4
    apart = footprint(make_manifest(head="f"), "float32", ties_embeddings=True)
    tied = footprint(make_manifest(head="e"), "float32", ties_embeddings=True)
    assert tied.weight_bytes(whole) == apart.weight_bytes(whole) - embedding
    assert tied.weight_bytes(LayerRange(2, 4)) == apart.weight_bytes(LayerRange(2, 4))
    assert tied.weight_bytes(whole) == footprint(make_manifest(), "float32").weight_bytes(whole)


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        (("k_proj", "v_proj"), 4 + 6),
        (("q_proj", "v_proj", "k_proj"), 6 + 8),
        (("kv_a_proj_with_mqa", "kv_b_proj"), 4),
        (("kv_a_proj_with_mqa", "wk"), 4 + 6),
    ],
)
def test_a_cache_row_is_as_wide_as_the_projections_that_fill_it(names: tuple[str, ...], numbers: int) -> None:
    foreseen = footprint(make_manifest(names=names), "bfloat16")
    assert foreseen.row_bytes(LayerRange(1, 3)) == 2 * 2 * numbers


def test_a_model_whose_rows_cannot_be_told_is_refused_with_a_way_out() -> None:
    with pytest.raises(ConfigError, match="--layers A:B"):
        footprint(make_manifest(names=("mixer",)), "float32")


def test_layers_that_do_not_exist_are_refused() -> None:
    foreseen = footprint(make_manifest(), "float32")
    for ask in (foreseen.weight_bytes, foreseen.row_bytes):
        with pytest.raises(ConfigError, match="tiny has layers 0:4"):
            ask(LayerRange(3, 5))
