"""Hidden states [T, H] as bytes and back. The only module outside runtime/ that knows torch.

Scheme `raw` is bit-exact. Scheme `int8` has one scale per row (token): x is sent as round(x / s) with
s = max|row| / 127, so that |x - y| <= max|row| / 254 * (1 + 1e-6) + 1e-30, to which a 16-bit dtype adds its own
rounding of y. A row with NaN, infinity or a magnitude above 1e38 is sent with the scale NaN and comes out as a row
of NaN: a fault stays visible and stays in its row.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Final

import torch

from shardp2p.errors import LocalProtocolError, RemoteProtocolError
from shardp2p.vocabulary import DType
from shardp2p.wire.codec_parts import InvalidError, check_tensor
from shardp2p.wire.messages import Scheme, TensorFrame

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


def encode_tensor(hidden: torch.Tensor, scheme: Scheme = "raw", dtype: torch.dtype | None = None) -> TensorFrame:
    """The frame of `hidden` [T, H], of any device; `dtype` is that of the decoded tensor, by default hidden's own.

    Raises: LocalProtocolError for another shape or dtype.
    """
    if hidden.dim() != 2:
        raise LocalProtocolError(f"hidden has the shape [T, H], not {list(hidden.shape)}")
    dtype = dtype or hidden.dtype
    name = DTYPE_NAMES.get(dtype)
    if name is None:
        raise LocalProtocolError(f"tensors of {dtype} do not cross the network")
    rows, width = hidden.shape
    if scheme == "raw":
        frame = TensorFrame(scheme, name, (rows, width), _bytes_of(hidden.detach().to("cpu", dtype)))
    else:
        quantised, scales = _quantise(hidden.detach().to(torch.float32))
        frame = TensorFrame(scheme, name, (rows, width), _bytes_of(quantised.cpu()), _bytes_of(scales.cpu()))
    try:
        check_tensor(frame)
    except InvalidError as error:
        raise LocalProtocolError(str(error)) from error
    return frame


def decode_tensor(
    frame: TensorFrame, dtype: torch.dtype | None = None, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """The tensor [T, H] of `frame`, writable and its own, as `dtype` (by default the frame's) on `device`.

    Raises: RemoteProtocolError when lengths and shape disagree, before anything is allocated.
    """
    try:
        check_tensor(frame)
    except InvalidError as error:
        raise RemoteProtocolError(str(error)) from error
    wire_dtype = TORCH_DTYPES[frame.dtype]
    # bytes must not change under their other holders, so the tensor gets a copy that it may write to.
    data = bytearray(frame.data)
    if frame.scheme == "raw":
        hidden = torch.frombuffer(data, dtype=wire_dtype).view(frame.shape)
        return hidden.to(device, dtype or wire_dtype)
    quantised = torch.frombuffer(data, dtype=torch.int8).view(frame.shape).to(device)
    scales = torch.frombuffer(bytearray(frame.scales), dtype=torch.float32).to(device)
    return (quantised * scales.unsqueeze(1)).to(wire_dtype).to(dtype or wire_dtype)


def _quantise(hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 [T, H] and float32 scales [T] of float32 hidden [T, H]."""
    largest = torch.linalg.vector_norm(hidden, ord=torch.inf, dim=1)
    scales = largest / 127
    if all(_SMALLEST <= magnitude <= _LARGEST for magnitude in largest.tolist()):
        return (hidden / scales.unsqueeze(1)).round_().to(torch.int8), scales
    scales = torch.where(largest >= _SMALLEST, scales, 0.0)
    # NaN compares false, so that it lands here as well.
    scales = torch.where(largest <= _LARGEST, scales, torch.nan)
    divisors = torch.where(scales > 0, scales, torch.inf).unsqueeze(1)
    return (hidden / divisors).round_().nan_to_num_(nan=0.0).to(torch.int8), scales


def _bytes_of(tensor: torch.Tensor) -> bytes:
    """The elements of a CPU tensor in row order."""
    tensor = tensor.contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes)
