"""Tensors cross the network bit by bit as raw, and within the stated error as int8."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shardp2p.errors import LocalProtocolError, RemoteProtocolError
from shardp2p.vocabulary import DType
from shardp2p.wire.messages import TensorFrame
from shardp2p.wire.tensor import TORCH_DTYPES, decode_tensor, encode_tensor

NAMES: list[DType] = ["float32", "float16", "bfloat16"]


def random_hidden(rows: int, width: int, *, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    magnitudes = 10 ** (torch.rand(rows, 1, generator=generator) * 8 - 4)
    return torch.randn(rows, width, generator=generator) * magnitudes


def int8_bound(hidden: torch.Tensor) -> torch.Tensor:
    """What |x - y| may be, [T, 1], as wire.tensor states it."""
    return hidden.double().abs().amax(1, keepdim=True) / 254 * (1 + 1e-6) + 1e-30


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rows", [1, 7])
def test_raw_is_bit_exact_with_nan_infinity_and_signed_zero(name: DType, rows: int) -> None:
    hidden = random_hidden(rows, 33).to(TORCH_DTYPES[name])
    hidden[0, :5] = torch.tensor([float("nan"), float("inf"), float("-inf"), -0.0, 1e-40])
    frame = encode_tensor(hidden)
    decoded = decode_tensor(frame)
    assert (frame.scheme, frame.dtype, frame.shape, frame.scales) == ("raw", name, (rows, 33), b"")
    assert decoded.dtype == hidden.dtype
    assert torch.equal(decoded.view(torch.uint8), hidden.view(torch.uint8))


def test_bytes_are_little_endian_in_row_order() -> None:
    frame = encode_tensor(torch.tensor([[1.0, -2.0], [0.5, 0.0]]))
    assert frame.data.hex() == "0000803f" + "000000c0" + "0000003f" + "00000000"


def test_a_view_is_sent_as_what_it_shows() -> None:
    whole = random_hidden(6, 8)
    for view in (whole[::2], whole[:, 3:5], whole.t()):
        assert torch.equal(decode_tensor(encode_tensor(view)), view)


def test_a_decoded_tensor_may_be_written_without_harm_to_the_frame() -> None:
    frame = encode_tensor(torch.ones(2, 2))
    decode_tensor(frame).zero_()
    assert torch.equal(decode_tensor(frame), torch.ones(2, 2))


def test_dtypes_convert_on_either_side() -> None:
    hidden = random_hidden(3, 5)
    assert torch.equal(decode_tensor(encode_tensor(hidden, dtype=torch.bfloat16)), hidden.bfloat16())
    assert torch.equal(decode_tensor(encode_tensor(hidden.half()), torch.float32), hidden.half().float())
    gradient = hidden.clone().requires_grad_()
    assert not decode_tensor(encode_tensor(gradient)).requires_grad


@given(st.integers(1, 5), st.integers(1, 40), st.integers(0, 2**31), st.floats(-38, 37))
def test_int8_keeps_its_stated_error(rows: int, width: int, seed: int, exponent: float) -> None:
    hidden = random_hidden(rows, width, seed=seed).double()
    hidden = (hidden / hidden.abs().max() * 10**exponent).float()
    decoded = decode_tensor(encode_tensor(hidden, "int8"))
    assert bool(((hidden.double() - decoded.double()).abs() <= int8_bound(hidden)).all())


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_int8_adds_only_the_rounding_of_a_16_bit_dtype(name: DType) -> None:
    dtype = TORCH_DTYPES[name]
    hidden = random_hidden(9, 64, seed=3).to(dtype)
    decoded = decode_tensor(encode_tensor(hidden, "int8"))
    assert decoded.dtype == dtype
    rounding = decoded.double().abs() * torch.finfo(dtype).eps + torch.finfo(dtype).smallest_normal
    assert bool(((hidden.double() - decoded.double()).abs() <= int8_bound(hidden) + rounding).all())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf"), 2e38])
def test_int8_shows_a_fault_in_its_row_and_only_there(bad: float) -> None:
    hidden = random_hidden(3, 16)
    hidden[1, 4] = bad
    decoded = decode_tensor(encode_tensor(hidden, "int8"))
    assert bool(decoded[1].isnan().all())
    kept = hidden[[0, 2]]
    assert bool(((kept.double() - decoded[[0, 2]].double()).abs() <= int8_bound(kept)).all())


def test_int8_sends_zero_and_tiny_rows_as_zero() -> None:
    hidden = torch.zeros(3, 8)
    hidden[1] = 1e-40
    hidden[2, 0] = 1.0
    assert torch.equal(decode_tensor(encode_tensor(hidden, "int8")), torch.where(hidden == 1.0, 1.0, 0.0))


@pytest.mark.parametrize(
    "change",
    [
        {"shape": (2, 5)},
        {"shape": (3, 4)},
        {"shape": (0, 4)},
        {"shape": (2, 2**40)},
        {"shape": (-2, -4)},
        {"data": b""},
        {"scales": b"\0\0\0\0"},
        {"scheme": "int8"},
        {"dtype": "float16"},
    ],
)
def test_lengths_that_disagree_with_the_shape_are_the_peers_fault(change: dict[str, object]) -> None:
    frame = encode_tensor(torch.ones(2, 4))
    forged = dataclasses.replace(frame, **change)  # type: ignore[arg-type]
    with pytest.raises(RemoteProtocolError):
        decode_tensor(forged)


def test_int8_needs_one_scale_for_each_row() -> None:
    frame = encode_tensor(torch.ones(2, 4), "int8")
    assert (len(frame.data), len(frame.scales)) == (8, 8)
    with pytest.raises(RemoteProtocolError, match="8 of scales, not 8 and 4"):
        decode_tensor(TensorFrame("int8", "float32", (2, 4), frame.data, frame.scales[:4]))


@pytest.mark.parametrize("hidden", [torch.ones(4), torch.ones(1, 2, 3), torch.ones(2, 2).long(), torch.ones(0, 4)])
def test_what_cannot_be_sent_is_our_bug(hidden: torch.Tensor) -> None:
    with pytest.raises(LocalProtocolError):
        encode_tensor(hidden)


@pytest.mark.gpu
def test_a_device_tensor_goes_out_and_comes_back() -> None:
    hidden = random_hidden(4, 16).cuda()
    assert torch.equal(decode_tensor(encode_tensor(hidden), device="cuda"), hidden)
    decoded = decode_tensor(encode_tensor(hidden, "int8"), device="cuda")
    assert bool(((hidden.double() - decoded.double()).abs() <= int8_bound(hidden)).all())
