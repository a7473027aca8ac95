"""What the layers of a model take in memory once they are loaded, from its manifest alone: nothing is read. Pure.

Weights count in the dtype in which they compute, whatever they are stored in. What a cache row takes follows from the
shapes of the projections that fill it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from shardp2p.errors import ConfigError
from shardp2p.vocabulary import DType, LayerRange, ModelId
from shardp2p.weights.manifest import Manifest, TensorEntry, is_embedding, layer_of

ITEM_BYTES: Final[Mapping[DType, int]] = {"float32": 4, "float16": 2, "bfloat16": 2}
HEAD: Final = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class Footprint:
    """The bytes of a model's layers, of what comes with the first and the last one, and of one cache row in each.

    `shared_bytes` are in both `first_bytes` and `last_bytes`, and there once in a block that has both ends.
    """

    model: ModelId
    digest: str
    dtype: DType
    layer_bytes: tuple[int, ...]
    layer_row_bytes: tuple[int, ...]
    first_bytes: int
    last_bytes: int
    shared_bytes: int

    @property
    def layers(self) -> int:
        """How many layers the model has."""
        return len(self.layer_bytes)

    def weight_bytes(self, layers: LayerRange) -> int:
        """What a block of these layers takes. Raises: ConfigError for layers that the model does not have."""
        self._check(layers)
        is_first, is_last = layers.start == 0, layers.stop == self.layers
        ends = is_first * self.first_bytes + is_last * self.last_bytes - (is_first and is_last) * self.shared_bytes
        return sum(self.layer_bytes[layers.start : layers.stop]) + ends

    def row_bytes(self, layers: LayerRange) -> int:
        """What one cache row takes in all of these layers. Raises: ConfigError as `weight_bytes` does."""
        self._check(layers)
        return sum(self.layer_row_bytes[layers.start : layers.stop])

    def _check(self, layers: LayerRange) -> None:
        if layers.stop > self.layers:
            raise ConfigError(f"layers {layers} do not exist: {self.model} has layers 0:{self.layers}")


def footprint(manifest: Manifest, dtype: DType, *, ties_embeddings: bool = False) -> Footprint:
    """The footprint of a model that is loaded as `dtype`.

    `ties_embeddings` says that its configuration does: where a head that equals them is stored all the same, a block
    with both ends has it once. Raises: ConfigError where the size of a cache row cannot be told.
    """
    item_bytes = ITEM_BYTES[dtype]
    layer_bytes = [0] * manifest.layers
    shapes: list[dict[str, tuple[int, ...]]] = [{} for _ in layer_bytes]
    first = last = 0
    ends: dict[str, TensorEntry] = {}
    for tensor in manifest.tensors:
        size_bytes = math.prod(tensor.shape) * item_bytes
        layer = layer_of(tensor.name)
        if layer is None:
            is_first = is_embedding(tensor.name)
            first, last = first + size_bytes * is_first, last + size_bytes * (not is_first)
            ends[HEAD if tensor.name.endswith(HEAD) else "embedding" if is_first else tensor.name] = tensor
        elif layer < manifest.layers:
            layer_bytes[layer] += size_bytes
            part, _, name = tensor.name.rpartition(".")
            if name == "weight":
                shapes[layer][part.rpartition(".")[2]] = tensor.shape
    shared = 0
    if HEAD not in ends:
        shared, last = first, last + first
    elif ties_embeddings and "embedding" in ends and ends[HEAD].sha256 == ends["embedding"].sha256:
        shared = math.prod(ends[HEAD].shape) * item_bytes
    rows = tuple(_row_elements(manifest, layer) * item_bytes for layer in shapes)
    return Footprint(manifest.model, manifest.digest, dtype, tuple(layer_bytes), rows, first, last, shared)


def _row_elements(manifest: Manifest, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """How many numbers a layer keeps for a token; `shapes` are of its weights, by the last part of their names."""
    if "k_proj" in shapes and "v_proj" in shapes:
        return shapes["k_proj"][0] + shapes["v_proj"][0]
    if "qkv_proj" in shapes and "o_proj" in shapes:
        return shapes["qkv_proj"][0] - shapes["o_proj"][1]
    if "kv_a_proj_with_mqa" in shapes:
        # Latent attention (DeepSeek) keeps what it is made from; its sparse form keeps a row of an index beside it.
        return shapes["kv_a_proj_with_mqa"][0] + shapes.get("wk", (0,))[0]
    raise ConfigError(
        f"how much memory a cache row of {manifest.model} takes cannot be told from its tensors; choose its layers "
        "yourself with --layers A:B"
    )
