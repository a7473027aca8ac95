"""Whether work is the same whatever the values are: what is captured once must be.

Experts that are asked one after the other, each for the rows that chose it, are not; on a GPU they wait for the values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

NAMESPACES: Final = frozenset({"aten", "mkldnn", "prim", "prims"})
"""Whose operators say whether they read values; of others nothing is known."""

READ_VALUES: Final = frozenset({torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output})

INDEXED: Final = frozenset({"aten::index", "aten::index_put", "aten::index_put_"})
"""Read values where an index is a mask, whatever their tags say."""

GROUPED: Final = frozenset({"aten::_grouped_mm"})
"""Loops over groups whose sizes are values, wherever a GPU has no kernel for them."""


class ValueWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While entered, notes in `reads` the first operator that reads values; None: there was none."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.reads: str | None = None

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Passes every operator on."""
        if self.reads is None and _reads_values(func, args):
            self.reads = str(func)
        return func(*args, **(kwargs or {}))


def _reads_values(operator: Any, args: Sequence[Any]) -> bool:
    name = operator._schema.name
    if operator.namespace not in NAMESPACES or name in GROUPED:
        return True
    if name in INDEXED:
        return any(isinstance(one, Tensor) and one.dtype in (torch.bool, torch.uint8) for one in args[1])
    return not READ_VALUES.isdisjoint(operator.tags)
