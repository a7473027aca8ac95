"""Rows of several sessions in one forward: attention for each session by itself, everything else for all together.

A layer's products read the same weights for every row, so one forward of many rows costs little more than of one,
while attention is a session's own. transformers lets a model's attention go through a registered function: while a
Pack is current, ours cuts the rows by session and calls the function that the model would have called, once for each.
docs/decisions/0012-packed-sessions.md.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from shardp2p.runtime.cache import RowBatch, RowCache
from shardp2p.vocabulary import LayerRange

PACKED_ATTENTION = "shardp2p_packed"
"""The name under which transformers knows our attention function."""

Masks = Mapping[str, Tensor | None]
"""The attention mask of each kind of attention; None where the kernel's own causal one is meant."""

PackedAs = Literal["views", "joined"]
"""What attention gets while packed. "views": right what the cache was given, so that each session attends to its own
cache in place. "joined": what the model makes of the sessions' rows one behind the other, as it does where it caches
latents that it expands for attention."""

Attend = Callable[..., tuple[Tensor, Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One session's part of a forward, checked; `Block.prepare` makes it."""

    inputs: Tensor
    cache: RowCache
    rows: RowBatch
    masks: Masks


def join_rows(pieces: Sequence[Tensor]) -> Tensor:
    """Hidden [sum of T, H] of pieces [T, H] of one chunk that were computed one after the other."""
    return pieces[0] if len(pieces) == 1 else torch.cat(list(pieces))


class _Current(Protocol):
    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **others: Any
    ) -> Tensor: ...


_current: ContextVar[_Current] = ContextVar("current pack")


def _attend_packed(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **others: Any
) -> tuple[Tensor, None]:
    return _current.get().attend(module, query, key, value, attention_mask, **others), None


AttentionInterface.register(PACKED_ATTENTION, _attend_packed)


@contextmanager
def packed_attention(config: Any, pack: _Current) -> Iterator[None]:
    """Lets the attention of the layers that `config` belongs to go through `pack`, in this thread."""
    usual = config._attn_implementation
    token = _current.set(pack)
    config._attn_implementation = PACKED_ATTENTION
    try:
        yield
    finally:
        config._attn_implementation = usual
        _current.reset(token)


class Cacheless:
    """What a model asks of a cache beside updates; rows have their positions and masks from elsewhere."""

    is_compileable = False

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return query_length, 0


class Pack(Cacheless):
    """The caches of a packed forward as the model's one cache, and the attention over each of them.

    `kinds` are the kinds of attention of the layers from `first_layer` on, `implementation` is the model's usual one.
    """

    def __init__(
        self, parts: Sequence[Part], kinds: Sequence[str], first_layer: int, implementation: str, packed_as: PackedAs
    ) -> None:
        self._caches = [part.cache.tensors for part in parts]
        self._masks = {kind: [part.masks[kind] for part in parts] for kind in set(kinds)}
        self._kinds = kinds
        self._first_layer = first_layer
        self._implementation = implementation
        self._is_joined = packed_as == "joined"
        self._counts = [len(part.rows.parents) for part in parts]
        self._layer = 0
        self._stored: list[tuple[Tensor, Tensor]] = []

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Stores the new rows [1, heads, sum of T, dim] of a layer, each session's in its own cache."""
        self._layer = layer_idx - self._first_layer
        split = zip(self._caches, torch.split(keys, self._counts, 2), torch.split(values, self._counts, 2), strict=True)
        self._stored = [cache.update(k, v, layer_idx) for cache, k, v in split]
        if not self._is_joined:
            return keys, values
        return torch.cat([k for k, _ in self._stored], 2), torch.cat([v for _, v in self._stored], 2)

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **others: Any
    ) -> Tensor:
        """The attention [1, sum of T, heads, dim] of the layer that was updated last."""
        usual = _usual_attention(type(module).__module__, self._implementation)
        stored = self._stored
        if self._is_joined:
            rows = [k.shape[2] for k, _ in stored]
            stored = list(zip(torch.split(key, rows, 2), torch.split(value, rows, 2), strict=True))
        masks = self._masks[self._kinds[self._layer]]
        each = zip(torch.split(query, self._counts, 2), stored, masks, strict=True)
        attended = [usual(module, q, k, v, own, **others)[0] for q, (k, v), own in each]
        return attended[0] if len(attended) == 1 else torch.cat(attended, 1)


TRIAL_ROWS: Final = 16
"""As many as a block is warmed up with: a trial takes no memory on first use that warming up does not take."""


class Trial(Cacheless):
    """Watches how the layers of a block use cache and attention in a forward of TRIAL_ROWS, which it computes none of.

    They can be packed where each layer updates the cache once and then calls attention once, with the mask that the
    block was given, and either with what the cache handed out or with as many rows as that had.
    """

    def __init__(self, layers: LayerRange, masks: Sequence[Tensor], packed_as: PackedAs) -> None:
        self._layers = layers
        self._masks = masks
        self._is_joined = packed_as == "joined"
        self._updated: tuple[Tensor, Tensor] | None = None
        self._seen: list[int] = []
        self._is_misfit = False

    @property
    def fits(self) -> bool:
        """Whether all layers went the way that can be packed."""
        return (
            not self._is_misfit
            and self._updated is None
            and self._seen == list(range(self._layers.start, self._layers.stop))
        )

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Hands out what it got, with one row more where rows are joined."""
        self._is_misfit |= self._updated is not None or keys.shape[2] != TRIAL_ROWS or values.shape[2] != TRIAL_ROWS
        self._seen.append(layer_idx)
        if self._is_joined:
            keys, values = (torch.cat((one, one[:, :, :1]), 2) for one in (keys, values))
        self._updated = keys, values
        return keys, values

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **others: Any
    ) -> Tensor:
        """Zeros of the right shape."""
        if self._updated is None:
            self._is_misfit = True
        elif self._is_joined:
            self._is_misfit |= key.shape[2] != TRIAL_ROWS + 1 or value.shape[2] != TRIAL_ROWS + 1
        else:
            self._is_misfit |= key is not self._updated[0] or value is not self._updated[1]
        self._is_misfit |= query.shape[2] != TRIAL_ROWS or not any(mask is given for given in self._masks)
        self._updated = None
        return query.new_zeros((1, query.shape[2], query.shape[1], value.shape[3]))


def reads_all_positions(inner: Any) -> bool:
    """Whether a model's rotary embedding depends on the furthest position of a forward, whichever row has it."""
    for module in inner.modules():
        said = getattr(module, "rope_type", None)
        names = said.values() if isinstance(said, dict) else (said,)
        if any(isinstance(name, str) and ("dynamic" in name or name == "longrope") for name in names):
            return True
    return False


@functools.cache
def _usual_attention(file_name: str, implementation: str) -> Attend:
    """The function that the attention layers of that Python module call under that name."""
    file: Any = sys.modules[file_name]
    if implementation == "eager":
        eager: Attend = file.eager_attention_forward
        return eager
    found: Attend = getattr(file, "ALL_ATTENTION_FUNCTIONS", ALL_ATTENTION_FUNCTIONS)[implementation]
    return found
