"""What a block of any size needs in memory, brought there before the growth by loading is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from shardp2p.runtime.architecture import blaming_configuration, read_architecture
from shardp2p.vocabulary import DType
from shardp2p.wire.tensor import TORCH_DTYPES

WIDTH = 256
"""Of the matrices that are multiplied: large enough that every kernel and thread takes part."""


def prepare(directory: Path, dtype: DType, device: str = "cpu") -> None:
    """Import the model's code, and run what its layers are made of once: kernels and threads take memory on first use.

    Raises: ConfigError for a directory that holds no model, or a configuration that none can be made from.
    """
    architecture = read_architecture(directory)
    with blaming_configuration(directory, architecture.config.model_type), torch.device("meta"):
        model_class: Any = architecture.model_class
        model_class._from_config(architecture.config)
    weight = torch.zeros((WIDTH, WIDTH), dtype=TORCH_DTYPES[dtype], device=device)
    with torch.inference_mode():
        for rows in (1, 16):
            inputs = functional.embedding(torch.zeros(rows, dtype=torch.int64, device=device), weight)
            heads = functional.linear(inputs, weight).view(1, rows, 4, -1).transpose(1, 2)
            mask = torch.ones((rows, rows), dtype=torch.bool, device=device)
            attended = functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask)
            squares = functional.silu(attended).to(torch.float32).pow(2).mean(-1, keepdim=True)
            torch.cat((torch.rsqrt(squares + 1.0).cos(), squares), dim=-1).to(weight.dtype).argmax(-1).tolist()
