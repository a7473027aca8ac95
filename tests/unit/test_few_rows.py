"""Two or three rows go through linear layers as four, and give what they gave."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from shardp2p.runtime.few_rows import PADDED_ROWS, linear, pad_few_rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(1, 96), (1, 2, 96), (1, 3, 96), (3, 96), (1, 5, 96), (2, 1, 96), (3, 1, 96), (96,)])
def test_rows_give_what_they_gave(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(shape).to(dtype)
    module = nn.Linear(96, 64, dtype=dtype)
    with torch.inference_mode():
        expected = module(inputs)
        pad_few_rows(module)
        result = module(inputs)
    assert result.shape == expected.shape
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("rows", [2, 3])
def test_few_rows_are_computed_as_four(rows: int) -> None:
    torch.manual_seed(0)
    weight, inputs = torch.randn(64, 96), torch.randn(1, PADDED_ROWS, 96)
    assert torch.equal(linear(inputs[:, :rows], weight, None), linear(inputs, weight, None)[:, :rows])


def test_parameters_keep_their_names() -> None:
    module = nn.Sequential(nn.Linear(4, 2), nn.ReLU())
    before = list(module.state_dict())
    pad_few_rows(module)
    assert list(module.state_dict()) == before
