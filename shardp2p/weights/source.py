"""A model in a Hugging Face directory: what can be checked without reading tensors, then its manifest."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardp2p.errors import ConfigError, IntegrityError
from shardp2p.weights.manifest import FileEntry, Manifest, TensorEntry, layer_of, model_id
from shardp2p.weights.tensor_file import TensorSpec, read_specs

Progress = Callable[[str, int, int], None]
"""Called with what is being done, the bytes done and the bytes in all (0: not known), every few megabytes."""

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
SIDE_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
)
"""Files beside the weights that belong to a model where they exist; nothing else of a directory is taken."""

_PIECE_BYTES = 4 * 2**20
_MAX_JSON_BYTES = 64 * 2**20


def no_progress(what: str, done: int, total: int) -> None:
    """A Progress that shows nothing."""


@dataclass(frozen=True)
class SourceDirectory:
    """A checked Hugging Face directory: its dimensions, and the tensors of each weight file in order."""

    directory: Path
    architecture: str
    model_type: str
    layers: int
    context_tokens: int
    hidden_size: int
    vocab_size: int
    weight_files: Mapping[str, tuple[TensorSpec, ...]]

    @property
    def file_names(self) -> tuple[str, ...]:
        """The files that make up the model, sorted."""
        index = [INDEX_FILE] if (self.directory / INDEX_FILE).is_file() and SINGLE_FILE not in self.weight_files else []
        sides = [name for name in SIDE_FILES if (self.directory / name).is_file()]
        return tuple(sorted([*self.weight_files, *index, *sides]))


def open_directory(directory: Path) -> SourceDirectory:
    """The model in `directory`, after every check that needs no tensor bytes.

    Raises: ConfigError if this is no directory with a model in it; IntegrityError if its files are damaged or missing.
    """
    if directory.is_file():
        raise ConfigError(f"{directory} is a file; bring it into the store first: shardp2p model import {directory}")
    if not directory.is_dir():
        raise ConfigError(f"there is no model at {directory}: no such directory")
    if not (directory / "config.json").is_file():
        raise ConfigError(f"{directory} has no config.json; give a directory in the Hugging Face layout")
    config = _read_json(directory / "config.json")
    nested = config.get("text_config")
    text = {**config, **nested} if isinstance(nested, dict) else config
    architectures = config.get("architectures")
    source = SourceDirectory(
        directory=directory,
        architecture=str(architectures[0]) if isinstance(architectures, list) and architectures else "unknown",
        model_type=_model_type(directory, config),
        layers=_dimension(directory, text, "num_hidden_layers", "n_layer"),
        context_tokens=_dimension(directory, text, "max_position_embeddings", "n_positions", "n_ctx"),
        hidden_size=_dimension(directory, text, "hidden_size", "n_embd"),
        vocab_size=_dimension(directory, text, "vocab_size"),
        weight_files=_weight_files(directory),
    )
    _check_layers(source)
    return source


def build_manifest(directory: Path, name: str, progress: Progress = no_progress) -> Manifest:
    """The manifest of the model in `directory` under the local name `name`; reads every byte once, a piece at a time.

    Raises: as `open_directory`.
    """
    source = open_directory(directory)
    total = sum((directory / name).stat().st_size for name in source.file_names)
    done = 0

    def report(count: int) -> None:
        nonlocal done
        done += count
        progress("hashing the model", done, total)

    files: list[FileEntry] = []
    tensors: list[TensorEntry] = []
    for file_name in source.file_names:
        file, found = _hash_file(directory / file_name, source.weight_files.get(file_name, ()), report)
        files.append(file)
        tensors.extend(found)
    bytes_by_dtype = Counter[str]()
    for tensor in tensors:
        bytes_by_dtype[tensor.dtype] += tensor.size_bytes
    return Manifest(
        model=model_id(name),
        architecture=source.architecture,
        model_type=source.model_type,
        layers=source.layers,
        context_tokens=source.context_tokens,
        hidden_size=source.hidden_size,
        vocab_size=source.vocab_size,
        dtype=bytes_by_dtype.most_common(1)[0][0],
        files=tuple(files),
        tensors=tuple(sorted(tensors, key=lambda tensor: tensor.name)),
    )


def hash_file(path: Path, report: Callable[[int], None] = lambda count: None) -> str:
    """The sha256 of a file in lower-case hexadecimal. Raises ConfigError if it cannot be read."""
    return _hash_file(path, (), report)[0].sha256


def _hash_file(
    path: Path, specs: tuple[TensorSpec, ...], report: Callable[[int], None]
) -> tuple[FileEntry, list[TensorEntry]]:
    """The digests of a file and of its tensors, which follow one another up to the file's end, in one pass."""
    whole = hashlib.sha256()
    size_bytes = 0
    tensors = []
    try:
        with path.open("rb") as file:
            for spec in specs:
                while size_bytes < spec.start:
                    head = file.read(spec.start - size_bytes)
                    if not head:
                        break
                    whole.update(head)
                    size_bytes += len(head)
                one = hashlib.sha256()
                while size_bytes < spec.stop and (piece := file.read(min(_PIECE_BYTES, spec.stop - size_bytes))):
                    whole.update(piece)
                    one.update(piece)
                    size_bytes += len(piece)
                    report(len(piece))
                if size_bytes != spec.stop:
                    raise IntegrityError(f"{path} became shorter while it was read; get the file again")
                length = spec.stop - spec.start
                tensors.append(TensorEntry(spec.name, path.name, spec.dtype, spec.shape, length, one.hexdigest()))
            while piece := file.read(_PIECE_BYTES):
                whole.update(piece)
                size_bytes += len(piece)
                report(len(piece))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    return FileEntry(path.name, size_bytes, whole.hexdigest()), tensors


def ties_embeddings(directory: Path) -> bool:
    """Whether the configuration lets the head be the embedding. Raises: ConfigError, IntegrityError."""
    return _read_json(directory / "config.json").get("tie_word_embeddings") is True


def _read_json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise IntegrityError(f"{path} is damaged: it is too large for what it is")
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{path} is damaged: it is no JSON") from error
    if not isinstance(value, dict):
        raise IntegrityError(f"{path} is damaged: it is no JSON object")
    return value


def _model_type(directory: Path, config: Mapping[str, object]) -> str:
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise ConfigError(f"{directory}/config.json names no model_type; it describes no transformers model")
    return model_type


def _dimension(directory: Path, config: Mapping[str, object], *names: str) -> int:
    for name in names:
        value = config.get(name)
        if type(value) is int and value > 0:
            return value
    raise ConfigError(f"{directory}/config.json has no valid {names[0]}; it describes no causal language model")


def _weight_files(directory: Path) -> dict[str, tuple[TensorSpec, ...]]:
    if (directory / SINGLE_FILE).is_file():
        return {SINGLE_FILE: read_specs(directory / SINGLE_FILE)}
    if not (directory / INDEX_FILE).is_file():
        if any(directory.glob("pytorch_model*.bin")):
            raise ConfigError(f"{directory} has its weights as pickle files, which are not loaded; save as safetensors")
        raise ConfigError(f"{directory} has no weights: neither {SINGLE_FILE} nor {INDEX_FILE}")
    weight_map = _read_json(directory / INDEX_FILE).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise IntegrityError(f"{directory}/{INDEX_FILE} is damaged: it maps no tensors to files")
    files: dict[str, tuple[TensorSpec, ...]] = {}
    for shard in sorted({str(shard) for shard in weight_map.values()}):
        if Path(shard).name != shard:
            raise IntegrityError(f"{directory}/{INDEX_FILE} names {shard!r}, which lies outside the directory")
        if not (directory / shard).is_file():
            raise IntegrityError(f"{directory} is incomplete: {shard} is missing, which {INDEX_FILE} names")
        files[shard] = read_specs(directory / shard)
    places = {spec.name: shard for shard, specs in files.items() for spec in specs}
    for name, shard in weight_map.items():
        if places.get(name) != shard:
            raise IntegrityError(f"{directory} is damaged: {shard} does not hold {name}, as {INDEX_FILE} says")
    if len(places) != sum(len(specs) for specs in files.values()):
        raise IntegrityError(f"{directory} is damaged: two weight files hold the same tensor")
    return files


def _check_layers(source: SourceDirectory) -> None:
    """Every layer has weights, where the names of the tensors show layers at all."""
    names = [spec.name for specs in source.weight_files.values() for spec in specs]
    if not names:
        raise IntegrityError(f"{source.directory} has weight files without a single tensor")
    found = {layer for name in names if (layer := layer_of(name)) is not None}
    missing = next((layer for layer in range(source.layers) if layer not in found), None)
    if found and missing is not None:
        raise IntegrityError(f"{source.directory} is incomplete: layer {missing} of {source.layers} has no weights")
    if source.layers > len(names):
        raise IntegrityError(
            f"{source.directory} is incomplete: its {len(names)} tensors cannot be those of {source.layers} layers"
        )
