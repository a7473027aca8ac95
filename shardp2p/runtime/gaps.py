"""Where a block's forward is cut: what a layer's attention and its experts do depends on sessions, or on values.

While a forward is watched, the model's calls of both come here, as those of a pack come to packing.py: transformers
looks them up in tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from torch import Tensor
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from shardp2p.runtime.packing import Cacheless, Pack, packed_attention

GAP_EXPERTS: Final = "shardp2p_gap"
"""The name under which transformers knows our function for experts."""


class Gap(Protocol):
    """What is done between two pieces of a forward of W rows."""

    def fill(self, pack: Pack, count: int) -> None:
        """Does it for the first `count` rows, those of `pack`. The others are padding: what they get means nothing."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class _Attention:
    """Of one layer: query, keys and values [1, heads, W, dim], `out` [1, W, heads, dim]."""

    module: Any
    layer: int
    query: Tensor
    keys: Tensor
    values: Tensor
    others: Mapping[str, Any]
    out: Tensor

    def fill(self, pack: Pack, count: int) -> None:
        query, keys, values = (one[:, :, :count] for one in (self.query, self.keys, self.values))
        pack.update(keys, values, self.layer)
        self.out[:, :count] = pack.attend(self.module, query, keys, values, None, **self.others)


@dataclass(frozen=True, slots=True, eq=False)
class _Experts:
    """Of one layer: each of `inputs` [W, …], `out` [W, H]."""

    module: Any
    implementation: str | None
    inputs: Sequence[Tensor]
    out: Tensor

    def fill(self, pack: Pack, count: int) -> None:
        with _experts_as(self.module.config, self.implementation):
            self.out[:count] = self.module(*(one[:count] for one in self.inputs))


class Gaps(Cacheless):
    """What a model meets in place of cache, attention and experts; as it is, it leaves every gap empty."""

    def __init__(self) -> None:
        self.implementation: str | None = None
        """The model's usual one for experts; `watching` says it."""
        self._updated: list[tuple[int, Tensor, Tensor]] = []

    def open(self) -> None:
        """A gap begins."""

    def close(self, gap: Gap) -> None:
        """It ends; the model goes on with what is in the gap's `out` when that is used."""

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """The new rows [1, heads, W, dim] of a layer, whose attention comes next."""
        self._updated.append((layer_idx, keys, values))
        return keys, values

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **others: Any
    ) -> Tensor:
        """The attention [1, W, heads, dim] of the layer that was updated last."""
        layer, keys, values = self._updated.pop()
        self.open()
        out = query.new_zeros((1, query.shape[2], query.shape[1], value.shape[3]))
        self.close(_Attention(module, layer, query, keys, values, others, out))
        return out

    def ask_experts(self, module: Any, *inputs: Tensor) -> Tensor:
        """What a layer's experts make of `inputs`: hidden [W, H], and what each row asks of whom."""
        self.open()
        out = torch.zeros_like(inputs[0])
        self.close(_Experts(module, self.implementation, inputs, out))
        return out


class Through(Gaps):
    """Fills each gap at once: a forward as ever, but for the padding."""

    def __init__(self, pack: Pack, count: int) -> None:
        super().__init__()
        self._pack = pack
        self._count = count

    def close(self, gap: Gap) -> None:
        gap.fill(self._pack, self._count)


_current: ContextVar[Gaps] = ContextVar("current gaps")


def _ask_experts(module: Any, *inputs: Tensor) -> Tensor:
    return _current.get().ask_experts(module, *inputs)


ALL_EXPERTS_FUNCTIONS.register(GAP_EXPERTS, _ask_experts)


@contextmanager
def watching(config: Any, gaps: Gaps) -> Iterator[None]:
    """Lets the attention and experts of the layers that `config` belongs to go through `gaps`, in this thread."""
    gaps.implementation = config._experts_implementation
    token = _current.set(gaps)
    try:
        with packed_attention(config, gaps), _experts_as(config, GAP_EXPERTS):
            yield
    finally:
        _current.reset(token)


@contextmanager
def _experts_as(config: Any, implementation: str | None) -> Iterator[None]:
    usual = config._experts_implementation
    config._experts_implementation = implementation
    try:
        yield
    finally:
        config._experts_implementation = usual
