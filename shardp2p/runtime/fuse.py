"""Linear layers that read the same input, computed as one matrix product.

A decode step is a few hundred small products, and starting each of them, above all on several threads, costs as much
as the arithmetic. Attention's query, key and value and a gated MLP's two inner layers read the same rows, so one
product gives the results of all of them, equal in every bit. The model's own forward stays as it is: the first layer
of a group that is called computes for all, the others hand out what is theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from shardp2p.runtime.few_rows import linear

GROUPS: Final = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names under which transformers' models keep such layers, within one module."""


def fuse_siblings(model: nn.Module) -> None:
    """Let the groups of `model`'s linear layers share memory and work, in place.

    Layers on the meta device get memory without values: load.py fills it tensor by tensor. For the CPU alone:
    elsewhere the kernels of a wider product may add in another order, and launches are what graphs are for.
    """
    for module in list(model.modules()):
        for names in GROUPS:
            members = [getattr(module, name, None) for name in names]
            linears = [member for member in members if type(member) is nn.Linear]
            if len(linears) == len(names) and _fit_together(linears):
                group = Group(linears)
                for index, name in enumerate(names):
                    setattr(module, name, _Member(group, index, linears[index]))


Product = Callable[[Tensor, Tensor | None], Tensor]
"""Rows [..., in] and a bias [out] → [..., out]."""


def group_of(module: nn.Module) -> Group | None:
    """The group that `fuse_siblings` has put a layer into."""
    return module._group if isinstance(module, _Member) else None


def drop_weight(module: Any) -> None:
    """Leaves of a layer's weight its shape and type."""
    module.weight = nn.Parameter(module.weight.to("meta"), requires_grad=False)


def _fit_together(linears: Sequence[Any]) -> bool:
    first = linears[0]
    return all(
        one.in_features == first.in_features
        and one.weight.dtype == first.weight.dtype
        and (one.bias is None) == (first.bias is None)
        for one in linears
    )


class Group:
    """The joint weight [sum of outputs, inputs] of some layers, and the results that were not yet handed out."""

    def __init__(self, linears: Sequence[Any]) -> None:
        self._sizes = [one.out_features for one in linears]
        self.weight = _join(linears, "weight")
        self.bias = None if linears[0].bias is None else _join(linears, "bias")
        self.members: list[nn.Module] = []
        self._complete: set[int] = set()
        self._product: Product = lambda inputs, bias: linear(inputs, self.weight, bias)
        self._input: Tensor | None = None
        self._results: list[Tensor | None] = [None] * len(linears)

    def is_complete_with(self, member: nn.Module) -> bool:
        """Whether the weights of all members are there, now that those of `member` are."""
        self._complete.add(id(member))
        return len(self._complete) == len(self.members)

    def compute_by(self, product: Product) -> None:
        """Multiplies by `product` from now on, and keeps no weight."""
        self._product = product
        self.weight = self.weight.to("meta")
        for member in self.members:
            drop_weight(member)

    def result(self, index: int, inputs: Tensor) -> Tensor:
        """What layer `index` makes of `inputs`; computed for all layers when it is their first turn with them."""
        ready = self._results[index] if inputs is self._input else None
        if ready is None:
            joint = self._product(inputs, self.bias)
            self._results = list(torch.split(joint, self._sizes, dim=-1))
            self._input = inputs
            ready = self._results[index]
        self._results[index] = None
        if not any(result is not None for result in self._results):
            self._input = None
        assert ready is not None
        return ready


class _Member(nn.Module):
    """One layer of a group, in the place of the linear layer whose parameters it keeps."""

    def __init__(self, group: Group, index: int, linear: nn.Linear) -> None:
        super().__init__()
        self._group, self._index = group, index
        group.members.append(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, inputs: Tensor) -> Tensor:
        """The rows `inputs` [..., in] → [..., out]."""
        return self._group.result(self._index, inputs)


def _join(linears: Sequence[Any], name: str) -> Tensor:
    """One tensor for the parameter `name` of all `linears`, whose own become views of it, in the order of the rows."""
    parts: list[Tensor] = [getattr(one, name) for one in linears]
    shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
    joint = torch.empty(shape, dtype=parts[0].dtype, device="cpu")
    start = 0
    for one, part in zip(linears, parts, strict=True):
        view = joint[start : start + part.shape[0]]
        if not part.is_meta:
            view.copy_(part.detach())
        setattr(one, name, nn.Parameter(view, requires_grad=False))
        start += part.shape[0]
    return joint
