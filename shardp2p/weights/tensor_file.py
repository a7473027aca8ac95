"""The safetensors file format, read and written without torch: bfloat16 has no numpy type, so tensors are raw bytes.

Format: 8 bytes with the little-endian length of the header, the header as JSON, the tensors' bytes without gaps.
Source: https://huggingface.co/docs/safetensors, "Format".
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from shardp2p.errors import ConfigError, IntegrityError, LocalProtocolError
from shardp2p.weights.manifest import DTYPE_BYTES

MAX_HEADER_BYTES = 100_000_000
"""The limit that the format's own library sets."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor of a file: its bytes are [start, stop), counted from the beginning of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def read_specs(path: Path) -> tuple[TensorSpec, ...]:
    """The tensors of a safetensors file in the order of their bytes, from its header alone.

    Raises: IntegrityError for a file that is truncated, too long or malformed; ConfigError if it cannot be read.
    """
    try:
        size_bytes = path.stat().st_size
        with path.open("rb") as file:
            header, data_start = _read_header(path, file, size_bytes)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    specs = sorted(
        (_parse_spec(path, name, entry, data_start) for name, entry in header.items() if name != "__metadata__"),
        key=lambda spec: (spec.start, spec.stop),
    )
    position = data_start
    for spec in specs:
        if spec.start != position:
            raise IntegrityError(f"{path} is damaged: its header leaves a gap or an overlap before {spec.name}")
        position = spec.stop
    if size_bytes < position:
        raise IntegrityError(f"{path} is truncated: it has {size_bytes} of {position} bytes; get the file again")
    if size_bytes > position:
        raise IntegrityError(f"{path} is damaged: {size_bytes - position} bytes follow its last tensor")
    return tuple(specs)


def _read_header(path: Path, file: BinaryIO, size_bytes: int) -> tuple[dict[str, object], int]:
    length = int.from_bytes(file.read(8), "little")
    if size_bytes < 8 or length > MAX_HEADER_BYTES:
        raise IntegrityError(f"{path} is damaged or no safetensors file: it has no header")
    if 8 + length > size_bytes:
        raise IntegrityError(f"{path} is truncated: it ends within its header; get the file again")
    try:
        header = json.loads(file.read(length))
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{path} is damaged: its header cannot be parsed") from error
    if not isinstance(header, dict):
        raise IntegrityError(f"{path} is damaged: its header is no JSON object")
    return header, 8 + length


def _parse_spec(path: Path, name: str, entry: object, data_start: int) -> TensorSpec:
    match entry:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(start), int(stop)]} if (
            dtype in DTYPE_BYTES
            and all(type(length) is int and length >= 0 for length in shape)
            and 0 <= start <= stop
            and stop - start == math.prod(shape) * DTYPE_BYTES[dtype]
        ):
            return TensorSpec(name, dtype, tuple(shape), data_start + start, data_start + stop)
    raise IntegrityError(f"{path} is damaged: its header describes the tensor {name[:100]!r} wrongly")


def write_tensors(path: Path, tensors: Sequence[tuple[str, str, tuple[int, ...]]], pieces: Iterable[bytes]) -> None:
    """Write a safetensors file of `tensors` (name, dtype, shape), whose bytes `pieces` yields one after the other.

    The header comes first, so only one piece need be in memory. The file is on the disk when this returns.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, dtype, shape in tensors:
        stop = position + math.prod(shape) * DTYPE_BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, stop]}
        position = stop
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)  # tensors start aligned, so that they can be mapped into memory
    written = 0
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for piece in pieces:
            written += file.write(piece)
        if written != position:
            raise LocalProtocolError(f"wrote {written} bytes of tensors, not {position}")
        file.flush()
        os.fsync(file.fileno())
