"""Linear layers that read the same input become one product, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shardp2p.runtime.few_rows import pad_few_rows
from shardp2p.runtime.fuse import fuse_siblings


class Attention(nn.Module):
    def __init__(self, dtype: torch.dtype, *, has_bias: bool = False) -> None:
        super().__init__()
        self.q_proj = nn.Linear(96, 64, bias=has_bias, dtype=dtype)
        self.k_proj = nn.Linear(96, 32, bias=has_bias, dtype=dtype)
        self.v_proj = nn.Linear(96, 32, bias=has_bias, dtype=dtype)

    def forward(self, hidden: Tensor) -> list[Tensor]:
        return [self.q_proj(hidden), self.k_proj(hidden), self.v_proj(hidden)]


class Crossed(Attention):
    """Keys and values of other rows than the queries, asked for in another order, one of them twice."""

    def forward(self, hidden: Tensor) -> list[Tensor]:
        other = hidden + 1
        return [self.v_proj(other), self.q_proj(hidden), self.k_proj(other), self.q_proj(hidden), self.q_proj(hidden)]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("kind", [Attention, Crossed])
def test_results_are_equal_in_every_bit(kind: type[Attention], dtype: torch.dtype, has_bias: bool) -> None:
    module = kind(dtype, has_bias=has_bias)
    pad_few_rows(module)
    for rows in (1, 2, 3, 8, 17, 64):
        hidden = torch.randn(1, rows, 96).to(dtype)
        with torch.inference_mode():
            expected = module(hidden)
            fused = kind(dtype, has_bias=has_bias)
            fused.load_state_dict(module.state_dict())
            fuse_siblings(fused)
            for _ in range(2):
                assert all(map(torch.equal, fused(hidden), expected))


def test_parameters_stay_where_they_were_and_share_one_memory() -> None:
    module = Attention(torch.float32)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    fuse_siblings(module)
    after = module.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert len({value.untyped_storage().data_ptr() for value in after.values()}) == 1


def test_results_are_not_kept_once_they_are_handed_out() -> None:
    module = Attention(torch.float32)
    fuse_siblings(module)
    group: Any = module.q_proj._group
    with torch.inference_mode():
        module(torch.ones(1, 1, 96))
    assert group._input is None
    assert group._results == [None, None, None]


@pytest.mark.parametrize("odd", ["class", "width", "bias", "dtype"])
def test_layers_that_do_not_fit_together_stay_alone(odd: str) -> None:
    class OtherLinear(nn.Linear):
        pass

    module = Attention(torch.float32)
    module.k_proj = {
        "class": OtherLinear(96, 32, bias=False),
        "width": nn.Linear(48, 32, bias=False),
        "bias": nn.Linear(96, 32),
        "dtype": nn.Linear(96, 32, bias=False, dtype=torch.bfloat16),
    }[odd]
    fuse_siblings(module)
    assert type(module.q_proj) is nn.Linear


def test_layers_without_memory_get_it_and_wait_for_their_values() -> None:
    with torch.device("meta"):
        module = Attention(torch.bfloat16)
    fuse_siblings(module)
    assert all(value.device.type == "cpu" for value in module.state_dict().values())
    values = Attention(torch.bfloat16)
    for name, value in module.named_parameters():
        value.copy_(values.get_parameter(name))
    hidden = torch.ones(1, 2, 96, dtype=torch.bfloat16)
    assert all(map(torch.equal, module(hidden), values(hidden)))
