"""Hidden states [T, H] as bytes and back. The only module outside runtime/ that knows torch.

Scheme `raw` is bit-exact. The others compute on the device and have one scale per row (token). With m = max|row|, what
was sent as x comes out as y with

    fp16   |x - y| <= |x| / 2048 * (1 + 1e-6) + m * 2^-39 + 1e-30    the scale a power of two that makes m fit
    int8   |x - y| <= m / 254 * (1 + 1e-6) + 1e-30                   the scale m / 127

where for int8 the outliers do not count: as many elements of the row as outliers_of says, the largest ones, go as they
are. A 16-bit dtype adds its own rounding of y. Nothing overflows: a row is scaled, not cut off. A row with NaN or
infinity, or with a magnitude above 1e38, comes out as a row of NaN: a fault stays visible and stays in its row.
"""

from __future__ import annotations

import sys
from typing import Final

import torch

from shardp2p.errors import LocalProtocolError, RemoteProtocolError
from shardp2p.vocabulary import DType, WireScheme
from shardp2p.wire.codec_parts import InvalidError
from shardp2p.wire.codec_tensor import check_tensor, outliers_of
from shardp2p.wire.tensor_frame import Buffer, TensorFrame

if sys.byteorder != "little":
    raise ImportError("tensors cross the network in little-endian order; this machine's order is not supported")

Tensor = torch.Tensor
"""The type, for annotations in layers that do not know torch."""

TORCH_DTYPES: Final[dict[DType, torch.dtype]] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
DTYPE_NAMES: Final[dict[torch.dtype, DType]] = {dtype: name for name, dtype in TORCH_DTYPES.items()}

_LARGEST: Final = 1e38
_SMALLEST: Final = 1e-30
_LARGEST_HALF: Final = 65504.0


def encode_tensor(hidden: torch.Tensor, scheme: WireScheme = "raw", dtype: torch.dtype | None = None) -> TensorFrame:
    """The frame of `hidden` [T, H], of any device; `dtype` is that of the decoded tensor, by default hidden's own.

    The frame shows the tensor's own memory where that is as it is sent: nobody may write to `hidden` before it is.
    Raises: LocalProtocolError for another shape or dtype.
    """
    if hidden.dim() != 2:
        raise LocalProtocolError(f"hidden has the shape [T, H], not {list(hidden.shape)}")
    dtype = dtype or hidden.dtype
    name = DTYPE_NAMES.get(dtype)
    if name is None:
        raise LocalProtocolError(f"tensors of {dtype} do not cross the network")
    rows, width = hidden.shape
    hidden = hidden.detach()
    if scheme == "raw":
        frame = TensorFrame(scheme, name, (rows, width), _bytes_of(hidden.to("cpu", dtype)))
    elif scheme == "fp16":
        halves, scales = _to_half(hidden.to(torch.float32))
        frame = TensorFrame(scheme, name, (rows, width), _bytes_of(halves.cpu()), _bytes_of(scales.cpu()))
    else:
        sent = (_bytes_of(part.cpu()) for part in _quantise(hidden.to(torch.float32)))
        data, small, columns, values = sent
        frame = TensorFrame(scheme, name, (rows, width), data, small, bytes(columns) + bytes(values))
    try:
        check_tensor(frame)
    except InvalidError as error:
        raise LocalProtocolError(str(error)) from error
    return frame


def decode_tensor(
    frame: TensorFrame, dtype: torch.dtype | None = None, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """The tensor [T, H] of `frame`, writable, as `dtype` (by default the frame's) on `device`.

    It takes over data that can be written to, and that lies as its elements need; other data is copied.
    Raises: RemoteProtocolError when lengths and shape disagree, before anything is allocated.
    """
    try:
        check_tensor(frame)
    except InvalidError as error:
        raise RemoteProtocolError(str(error)) from error
    wire_dtype = TORCH_DTYPES[frame.dtype]
    if frame.scheme == "raw":
        return _tensor_of(frame.data, wire_dtype).view(frame.shape).to(device, dtype or wire_dtype)
    sent_dtype = torch.float16 if frame.scheme == "fp16" else torch.int8
    reduced = _tensor_of(frame.data, sent_dtype).view(frame.shape).to(device)
    scales = _tensor_of(frame.scales, torch.float32).to(device)
    hidden = reduced.to(torch.float32) * scales.unsqueeze(1)
    if frame.outliers:
        columns, values = _read_outliers(frame)
        hidden.scatter_(1, columns.to(device), values.to(device))
    return hidden.to(wire_dtype).to(dtype or wire_dtype)


def _read_outliers(frame: TensorFrame) -> tuple[torch.Tensor, torch.Tensor]:
    """The columns, int64, and values [T, n], of a frame that is sound. Raises: RemoteProtocolError."""
    half = len(frame.outliers) // 2
    columns = _tensor_of(frame.outliers[:half], torch.int32).view(frame.shape[0], -1).long()
    if not 0 <= int(columns.min()) <= int(columns.max()) < frame.shape[1]:
        raise RemoteProtocolError(f"an outlier lies outside of {frame.shape[1]} columns")
    return columns, _tensor_of(frame.outliers[half:], torch.float32).view(columns.shape)


def _quantise(hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """int8 [T, H], float32 scales [T], and the outliers' columns, int32, and values [T, n] of float32 hidden [T, H]."""
    columns = torch.topk(hidden.abs(), outliers_of(hidden.shape[1]), dim=1, sorted=False).indices
    values = hidden.gather(1, columns)
    rest = hidden.scatter(1, columns, 0.0)
    largest = torch.linalg.vector_norm(rest, ord=torch.inf, dim=1)
    if values.shape[1]:
        # With a fault among its outliers, all of the row is one.
        is_sound = torch.linalg.vector_norm(values, ord=torch.inf, dim=1) <= _LARGEST
        largest = torch.where(is_sound, largest, torch.nan)
        values = torch.where(is_sound.unsqueeze(1), values, torch.nan)
    scaled, scales = _scale(rest, largest, largest / 127)
    return scaled.round_().to(torch.int8), scales, columns.to(torch.int32), values


def _to_half(hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """float16 [T, H] and float32 scales [T], powers of two, of float32 hidden [T, H]."""
    largest = torch.linalg.vector_norm(hidden, ord=torch.inf, dim=1)
    # largest = 65504 * mantissa * 2^exponent with a mantissa of at least a half and below 1.
    exponents = torch.frexp(largest / _LARGEST_HALF).exponent
    scaled, scales = _scale(hidden, largest, torch.ldexp(torch.ones_like(largest), exponents))
    return scaled.to(torch.float16), scales


def _scale(hidden: torch.Tensor, largest: torch.Tensor, scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden [T, H] divided by its rows' scales [T], which are 0 and NaN where that cannot be; its rows are 0 there."""
    if all(_SMALLEST <= magnitude <= _LARGEST for magnitude in largest.tolist()):
        return hidden / scales.unsqueeze(1), scales
    scales = torch.where(largest >= _SMALLEST, scales, 0.0)
    # NaN compares false, so that it lands here as well.
    scales = torch.where(largest <= _LARGEST, scales, torch.nan)
    divisors = torch.where(scales > 0, scales, torch.inf).unsqueeze(1)
    return (hidden / divisors).nan_to_num_(nan=0.0), scales


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """The elements of a CPU tensor in row order, where they are."""
    return memoryview(tensor.contiguous().view(-1).view(torch.uint8).numpy()).toreadonly()  # type: ignore[arg-type]


def _tensor_of(data: Buffer, dtype: torch.dtype) -> torch.Tensor:
    """The elements [n], in the memory of `data` where that is ours and they may lie there."""
    if not memoryview(data).readonly:
        tensor = torch.frombuffer(data, dtype=torch.uint8)
        if tensor.data_ptr() % dtype.itemsize == 0:
            return tensor.view(dtype)
    # bytes must not change under their other holders.
    return torch.frombuffer(bytearray(data), dtype=dtype)
