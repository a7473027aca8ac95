"""What a footprint says without loading is what a loaded block takes, for every architecture that can be split."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest

from shardp2p.runtime.load import load_block
from shardp2p.vocabulary import DType, LayerRange
from shardp2p.weights.footprint import Footprint, footprint
from shardp2p.weights.manifest import Manifest
from shardp2p.weights.source import build_manifest
from tests.support.checkpoints import ARCHITECTURES, make_checkpoint
from tests.support.models import tiny_llama

LAYERS = 4
RANGES = [LayerRange(0, 1), LayerRange(0, 4), LayerRange(1, 3), LayerRange(2, 4)]


def read(directory: Path, dtype: DType) -> tuple[Manifest, Footprint]:
    manifest = build_manifest(directory, "tiny")
    config = json.loads((directory / "config.json").read_bytes())
    return manifest, footprint(manifest, dtype, ties_embeddings=config["tie_word_embeddings"])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_footprint_is_what_the_loaded_block_takes(architecture: str, tmp_path: Path) -> None:
    directory = make_checkpoint(architecture, tmp_path / "model", layers=LAYERS)
    manifest, foreseen = read(directory, "float32")
    for layers in RANGES:
        block = load_block(directory, layers, dtype="float32")
        assert foreseen.weight_bytes(layers) == block.layer_bytes, layers
        assert foreseen.row_bytes(layers) == block.row_bytes, layers
        assert manifest.layer_bytes(layers) >= foreseen.weight_bytes(layers)


@pytest.mark.parametrize("dtype", get_args(DType))
def test_weights_count_as_they_are_loaded_not_as_they_are_stored(dtype: DType, tmp_path: Path) -> None:
    _, foreseen = read(tiny_llama(tmp_path / "model", layers=LAYERS), dtype)
    for layers in RANGES:
        block = load_block(tmp_path / "model", layers, dtype=dtype)
        assert foreseen.weight_bytes(layers) == block.layer_bytes
        assert foreseen.row_bytes(layers) == block.row_bytes
