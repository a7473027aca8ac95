"""Tensors cross the network bit by bit as raw, and within the stated errors as fp16 and int8."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shardp2p.errors import LocalProtocolError, RemoteProtocolError
from shardp2p.vocabulary import DType, WireScheme
from shardp2p.wire.tensor import TORCH_DTYPES, decode_tensor, encode_tensor
from shardp2p.wire.tensor_frame import TensorFrame

NAMES: list[DType] = ["float32", "float16", "bfloat16"]


def random_hidden(rows: int, width: int, *, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    magnitudes = 10 ** (torch.rand(rows, 1, generator=generator) * 8 - 4)
    return torch.randn(rows, width, generator=generator) * magnitudes


def int8_bound(hidden: torch.Tensor) -> torch.Tensor:
    """What |x - y| may be, [T, 1], as wire.tensor states it."""
    return hidden.double().abs().amax(1, keepdim=True) / 254 * (1 + 1e-6) + 1e-30


def fp16_bound(hidden: torch.Tensor) -> torch.Tensor:
    """What |x - y| may be, [T, H], as wire.tensor states it."""
    magnitudes = hidden.double().abs()
    return magnitudes / 2048 * (1 + 1e-6) + magnitudes.amax(1, keepdim=True) * 2**-39 + 1e-30


REDUCED: list[WireScheme] = ["fp16", "int8"]
BOUNDS = {"fp16": fp16_bound, "int8": int8_bound}


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


@pytest.mark.parametrize("scheme", REDUCED)
@given(st.integers(1, 5), st.integers(1, 40), st.integers(0, 2**31), st.floats(-38, 37))
def test_a_reduced_tensor_keeps_its_stated_error(
    scheme: WireScheme, rows: int, width: int, seed: int, exponent: float
) -> None:
    hidden = random_hidden(rows, width, seed=seed).double()
    hidden = (hidden / hidden.abs().max() * 10**exponent).float()
    decoded = decode_tensor(encode_tensor(hidden, scheme))
    assert bool(((hidden.double() - decoded.double()).abs() <= BOUNDS[scheme](hidden)).all())


@pytest.mark.parametrize("scheme", REDUCED)
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_a_16_bit_dtype_adds_only_its_own_rounding(scheme: WireScheme, name: DType) -> None:
    dtype = TORCH_DTYPES[name]
    hidden = random_hidden(9, 64, seed=3).to(dtype)
    decoded = decode_tensor(encode_tensor(hidden, scheme))
    assert decoded.dtype == dtype
    rounding = decoded.double().abs() * torch.finfo(dtype).eps + torch.finfo(dtype).smallest_normal
    assert bool(((hidden.double() - decoded.double()).abs() <= BOUNDS[scheme](hidden) + rounding).all())


@pytest.mark.parametrize("scheme", REDUCED)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf"), 2e38])
def test_a_reduced_tensor_shows_a_fault_in_its_row_and_only_there(scheme: WireScheme, bad: float) -> None:
    hidden = random_hidden(3, 16)
    hidden[1, 4] = bad
    decoded = decode_tensor(encode_tensor(hidden, scheme))
    assert bool(decoded[1].isnan().all())
    kept = hidden[[0, 2]]
    assert bool(((kept.double() - decoded[[0, 2]].double()).abs() <= BOUNDS[scheme](kept)).all())


@pytest.mark.parametrize("scheme", REDUCED)
def test_a_reduced_tensor_has_zero_and_tiny_rows_as_zero(scheme: WireScheme) -> None:
    hidden = torch.zeros(3, 8)
    hidden[1] = 1e-40
    hidden[2, 0] = 1.0
    assert torch.equal(decode_tensor(encode_tensor(hidden, scheme)), torch.where(hidden == 1.0, 1.0, 0.0))


def with_outliers(rows: int = 6, width: int = 600) -> torch.Tensor:
    """Rows in which a few elements are hundreds of times as large as the others."""
    hidden = random_hidden(rows, width, seed=5)
    hidden[:, [7, 300, 599]] *= torch.tensor([900.0, -400.0, 100.0])
    return hidden


def test_int8_sends_outliers_as_they_are_and_the_others_by_their_own_magnitude() -> None:
    hidden = with_outliers()
    frame = encode_tensor(hidden, "int8")
    decoded = decode_tensor(frame)
    apart = hidden.abs().topk(600 // 128, dim=1).indices
    assert torch.equal(decoded.gather(1, apart), hidden.gather(1, apart))
    bound = int8_bound(hidden.scatter(1, apart, 0.0))
    assert bool(((hidden.double() - decoded.double()).abs() <= bound).all())
    assert len(frame.data) + len(frame.scales) + len(frame.outliers) < 1.07 * hidden.numel()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 2e38])
def test_a_fault_among_outliers_makes_all_of_its_row_a_fault(bad: float) -> None:
    hidden = with_outliers(3)
    hidden[1, 7] = bad
    decoded = decode_tensor(encode_tensor(hidden, "int8"))
    assert bool(decoded[1].isnan().all())
    assert bool(decoded[[0, 2]].isfinite().all())


@pytest.mark.parametrize("column", [-1, 600, 2**31 - 1])
def test_an_outlier_outside_the_row_is_the_peers_fault(column: int) -> None:
    frame = encode_tensor(with_outliers(), "int8")
    outliers = column.to_bytes(4, "little", signed=True) + bytes(frame.outliers[4:])
    with pytest.raises(RemoteProtocolError, match="outside of 600 columns"):
        decode_tensor(dataclasses.replace(frame, outliers=outliers))


def test_fp16_sends_what_no_half_can_hold_without_cutting_it_off() -> None:
    hidden = torch.tensor([[65504.0, 1.0], [65505.0, 1.0], [1e38, -1e38], [65535.99, 0.1], [3e-8, 1e-8]])
    decoded = decode_tensor(encode_tensor(hidden, "fp16"))
    assert bool(decoded.isfinite().all())
    assert bool(((hidden.double() - decoded.double()).abs() <= fp16_bound(hidden)).all())


def test_fp16_is_exact_for_16_bit_numbers_of_like_magnitude() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        hidden = (torch.randn(4, 64, generator=torch.Generator().manual_seed(1)).sign() * torch.rand(4, 64) + 3).to(
            dtype
        )
        assert torch.equal(decode_tensor(encode_tensor(hidden, "fp16")), hidden)


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
        {"outliers": bytes(16)},
        {"scheme": "int8"},
        {"dtype": "float16"},
    ],
)
def test_lengths_that_disagree_with_the_shape_are_the_peers_fault(change: dict[str, object]) -> None:
    frame = encode_tensor(torch.ones(2, 4))
    forged = dataclasses.replace(frame, **change)  # type: ignore[arg-type]
    with pytest.raises(RemoteProtocolError):
        decode_tensor(forged)


@pytest.mark.parametrize(("scheme", "size"), [("fp16", 16), ("int8", 8)])
def test_a_reduced_tensor_needs_one_scale_for_each_row(scheme: WireScheme, size: int) -> None:
    frame = encode_tensor(torch.ones(2, 4), scheme)
    assert (len(frame.data), len(frame.scales)) == (size, 8)
    with pytest.raises(RemoteProtocolError, match=f"8 of scales, not {size} and 4"):
        decode_tensor(TensorFrame(scheme, "float32", (2, 4), frame.data, frame.scales[:4]))


def test_data_of_our_own_is_taken_over_and_other_data_is_copied() -> None:
    for frame, is_taken in (
        (TensorFrame("raw", "float32", (2, 2), memoryview(bytearray(16))), True),
        (TensorFrame("raw", "float32", (2, 2), memoryview(bytearray(17))[1:]), False),  # no place for a float32
        (TensorFrame("raw", "float32", (2, 2), bytes(16)), False),
    ):
        decode_tensor(frame).fill_(1.0)
        assert any(frame.data) is is_taken


@pytest.mark.parametrize("hidden", [torch.ones(4), torch.ones(1, 2, 3), torch.ones(2, 2).long(), torch.ones(0, 4)])
def test_what_cannot_be_sent_is_our_bug(hidden: torch.Tensor) -> None:
    with pytest.raises(LocalProtocolError):
        encode_tensor(hidden)


@pytest.mark.gpu
def test_a_device_tensor_goes_out_and_comes_back() -> None:
    hidden = random_hidden(4, 16).cuda()
    assert torch.equal(decode_tensor(encode_tensor(hidden), device="cuda"), hidden)
    for scheme in REDUCED:
        decoded = decode_tensor(encode_tensor(hidden, scheme), device="cuda")
        assert bool(((hidden.double() - decoded.double()).abs() <= BOUNDS[scheme](hidden)).all())
