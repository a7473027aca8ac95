"""A Block of any transformers causal language model, built from its own tensors only.

The model is built without memory for its weights, reduced to the wanted layers, and then filled tensor by tensor, the
largest first, so that the process grows by little more than the layers themselves.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init

from shardp2p.errors import ConfigError
from shardp2p.runtime.architecture import (
    Architecture,
    blaming_configuration,
    check_hand_through,
    check_layers,
    check_structure,
    read_architecture,
)
from shardp2p.runtime.block import Block
from shardp2p.runtime.checkpoint import TensorReader
from shardp2p.runtime.few_rows import pad_few_rows
from shardp2p.runtime.fuse import fuse_siblings
from shardp2p.runtime.graph import CudaGraphs
from shardp2p.runtime.recipes import Recipe, plan_recipes, realise
from shardp2p.runtime.weight_layout import WeightLayout
from shardp2p.vocabulary import DType, LayerRange
from shardp2p.wire.tensor import TORCH_DTYPES

HEAD = "lm_head.weight"


def load_block(
    directory: Path,
    layers: LayerRange,
    *,
    dtype: DType,
    device: str = "cpu",
    digests: Mapping[str, str] | None = None,
    progress: Callable[[int, int], None] | None = None,
    fast_layout: bool = False,
) -> Block:
    """The layers of the model in `directory`, ready to run.

    `digests` gives the SHA-256 (hexadecimal) of the stored bytes of each tensor; with it, every tensor that is read
    must be in it. `progress` is called with (bytes read, bytes to read) after each tensor. A `fast_layout`
    of weights on the CPU may change the order in which float32 products add, where that is faster.

    Raises:
        ConfigError: no such model or layers, or the architecture cannot be split, all before weights are read; or the
            checkpoint is incomplete or does not fit its configuration.
        IntegrityError: a file is truncated or broken, or a tensor is not what its digest says.
    """
    architecture = read_architecture(directory)
    check_layers(architecture, layers)
    with blaming_configuration(directory, architecture.config.model_type):
        model = _empty_model(architecture, TORCH_DTYPES[dtype])
        inner = _reduce(model, architecture, layers)
    recipes = _drop_tied(plan_recipes(model, directory, TORCH_DTYPES[dtype]), model, layers)
    with blaming_configuration(directory, architecture.config.model_type):
        _make_buffers(model)
        check_hand_through(inner, architecture, is_first=layers.start == 0)
    _move_buffers(model, device)
    if device == "cpu":
        fuse_siblings(inner)
        pad_few_rows(model)
    waiting = {name for name, value in model.named_parameters() if not value.is_meta}
    layout = WeightLayout(TORCH_DTYPES[dtype]) if fast_layout and device == "cpu" else None
    layer_bytes, filled = _fill(model, recipes, device, digests, progress, layout)
    _share_head(model, layers, architecture.layer_count)
    named = (*model.named_parameters(), *model.named_buffers())
    left = [name for name, value in named if value.is_meta and name not in filled]
    left += sorted(waiting - filled)
    if left:
        raise ConfigError(f"{directory} lacks the tensor {left[0]}; the checkpoint is incomplete or of another model")
    _untyped(model).eval().requires_grad_(False)
    block = Block(model, inner, architecture, layers, TORCH_DTYPES[dtype], torch.device(device), layer_bytes)
    if block.device.type == "cuda":
        block.replay_few_rows(CudaGraphs(block.device))
    return block


def _empty_model(architecture: Architecture, dtype: torch.dtype) -> PreTrainedModel:
    """The whole model on the meta device: names, shapes and types, no memory."""
    config = copy.deepcopy(architecture.config)
    config.use_cache = True
    if getattr(config, "output_router_logits", False):
        config.output_router_logits = False
    with torch.device("meta"), init.no_init_weights(), init.no_tie_weights():
        model: PreTrainedModel = _untyped(architecture.model_class)._from_config(config, dtype=dtype)
    return model


def _untyped(value: object) -> Any:
    """`value` for calls into transformers that carry no annotations."""
    return value


def _reduce(model: PreTrainedModel, architecture: Architecture, layers: LayerRange) -> nn.Module:
    """The inner model, reduced in place to the wanted layers and what they need; absolute layer numbers stay."""
    inner: Any = check_structure(model, architecture)
    is_first, is_last = layers.start == 0, layers.stop == architecture.layer_count
    for index in range(architecture.layer_count):
        if not layers.start <= index < layers.stop:
            inner.layers[index] = nn.Identity()
    if not is_last:
        inner.norm = nn.Identity()
        _untyped(model).set_output_embeddings(nn.Identity())
    if not is_first and not (is_last and architecture.config.tie_word_embeddings):
        inner.embed_tokens = nn.Identity()
    if not is_first and hasattr(inner, "embedding_multiplier"):
        # Granite scales whatever enters its forward; the first block has scaled the hidden states.
        inner.embedding_multiplier = 1.0
    return inner  # type: ignore[no-any-return]


def _make_buffers(model: PreTrainedModel) -> None:
    """Gives the buffers that no checkpoint stores (rotary frequencies, embedding scales) memory and their values."""
    for module in model.modules():
        names = [name for name in module._non_persistent_buffers_set if module._buffers.get(name) is not None]
        if not names:
            continue
        for name in names:
            buffer = module._buffers[name]
            assert buffer is not None
            empty = torch.empty_like(buffer, device="cpu")
            module._buffers[name] = empty.fill_(torch.nan) if empty.is_floating_point() else empty.zero_()
        with torch.no_grad():
            _untyped(model)._init_weights(module)
        for name in names:
            filled = module._buffers[name]
            if filled is None or (filled.is_floating_point() and filled.isnan().any()):
                raise ConfigError(
                    f"{model.config.model_type} does not say how its buffer {name} is made; cannot load it"
                )


def _move_buffers(model: PreTrainedModel, device: str) -> None:
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and not buffer.is_meta:
                module._buffers[name] = buffer.to(device)


def _fill(
    model: PreTrainedModel,
    recipes: list[Recipe],
    device: str,
    digests: Mapping[str, str] | None,
    progress: Callable[[int, int], None] | None,
    layout: WeightLayout | None,
) -> tuple[int, set[str]]:
    """Reads and assigns every recipe; the bytes that the parameters take, and their names."""
    total = sum(recipe.size_bytes for recipe in recipes)
    done = layer_bytes = 0
    filled: set[str] = set()
    reader = TensorReader()
    for recipe in recipes:
        for target, value in realise(model, recipe, reader, digests).items():
            _assign(model, target, value.to(device))
            filled.add(target)
            layer_bytes += value.numel() * value.element_size()
            path, _, name = target.rpartition(".")
            if layout is not None and name == "weight" and target != HEAD:  # which may be the embedding too
                layout.lay_out(model.get_submodule(path))
        done += recipe.size_bytes
        if progress is not None:
            progress(done, total)
    return layer_bytes, filled


def _assign(model: PreTrainedModel, target: str, value: torch.Tensor) -> None:
    path, _, name = target.rpartition(".")
    module = model.get_submodule(path)
    owner = module._buffers if name in module._buffers else module._parameters
    expected = owner[name]
    if expected is None or expected.shape != value.shape:
        shape = None if expected is None else tuple(expected.shape)
        raise ConfigError(f"the tensor {target} has the shape {tuple(value.shape)}; the configuration asks for {shape}")
    if not expected.is_meta:  # its part of a joint weight, which most values were read right into
        if value.data_ptr() != expected.data_ptr():
            expected.copy_(value)
        return
    value = value.contiguous()
    if owner is module._buffers:
        module._buffers[name] = value
    else:
        module._parameters[name] = nn.Parameter(value, requires_grad=False)


def _drop_tied(recipes: list[Recipe], model: PreTrainedModel, layers: LayerRange) -> list[Recipe]:
    """Without the embedding where only the head would need it, and the checkpoint stores the head itself."""
    embedding = f"{model.base_model_prefix}.embed_tokens.weight"
    has_head = any(recipe.target == HEAD for recipe in recipes)
    return [recipe for recipe in recipes if layers.start == 0 or not has_head or recipe.target != embedding]


def _share_head(model: PreTrainedModel, layers: LayerRange, layer_count: int) -> None:
    """Lets head and embedding share memory where the model ties them, and drops an embedding that is not needed.

    As in transformers, a checkpoint that stores both with different values is not tied, whatever it says.
    """
    if layers.stop < layer_count or not model.config.tie_word_embeddings:
        return
    embedding, head = _untyped(model.base_model).embed_tokens, _untyped(model).get_output_embeddings()
    if embedding.weight.is_meta:
        embedding.weight = head.weight
    elif head.weight.is_meta or torch.equal(head.weight, embedding.weight):
        head.weight = embedding.weight
    if layers.start > 0:
        _untyped(model.base_model).embed_tokens = nn.Identity()
