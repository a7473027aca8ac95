"""Products of two or three rows on a CPU, computed as products of four.

BLAS libraries read a float32 weight once for one row and once for many, and slowly in between: two rows of SmolLM2 took
1.5 times as long as one, three 1.9 times, four 1.3 times.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn

PADDED_ROWS: Final = 4


def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """As torch's: rows [..., in] → [..., out]."""
    rows = inputs.numel() // inputs.shape[-1]
    if not (1 < rows < PADDED_ROWS and inputs.ndim > 1 and inputs.shape[-2] == rows and inputs.dtype is torch.float32):
        return nn.functional.linear(inputs, weight, bias)
    padded = nn.functional.pad(inputs, (0, 0, 0, PADDED_ROWS - rows))
    return nn.functional.linear(padded, weight, bias)[..., :rows, :]


def pad_few_rows(model: nn.Module) -> None:
    """Let the linear layers of `model` compute few rows so, in place."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = PaddedLinear


class PaddedLinear(nn.Linear):
    """A linear layer that computes few rows so."""

    def forward(self, inputs: Tensor) -> Tensor:
        """The rows `inputs` [..., in] → [..., out]."""
        return linear(inputs, self.weight, self.bias)
