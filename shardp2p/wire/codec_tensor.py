"""Tensors as protobuf and back. Rules: docs/protocols/framing.md. Pure, and without torch.

protobuf copies a bytes field when it parses a message and again when the field is read, and the other way round. The
bytes of a large tensor therefore go past it: they are written as pieces, and read where they lie.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from shardp2p.vocabulary import WIRE_SCHEMES, DType, WireScheme
from shardp2p.wire.codec_parts import InvalidError
from shardp2p.wire.pb import types_pb2
from shardp2p.wire.protocols import MAX_ROWS
from shardp2p.wire.tensor_frame import Buffer, TensorFrame

MAX_HIDDEN: Final = 2**20

ITEM_BYTES: Final[dict[DType, int]] = {"float32": 4, "float16": 2, "bfloat16": 2}
SCALED_ITEM_BYTES: Final[dict[WireScheme, int]] = {"fp16": 2, "int8": 1}
SCALE_BYTES: Final = 4
OUTLIER_BYTES: Final = 8

OUTLIER_SPACING: Final = 128
"""Of so many elements one may stand apart: in real models a few are hundreds of times as large as the others."""

_SCHEME_TO_WIRE: Final = {
    "raw": types_pb2.TensorFrame.RAW,
    "fp16": types_pb2.TensorFrame.FP16,
    "int8": types_pb2.TensorFrame.INT8,
}
_SCHEME_FROM_WIRE: Final[dict[int, WireScheme]] = {
    types_pb2.TensorFrame.RAW: "raw",
    types_pb2.TensorFrame.FP16: "fp16",
    types_pb2.TensorFrame.INT8: "int8",
}
_DTYPE_TO_WIRE: Final = {
    "float32": types_pb2.TensorFrame.FLOAT32,
    "float16": types_pb2.TensorFrame.FLOAT16,
    "bfloat16": types_pb2.TensorFrame.BFLOAT16,
}
_DTYPE_FROM_WIRE: Final[dict[int, DType]] = {
    types_pb2.TensorFrame.FLOAT32: "float32",
    types_pb2.TensorFrame.FLOAT16: "float16",
    types_pb2.TensorFrame.BFLOAT16: "bfloat16",
}

_DATA_FIELD: Final = types_pb2.TensorFrame.DATA_FIELD_NUMBER
_VARINT: Final = 0
_LENGTH_DELIMITED: Final = 2
_FIXED_BYTES: Final = {1: 8, 5: 4}


def write_scheme(scheme: WireScheme) -> types_pb2.TensorFrame.Scheme:
    """The number of a tensor scheme."""
    return _SCHEME_TO_WIRE[scheme]


def read_scheme(number: int) -> WireScheme:
    """The tensor scheme of that number."""
    scheme = _SCHEME_FROM_WIRE.get(number)
    if scheme is None:
        raise InvalidError(f"the tensor scheme {number} is unknown; this peer knows {', '.join(WIRE_SCHEMES)}")
    return scheme


def write_tensor(frame: TensorFrame) -> tuple[Buffer, ...]:
    """The protobuf bytes of a tensor in pieces to be joined, field by field as protobuf itself would write them."""
    scheme = types_pb2.TensorFrame.INT8_OUTLIERS if frame.outliers else _SCHEME_TO_WIRE[frame.scheme]
    head = types_pb2.TensorFrame(scheme=scheme, dtype=_DTYPE_TO_WIRE[frame.dtype], shape=frame.shape)
    tail = types_pb2.TensorFrame(scales=bytes(frame.scales), outliers=bytes(frame.outliers))
    prefix = length_prefix(_DATA_FIELD, len(frame.data))
    return head.SerializeToString(), prefix, frame.data, tail.SerializeToString()


def length_prefix(field: int, length: int) -> bytes:
    """What stands before a bytes or message field of `length` bytes: tag (wire type 2) and length, as varints."""
    prefix = bytearray((field << 3 | _LENGTH_DELIMITED,))
    while length > 0x7F:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    prefix.append(length)
    return bytes(prefix)


def read_tensor(wire: types_pb2.TensorFrame, data: Buffer | None = None) -> TensorFrame:
    """A tensor of two dimensions and a known scheme and dtype; `check_tensor` tests the lengths.

    `data` takes the place of the message's own, of which it was relieved.
    """
    dtype = _DTYPE_FROM_WIRE.get(wire.dtype)
    if dtype is None:
        raise InvalidError(f"the tensor dtype {wire.dtype} is unknown")
    if len(wire.shape) != 2:
        raise InvalidError(f"a tensor has the shape [rows, hidden], not {len(wire.shape)} dimensions")
    has_outliers = wire.scheme == types_pb2.TensorFrame.INT8_OUTLIERS
    if has_outliers != bool(wire.outliers):
        raise InvalidError(f"a tensor of the scheme {wire.scheme} with {len(wire.outliers)} bytes of outliers")
    scheme = "int8" if has_outliers else read_scheme(wire.scheme)
    rows, hidden = wire.shape
    return TensorFrame(scheme, dtype, (rows, hidden), wire.data if data is None else data, wire.scales, wire.outliers)


def check_tensor(frame: TensorFrame) -> None:
    """The lengths are those that shape, scheme and dtype demand."""
    rows, hidden = frame.shape
    if not (1 <= rows <= MAX_ROWS and 1 <= hidden <= MAX_HIDDEN):
        raise InvalidError(f"the tensor shape [{rows}, {hidden}] is out of bounds")
    data_bytes = rows * hidden * (SCALED_ITEM_BYTES.get(frame.scheme) or ITEM_BYTES[frame.dtype])
    scales_bytes = rows * SCALE_BYTES if frame.scheme in SCALED_ITEM_BYTES else 0
    if len(frame.data) != data_bytes or len(frame.scales) != scales_bytes:
        raise InvalidError(
            f"a {frame.scheme} tensor [{rows}, {hidden}] of {frame.dtype} has {data_bytes} bytes and {scales_bytes} "
            f"of scales, not {len(frame.data)} and {len(frame.scales)}"
        )
    if frame.outliers:
        outliers_bytes = outliers_of(hidden) * rows * OUTLIER_BYTES if frame.scheme == "int8" else 0
        if len(frame.outliers) != outliers_bytes:
            raise InvalidError(
                f"a {frame.scheme} tensor [{rows}, {hidden}] has {outliers_bytes} bytes of outliers at most, not "
                f"{len(frame.outliers)}"
            )


def outliers_of(hidden: int) -> int:
    """How many elements of a row of `hidden` stand apart."""
    return hidden // OUTLIER_SPACING


class Span(NamedTuple):
    """A length-delimited field in protobuf bytes: where its tag is, and where its content starts and ends."""

    tag_at: int
    start: int
    end: int


def find_tensor_data(message: memoryview, field: int) -> tuple[Span, Span] | None:
    """The first field `field` of a message, a tensor, and within it its data; None where there is none to be found.

    The message need not be there to its end, only to where the data begins.
    """
    tensor = _find_field(message, field, 0)
    data = None if tensor is None else _find_field(message, _DATA_FIELD, tensor.start)
    return None if tensor is None or data is None or data.end > tensor.end else (tensor, data)


def _find_field(message: memoryview, field: int, at: int) -> Span | None:
    """The first length-delimited field of that number from `at` on."""
    try:
        while True:
            tag_at = at
            tag, at = _read_varint(message, at)
            kind = tag & 7
            length = 0
            if kind == _LENGTH_DELIMITED:
                length, at = _read_varint(message, at)
                if tag >> 3 == field:
                    return Span(tag_at, at, at + length)
            elif kind == _VARINT:
                _, at = _read_varint(message, at)
            elif kind in _FIXED_BYTES:
                length = _FIXED_BYTES[kind]
            else:
                return None
            at += length
    except IndexError:
        return None


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    """A varint and where it ends. Raises: IndexError when it does not end, here or within five bytes."""
    value = 0
    for shift in range(0, 35, 7):
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise IndexError
