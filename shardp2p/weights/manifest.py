"""A manifest: which files and tensors make up a model, each with its digest.

The canonical bytes are JSON in the form of RFC 8785 (sorted keys, no blanks, UTF-8, integers only) behind a domain
tag. Two programs that know the fields write the same bytes, which protobuf does not promise, and a person can read
them on disk. Bytes that are not in this form are refused, so a manifest has one encoding and one digest.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

from shardp2p.errors import ConfigError, IntegrityError
from shardp2p.vocabulary import LayerRange, ModelId

DOMAIN_TAG = b"shardp2p manifest 1\n"
"""Stands before the canonical bytes, so that no other signed thing can have the same bytes; 1 is the version."""

MAX_MANIFEST_BYTES = 64 * 2**20
"""A mixture of experts with 100,000 tensors needs about a third of this."""

DTYPE_BYTES: Mapping[str, int] = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "BF16": 2, "F16": 2, "I16": 2, "U16": 2,
    "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip
"""Bytes per element of each dtype of the safetensors format."""

_MAX_INTEGER = 2**53 - 1
_MAX_DIMENSIONS = 8
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MODEL_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}")
_TENSOR_NAME = re.compile(r"[\x21-\x7e]{1,512}")
_LAYER = re.compile(r"(?:(?:model|transformer|language_model)\.)*(?:layers|h)\.(\d{1,6})\.")
_EMBEDDING = re.compile(r"(?:^|\.)(?:embed_tokens|wte|wpe)\.")


def model_id(name: str) -> ModelId:
    """`name` as a model's local name. Raises ConfigError for what cannot be one."""
    if not _MODEL_NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no model name; use up to 64 lower-case letters, digits, '.', '_' and '-'")
    return ModelId(name)


def local_name(text: str) -> ModelId:
    """A model name made from a file's or directory's name."""
    return model_id(re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("._-")[:64] or "model")


def layer_of(tensor: str) -> int | None:
    """The layer that a tensor of a causal LM belongs to; None for the embeddings, the last norm and the head."""
    match = _LAYER.match(tensor)
    return int(match[1]) if match else None


def is_embedding(tensor: str) -> bool:
    """Whether a tensor that belongs to no layer is one of the embeddings, which go with the first layer."""
    return _EMBEDDING.search(tensor) is not None


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of the model's directory; `sha256` is of the whole file, in lower-case hexadecimal."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor in one of the files; `dtype` as safetensors names it, `sha256` of its raw little-endian bytes."""

    name: str
    file: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a model is made of. Files and tensors are sorted by name; `dtype` is the one most of its bytes have.

    `model` is a local name and no part of the digest. Raises IntegrityError for entries that contradict each other.
    """

    model: ModelId
    architecture: str
    model_type: str
    layers: int
    context_tokens: int
    hidden_size: int
    vocab_size: int
    dtype: str
    files: tuple[FileEntry, ...]
    tensors: tuple[TensorEntry, ...]

    def __post_init__(self) -> None:
        _check(self)

    @cached_property
    def digest(self) -> str:
        """The sha256 of the canonical bytes, 64 lower-case hexadecimal digits: the same under any local name."""
        return hashlib.sha256(self.canonical_bytes()).hexdigest()

    def canonical_bytes(self) -> bytes:
        """What is hashed and signed: everything but the local name."""
        return DOMAIN_TAG + _encode({k: v for k, v in asdict(self).items() if k != "model"})

    def to_bytes(self) -> bytes:
        """The manifest with its local name, for a file or a message."""
        return DOMAIN_TAG + _encode(asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """The manifest that `to_bytes` wrote.

        Raises: IntegrityError for anything else; ConfigError for another version of the format.
        """
        manifest = _decode(data)
        if manifest.to_bytes() != data:
            raise IntegrityError("the manifest is not in its canonical form")
        return manifest

    def digests(self) -> Mapping[str, str]:
        """The sha256 of every tensor by its name."""
        return {tensor.name: tensor.sha256 for tensor in self.tensors}

    @property
    def size_bytes(self) -> int:
        """The bytes of all files."""
        return sum(file.size_bytes for file in self.files)

    def tensors_of(self, layers: LayerRange) -> tuple[TensorEntry, ...]:
        """The tensors that a peer needs to hold `layers`.

        The first layer brings the embeddings; the last one the norm and the head, which are the embeddings where
        the model ties them. Raises ConfigError for layers that the model does not have.
        """
        if layers.stop > self.layers:
            raise ConfigError(f"layers {layers} do not exist: this model has layers 0:{self.layers}")
        has_first, has_last = layers.start == 0, layers.stop == self.layers
        is_tied = not any(tensor.name.endswith("lm_head.weight") for tensor in self.tensors)

        def is_needed(tensor: TensorEntry) -> bool:
            layer = layer_of(tensor.name)
            if layer is not None:
                return layers.start <= layer < layers.stop
            if is_embedding(tensor.name):
                return has_first or (has_last and is_tied)
            return has_last

        return tuple(tensor for tensor in self.tensors if is_needed(tensor))

    def layer_bytes(self, layers: LayerRange) -> int:
        """The bytes of `tensors_of(layers)` as stored."""
        return sum(tensor.size_bytes for tensor in self.tensors_of(layers))


def _encode(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _decode(data: bytes) -> Manifest:
    if len(data) > MAX_MANIFEST_BYTES:
        raise IntegrityError(f"the manifest has {len(data)} bytes, more than the {MAX_MANIFEST_BYTES} allowed")
    tag, _, body = data.partition(b"\n")
    if tag + b"\n" != DOMAIN_TAG:
        if re.fullmatch(rb"shardp2p manifest [0-9]{1,4}", tag):
            raise ConfigError("the manifest has a format that this version does not know; update shardp2p")
        raise IntegrityError("this is no manifest")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise IntegrityError("the manifest is damaged: it cannot be parsed") from error
    top = _fields_of(Manifest, value)
    files = tuple(FileEntry(**_fields_of(FileEntry, entry)) for entry in _list(top["files"]))
    tensors = []
    for entry in _list(top["tensors"]):
        tensor = _fields_of(TensorEntry, entry)
        tensors.append(TensorEntry(**{**tensor, "shape": tuple(_list(tensor["shape"]))}))
    return Manifest(**{**top, "files": files, "tensors": tuple(tensors)})


def _fields_of(kind: type[Any], value: object) -> dict[str, Any]:
    if not isinstance(value, dict) or set(value) != {field.name for field in fields(kind)}:
        raise IntegrityError(f"the manifest is damaged: a {kind.__name__} has the wrong fields")
    return value


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise IntegrityError("the manifest is damaged: a list is missing")
    return value


def _check(manifest: Manifest) -> None:
    """Everything that holds for a sound manifest; the values may be of any type, since they can come from a peer."""
    _require(_matches(_MODEL_NAME, manifest.model), "its name")
    for name in (manifest.architecture, manifest.model_type, manifest.dtype):
        _require(_matches(_TENSOR_NAME, name), "its architecture, model type or dtype")
    for number in (manifest.layers, manifest.context_tokens, manifest.hidden_size, manifest.vocab_size):
        _require(_is_count(number) and number > 0, "its dimensions")
    for file in manifest.files:
        _require(_matches(_FILE_NAME, file.name) and _is_count(file.size_bytes), "a file's name or size")
        _require(_matches(_SHA256, file.sha256), "a file's digest")
    sizes = {file.name: file.size_bytes for file in manifest.files}
    for tensor in manifest.tensors:
        _require(_matches(_TENSOR_NAME, tensor.name) and _matches(_SHA256, tensor.sha256), "a tensor's name or digest")
        _require(_is_key(tensor.file, sizes), f"the file of {tensor.name}")
        _require(_is_key(tensor.dtype, DTYPE_BYTES), f"the dtype of {tensor.name}")
        is_shape = len(tensor.shape) <= _MAX_DIMENSIONS and all(_is_count(length) for length in tensor.shape)
        _require(is_shape and _is_count(tensor.size_bytes), f"the shape of {tensor.name}")
        expected = math.prod(tensor.shape) * DTYPE_BYTES[tensor.dtype]
        _require(tensor.size_bytes == expected <= sizes[tensor.file], f"the size of {tensor.name}")
    _require(_is_sorted(file.name for file in manifest.files), "the order of its files")
    _require(bool(manifest.tensors) and _is_sorted(t.name for t in manifest.tensors), "the order of its tensors")


def _require(is_sound: bool, what: str) -> None:
    if not is_sound:
        raise IntegrityError(f"the manifest contradicts itself or is damaged: {what}")


def _matches(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _is_key(value: object, mapping: Mapping[str, int]) -> bool:
    return isinstance(value, str) and value in mapping


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MAX_INTEGER


def _is_sorted(names: Iterable[str]) -> bool:
    """Whether the names ascend without a repetition."""
    return all(a < b for a, b in itertools.pairwise(names))
