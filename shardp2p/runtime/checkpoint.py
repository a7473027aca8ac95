"""Where the tensors of a safetensors checkpoint lie, and one of them at a time, read without mapping the file.

Format: https://huggingface.co/docs/safetensors. A mapped file would count towards the memory of the process page by
page; plain reads into the final tensor do not, and let the digest be taken from the very bytes that are used.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from shardp2p.errors import ConfigError, IntegrityError

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
MAX_HEADER_BYTES = 100_000_000
"""The limit of the reference implementation."""
READ_BYTES = 4 * 2**20
"""How much is read at once where the stored type is not the wanted one: the only memory besides the tensor itself."""

STORED_TYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "BOOL": torch.bool,
}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor on disk: bytes [offset, offset + size_bytes) of `file`, little-endian, row-major."""

    name: str
    file: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    size_bytes: int


def tensor_files(directory: Path) -> dict[str, Path]:
    """The file of every tensor of the checkpoint, by tensor name; files of a sharded checkpoint may be absent.

    Raises:
        ConfigError: there is no safetensors checkpoint in the directory.
        IntegrityError: the index or the only file is broken.
    """
    index, single = directory / INDEX_NAME, directory / SINGLE_NAME
    if index.is_file():
        try:
            weight_map = json.loads(index.read_bytes())["weight_map"]
            return {str(name): directory / Path(file).name for name, file in weight_map.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise IntegrityError(f"{index} is no index of a checkpoint; get the model again") from error
    if single.is_file():
        return dict.fromkeys(read_header(single), single)
    raise ConfigError(f"{directory} has no {SINGLE_NAME} and no {INDEX_NAME}; import the model again")


def read_header(file: Path) -> dict[str, StoredTensor]:
    """The tensors of one safetensors file, by name.

    Raises:
        ConfigError: the file is absent, or holds a number type that is not computed with (a quantised checkpoint).
        IntegrityError: the file is truncated or broken.
    """
    try:
        with file.open("rb") as stream:
            file_bytes = os.fstat(stream.fileno()).st_size
            header_bytes = int.from_bytes(stream.read(8), "little")
            if file_bytes < 8 or header_bytes > min(MAX_HEADER_BYTES, file_bytes - 8):
                raise IntegrityError(f"{file} is truncated or no safetensors file; get it again")
            header = json.loads(stream.read(header_bytes))
    except FileNotFoundError as error:
        raise ConfigError(f"{file} is missing; import or pull the model again") from error
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{file} has a broken header; get it again") from error
    if not isinstance(header, dict):
        raise IntegrityError(f"{file} has a broken header; get it again")
    start = 8 + header_bytes
    tensors = {name: _stored(file, name, entry, start) for name, entry in header.items() if name != "__metadata__"}
    end = max((tensor.offset + tensor.size_bytes for tensor in tensors.values()), default=start)
    if end > file_bytes:
        raise IntegrityError(f"{file} is truncated: {file_bytes} of {end} bytes are there; get it again")
    return tensors


def _stored(file: Path, name: str, entry: Any, start: int) -> StoredTensor:
    try:
        type_name, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        is_sound = all(type(number) is int and number >= 0 for number in (*shape, begin, end)) and begin <= end
    except (KeyError, TypeError, ValueError) as error:
        raise IntegrityError(f"{file} describes the tensor {name} wrongly; get it again") from error
    if not is_sound:
        raise IntegrityError(f"{file} describes the tensor {name} wrongly; get it again")
    if type_name not in STORED_TYPES:
        raise ConfigError(f"{file} stores {name} as {type_name}; quantised checkpoints cannot be run, use a plain one")
    dtype = STORED_TYPES[type_name]
    if end - begin != math.prod(shape) * dtype.itemsize:
        raise IntegrityError(f"{file} describes the tensor {name} wrongly; get it again")
    return StoredTensor(name, file, dtype, shape, start + begin, end - begin)


class TensorReader:
    """Reads tensors through one buffer: one for each, freed between them, would leave holes among those that stay."""

    def __init__(self) -> None:
        self._buffer = torch.empty(READ_BYTES, dtype=torch.uint8)

    def read(
        self, stored: StoredTensor, dtype: torch.dtype, digest: str | None = None, into: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The tensor as `dtype` in CPU memory, that of `into` where it has its shape; takes no more than the result.

        Raises:
            IntegrityError: the file ends early, or the SHA-256 of the stored bytes is not `digest` (hexadecimal).
        """
        is_placed = into is not None and tuple(into.shape) == stored.shape and into.dtype == dtype
        result = into if into is not None and is_placed else torch.empty(stored.shape, dtype=dtype)
        hasher = hashlib.sha256() if digest is not None else None
        try:
            with stored.file.open("rb", buffering=0) as stream:
                stream.seek(stored.offset)
                self._fill(result, stream.fileno(), stored, hasher)
        except OSError as error:
            raise IntegrityError(f"{stored.file} cannot be read: {error.strerror}; get it again") from error
        if hasher is not None and hasher.hexdigest() != digest:
            raise IntegrityError(
                f"the tensor {stored.name} in {stored.file} is not what the manifest says; get it again"
            )
        return result

    def _fill(self, result: torch.Tensor, descriptor: int, stored: StoredTensor, hasher: Any) -> None:
        if stored.dtype == result.dtype:
            _read_into(descriptor, _raw_bytes(result), stored, hasher)
            return
        flat, buffer = result.view(-1), self._buffer.view(stored.dtype)
        for first in range(0, flat.numel(), buffer.numel()):
            part = buffer[: flat.numel() - first]
            _read_into(descriptor, _raw_bytes(part), stored, hasher)
            flat[first : first + part.numel()].copy_(part)


def _raw_bytes(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.view(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]


def _read_into(descriptor: int, target: memoryview, stored: StoredTensor, hasher: Any) -> None:
    filled = 0
    while filled < len(target):
        part = target[filled : filled + READ_BYTES]
        count = os.readv(descriptor, [part])
        if count == 0:
            raise IntegrityError(f"{stored.file} ends within the tensor {stored.name}; get it again")
        if hasher is not None:
            hasher.update(part[:count])
        filled += count
