"""Weights of linear layers as a CPU's products read them fastest: in blocks, laid out once.

torch keeps a weight row by row. In bfloat16 it lays it out anew for every product, which takes as long as a few rows'
arithmetic; in float32 it multiplies by another library. Where a fast layout is asked for, a weight is laid out as soon
as it is read, and takes the place of what was read, so that there is one of each.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any, Final

import structlog
import torch
from torch import Tensor, nn

from shardp2p.runtime.few_rows import PaddedLinear, linear
from shardp2p.runtime.fuse import Product, drop_weight, group_of
from shardp2p.runtime.memory import give_back_freed

log = structlog.get_logger()

LEAST_NUMBERS: Final = 2**12 + 1
"""Of a weight: torch multiplies by smaller ones otherwise, at some numbers of rows."""

TIMED_ROWS: Final = (1, 8)
"""A layout that changes bits has to be faster for both."""

TIMED_RUNS: Final = 15
"""The fastest counts: a busy machine only adds."""


class WeightLayout:
    """Lays out the weights of a model's linear layers, in place, one by one.

    Those of bfloat16 where no bit of a result changes, as one row shows; those of float32 where that is faster here:
    results are equal up to the order of adding. Loading takes some megabytes more.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._must_equal = dtype is torch.bfloat16
        self._is_on = bool(torch._C._has_mkldnn) and (self._must_equal or dtype is torch.float32)
        self._is_good: dict[int, bool] = {}  # by the width of inputs

    def lay_out(self, module: Any) -> None:
        """Where `module` is a linear layer: its weight, which is complete; with others, once theirs are too."""
        if not self._is_on:
            return
        group = group_of(module)
        with torch.inference_mode():
            if group is not None and group.is_complete_with(module):
                product = self._good_product(group.weight)
                if product is not None:
                    group.compute_by(product)
            elif type(module) in (nn.Linear, PaddedLinear):
                product = self._good_product(module.weight)
                if product is not None:
                    module.__class__ = _LaidOutLinear
                    module.product = product
                    drop_weight(module)
        give_back_freed()

    def _good_product(self, weight: Tensor) -> Product | None:
        """A product by a copy of `weight` [out, in]; None: it is to stay as it is."""
        width = weight.shape[1]
        if weight.numel() < LEAST_NUMBERS or not self._is_good.get(width, True):
            return None
        try:
            product = _product(weight)
            is_good = self._is_good.get(width) or self._try(weight, product)
        except RuntimeError as error:  # this CPU has no kernel for it
            log.info("weights_not_laid_out", reason=str(error).partition("\n")[0])
            is_good, product = False, None
        self._is_good[width] = is_good
        return product if is_good else None

    def _try(self, weight: Tensor, product: Product) -> bool:
        if not self._must_equal:
            return all(_is_faster(weight, product, rows) for rows in TIMED_ROWS)
        # One row: kernels for each number of rows take memory of their own.
        inputs = torch.randn((1, 1, weight.shape[1]), generator=torch.Generator().manual_seed(0)).to(weight.dtype)
        return torch.equal(product(inputs, None), linear(inputs, weight, None))


def _is_faster(weight: Tensor, product: Product, rows: int) -> bool:
    inputs = torch.ones((1, rows, weight.shape[1]), dtype=weight.dtype)
    plain_s = new_s = float("inf")
    for _ in range(TIMED_RUNS):
        started = perf_counter()
        linear(inputs, weight, None)
        between = perf_counter()
        product(inputs, None)
        plain_s, new_s = min(plain_s, between - started), min(new_s, perf_counter() - between)
    return new_s < plain_s


class _LaidOutLinear(nn.Linear):
    product: Any  # a Product

    def forward(self, inputs: Tensor) -> Tensor:
        """The rows `inputs` [..., in] → [..., out]."""
        result: Tensor = self.product(inputs, self.bias)
        return result


def _product(weight: Tensor) -> Product:
    """By a copy of `weight` [out, in]. Raises: RuntimeError where this CPU cannot."""
    operators: Any = torch.ops.mkldnn
    laid_out = operators._reorder_linear_weight(weight, 1)

    def product(inputs: Tensor, bias: Tensor | None) -> Tensor:
        result: Tensor = operators._linear_pointwise(inputs, laid_out, bias, "none", [], "")
        return result

    return product
