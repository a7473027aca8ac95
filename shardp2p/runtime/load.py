"""A Block of any transformers causal language model, built from its own tensors only.

The model is built without memory for its weights, reduced to the wanted layers, and then filled tensor by tensor, the
largest first, so that the process grows by little more than the layers themselves.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, build_glob_alternation, rename_source_key

from shardp2p.errors import ConfigError, IntegrityError
from shardp2p.runtime.architecture import (
    Architecture,
    check_hand_through,
    check_layers,
    check_structure,
    read_architecture,
)
from shardp2p.runtime.block import Block
from shardp2p.runtime.checkpoint import StoredTensor, read_header, read_tensor, tensor_files
from shardp2p.vocabulary import DType, LayerRange
from shardp2p.wire.tensor import TORCH_DTYPES


def load_block(
    directory: Path,
    layers: LayerRange,
    *,
    dtype: DType,
    device: str = "cpu",
    digests: Mapping[str, str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Block:
    """The layers of the model in `directory`, ready to run.

    `digests` gives the SHA-256 (hexadecimal) of the stored bytes of each tensor; with it, every tensor that is read
    must be in it. `progress` is called with (bytes read, bytes to read) after each tensor.

    Raises:
        ConfigError: no such model or layers, or the architecture cannot be split; nothing large has been read.
        IntegrityError: a file is truncated or broken, or a tensor is not what its digest says.
    """
    architecture = read_architecture(directory)
    check_layers(architecture, layers)
    model = _empty_block(architecture, layers, TORCH_DTYPES[dtype])
    inner = _reduce(model, architecture, layers)
    recipes = _plan(model, directory, TORCH_DTYPES[dtype])
    _make_buffers(model)
    check_hand_through(inner, architecture, is_first=layers.start == 0)
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and not buffer.is_meta:
                module._buffers[name] = buffer.to(device)
    layer_bytes = _fill(model, recipes, device, digests, progress)
    _share_head(model, layers, architecture.layer_count)
    left = [name for name, value in (*model.named_parameters(), *model.named_buffers()) if value.is_meta]
    if left:
        raise ConfigError(f"{directory} lacks the tensor {left[0]}; the checkpoint is incomplete or of another model")
    _untyped(model).eval().requires_grad_(False)
    return Block(model, inner, architecture, layers, TORCH_DTYPES[dtype], torch.device(device), layer_bytes)


def _empty_block(architecture: Architecture, layers: LayerRange, dtype: torch.dtype) -> PreTrainedModel:
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


@dataclass(slots=True)
class _Recipe:
    """How one parameter, or several that are converted together, come from stored tensors."""

    target: str
    dtype: torch.dtype
    sources: list[StoredTensor] = field(default_factory=list)
    converter: WeightConverter | None = None
    patterns: list[str] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        return sum(source.size_bytes for source in self.sources)


def _plan(model: PreTrainedModel, directory: Path, dtype: torch.dtype) -> list[_Recipe]:
    """What to read for the model's parameters, the largest first; files without a wanted tensor are not opened."""
    wanted = model.state_dict()
    mapping = get_model_conversion_mapping(model)
    renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
    by_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
    keeps = model._get_dtype_plan(dtype)
    kept, kept_by_group, _ = build_glob_alternation(list(keeps)) if keeps else (None, {}, None)
    recipes: dict[str, _Recipe] = {}
    headers: dict[Path, dict[str, StoredTensor]] = {}
    files = tensor_files(directory)
    for name in sorted(files, key=_natural_key):
        target, pattern = rename_source_key(name, renamings, converters, model.base_model_prefix, wanted)
        if target not in wanted and name in wanted:
            target, pattern = name, None
        if target not in wanted:
            continue
        header = headers.setdefault(files[name], {}) or read_header(files[name])
        headers[files[name]] = header
        if name not in header:
            raise IntegrityError(f"{files[name]} lacks the tensor {name} that the index promises; get it again")
        recipe = recipes.get(target)
        if recipe is None:
            match = kept.search(target) if kept is not None else None
            target_type = keeps[kept_by_group[str(match.lastgroup)]] if match else wanted[target].dtype
            converter = copy.deepcopy(by_pattern[pattern]) if pattern is not None else None
            recipe = recipes[target] = _Recipe(target, target_type, converter=converter)
        recipe.sources.append(header[name])
        recipe.patterns.append(pattern or name)
    return sorted(recipes.values(), key=lambda recipe: -recipe.size_bytes)


def _natural_key(name: str) -> list[tuple[int, int, str]]:
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"\.", name)]


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


def _fill(
    model: PreTrainedModel,
    recipes: list[_Recipe],
    device: str,
    digests: Mapping[str, str] | None,
    progress: Callable[[int, int], None] | None,
) -> int:
    """Reads and assigns every recipe; the bytes that the parameters take."""
    total = sum(recipe.size_bytes for recipe in recipes)
    done = layer_bytes = 0
    for recipe in recipes:
        for target, value in _realise(model, recipe, digests).items():
            _assign(model, target, value.to(device))
            layer_bytes += value.numel() * value.element_size()
        done += recipe.size_bytes
        if progress is not None:
            progress(done, total)
    return layer_bytes


def _realise(model: PreTrainedModel, recipe: _Recipe, digests: Mapping[str, str] | None) -> dict[str, torch.Tensor]:
    reads = []
    for source in recipe.sources:
        if digests is not None and source.name not in digests:
            raise IntegrityError(
                f"the tensor {source.name} in {source.file} is not in the manifest; get the model again"
            )
        reads.append(partial(read_tensor, source, recipe.dtype, digests[source.name] if digests is not None else None))
    if recipe.converter is None:
        return {recipe.target: reads[-1]()}
    for source, pattern, read in zip(recipe.sources, recipe.patterns, reads, strict=True):
        _untyped(recipe.converter).add_tensor(recipe.target, source.name, pattern, read)
    converted = recipe.converter.convert(recipe.target, model=model, config=model.config)
    return {name: value[0] if isinstance(value, list) else value for name, value in converted.items()}


def _assign(model: PreTrainedModel, target: str, value: torch.Tensor) -> None:
    path, _, name = target.rpartition(".")
    module = model.get_submodule(path)
    owner = module._buffers if name in module._buffers else module._parameters
    expected = owner[name]
    if expected is None or expected.shape != value.shape:
        shape = None if expected is None else tuple(expected.shape)
        raise ConfigError(f"the tensor {target} has the shape {tuple(value.shape)}; the configuration asks for {shape}")
    value = value.contiguous()
    if owner is module._buffers:
        module._buffers[name] = value
    else:
        module._parameters[name] = nn.Parameter(value, requires_grad=False)


def _share_head(model: PreTrainedModel, layers: LayerRange, layer_count: int) -> None:
    """Lets the head use the embedding where the model ties them, and drops an embedding that only the head needs."""
    if layers.stop < layer_count or not model.config.tie_word_embeddings:
        return
    inner: Any = model.base_model
    head = _untyped(model).get_output_embeddings()
    if inner.embed_tokens.weight.is_meta:
        inner.embed_tokens.weight = head.weight
    head.weight = inner.embed_tokens.weight
    if layers.start > 0:
        inner.embed_tokens = nn.Identity()
