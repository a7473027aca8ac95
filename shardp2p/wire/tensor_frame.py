"""Hidden states as they cross the network; `wire.tensor` makes and reads them. Pure, and without torch."""

from __future__ import annotations

from dataclasses import dataclass

from shardp2p.vocabulary import DType, WireScheme

Buffer = bytes | bytearray | memoryview
"""Bytes, wherever they lie: a memoryview is one of single bytes."""


@dataclass(frozen=True, slots=True)
class TensorFrame:
    """An encoded tensor [rows, hidden].

    `scales` holds one little-endian float32 per row for fp16 and int8, and is empty for raw. `outliers` holds for int8,
    if anything, the columns (int32 [rows, n]) and values (float32 [rows, n]) of elements that stand apart. `data` that
    can be written to belongs to the frame alone, so that whoever decodes it may keep it.
    """

    scheme: WireScheme
    dtype: DType
    shape: tuple[int, int]
    data: Buffer
    scales: Buffer = b""
    outliers: Buffer = b""
