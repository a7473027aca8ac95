"""How each parameter of a model is made from the tensors that a checkpoint stores.

Names, and for some architectures shapes, differ between the two: transformers fuses the experts of a layer, for
example. Its own conversion rules say how; only how the tensors are read is ours.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
    build_glob_alternation,
    dot_natural_key,
    rename_source_key,
)

from shardp2p.errors import ConfigError, IntegrityError
from shardp2p.runtime.architecture import MISFITS
from shardp2p.runtime.checkpoint import StoredTensor, TensorReader, read_header, tensor_files


@dataclass(slots=True)
class Recipe:
    """How one parameter, or several that are converted together, come from stored tensors.

    `patterns` has the converter's source pattern of each source, `shape` the parameter's shape.
    """

    target: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    converter: WeightConverter | None
    sources: list[StoredTensor] = field(default_factory=list)
    patterns: list[str] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        """Bytes to read."""
        return sum(source.size_bytes for source in self.sources)


def plan_recipes(model: PreTrainedModel, directory: Path, dtype: torch.dtype) -> list[Recipe]:
    """What to read for the model's parameters, the largest first; files without a wanted tensor are not opened.

    The largest first, because what converting takes besides the result is then taken while little else is there.
    """
    wanted = model.state_dict()
    mapping = get_model_conversion_mapping(model)
    renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
    by_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
    type_of = _types(model, dtype)
    recipes: dict[str, Recipe] = {}
    headers: dict[Path, dict[str, StoredTensor]] = {}
    files = tensor_files(directory)
    for name in sorted(files, key=dot_natural_key):
        target, pattern = rename_source_key(name, renamings, converters, model.base_model_prefix, wanted)
        if target not in wanted and name in wanted:
            target, pattern = name, None
        if target not in wanted:
            continue
        if files[name] not in headers:
            headers[files[name]] = read_header(files[name])
        if name not in headers[files[name]]:
            raise IntegrityError(f"{files[name]} lacks the tensor {name} that the index promises; get it again")
        if target not in recipes:
            converter = copy.deepcopy(by_pattern[pattern]) if pattern is not None else None
            empty = wanted[target]
            recipes[target] = Recipe(target, type_of(target, empty), tuple(empty.shape), converter)
        recipes[target].sources.append(headers[files[name]][name])
        recipes[target].patterns.append(pattern or name)
    return sorted(recipes.values(), key=lambda recipe: -recipe.size_bytes)


def _types(model: PreTrainedModel, dtype: torch.dtype) -> Callable[[str, torch.Tensor], torch.dtype]:
    """The type of a parameter: its own in the empty model, but for those that the model keeps in float32."""
    kept_types = model._get_dtype_plan(dtype)
    if not kept_types:
        return lambda _, empty: empty.dtype
    expression, pattern_of, _ = build_glob_alternation(list(kept_types))

    def type_of(name: str, empty: torch.Tensor) -> torch.dtype:
        match = expression.search(name)
        return empty.dtype if match is None else kept_types[pattern_of[str(match.lastgroup)]]

    return type_of


def realise(
    model: PreTrainedModel, recipe: Recipe, reader: TensorReader, digests: Mapping[str, str] | None = None
) -> dict[str, torch.Tensor]:
    """The parameters that a recipe makes, by name, in CPU memory.

    Raises:
        IntegrityError: a stored tensor is broken, or not what `digests` say, or not among them.
        ConfigError: the stored tensors do not fit the model.
    """
    reads = []
    for source in recipe.sources:
        if digests is not None and source.name not in digests:
            raise IntegrityError(f"{source.name} in {source.file} is not in the manifest; get the model again")
        reads.append(partial(reader.read, source, recipe.dtype, digests[source.name] if digests is not None else None))
    if recipe.converter is None:
        return {recipe.target: reads[-1](into=_place(model, recipe.target))}
    if _is_plain_fusion(recipe):
        return {recipe.target: _fuse(recipe, reads)}
    converter: Any = recipe.converter
    for source, pattern, read in zip(recipe.sources, recipe.patterns, reads, strict=True):
        converter.add_tensor(recipe.target, source.name, pattern, read)
    try:
        converted = converter.convert(recipe.target, model=model, config=model.config)
    except MISFITS as error:
        raise ConfigError(f"the tensors of {recipe.target} do not fit the configuration: {error}") from error
    return {name: value[0] if isinstance(value, list) else value for name, value in converted.items()}


def _place(model: PreTrainedModel, target: str) -> torch.Tensor | None:
    """The memory that the parameter `target` has already, as a part of a joint weight."""
    path, _, name = target.rpartition(".")
    parameter = model.get_submodule(path)._parameters.get(name)
    return None if parameter is None or parameter.is_meta else parameter


def _is_plain_fusion(recipe: Recipe) -> bool:
    """Whether the recipe stacks the experts of a layer, and joins their parts, without changing any number."""
    assert recipe.converter is not None
    steps = [(type(step), getattr(step, "dim", None)) for step in recipe.converter.operations]
    if steps not in ([(MergeModulelist, 0)], [(MergeModulelist, 0), (Concatenate, 1)]):
        return False
    parts = _parts(recipe)
    rows = sum(shapes[0][0] for shapes in parts.values() if shapes[0])
    return len(recipe.shape) == 3 and all(
        len(shapes) == recipe.shape[0] and len(shape) == 2 and shape[0] == shapes[0][0] and shape[1] == recipe.shape[2]
        for shapes in parts.values()
        for shape in shapes
    ) and rows == recipe.shape[1]  # fmt: skip


def _parts(recipe: Recipe) -> dict[str, list[tuple[int, ...]]]:
    """The shapes of the sources of each pattern, in the converter's order of patterns."""
    assert recipe.converter is not None
    parts: dict[str, list[tuple[int, ...]]] = {
        pattern: [] for pattern in recipe.converter.source_patterns if pattern in recipe.patterns
    }
    for source, pattern in zip(recipe.sources, recipe.patterns, strict=True):
        parts[pattern].append(source.shape)
    return parts


def _fuse(recipe: Recipe, reads: list[partial[torch.Tensor]]) -> torch.Tensor:
    """The fused experts [experts, rows, columns], filled expert by expert: no second copy of them all is ever there."""
    fused = torch.empty(recipe.shape, dtype=recipe.dtype)
    first_row = 0
    for pattern, shapes in _parts(recipe).items():
        of_pattern = (read for read, own in zip(reads, recipe.patterns, strict=True) if own == pattern)
        for expert, read in enumerate(of_pattern):
            fused[expert, first_row : first_row + shapes[0][0]] = read()
        first_row += shapes[0][0]
    return fused
