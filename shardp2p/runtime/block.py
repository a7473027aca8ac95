"""Layers [a, b) of a model on one device: token ids or hidden states in, hidden states or logits out.

Start here, then load.py (how a block comes from a directory) and cache.py (what it remembers of a session).
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from shardp2p.errors import LocalProtocolError, OverloadedError, RemoteProtocolError
from shardp2p.runtime.architecture import MISFITS, SLIDING_ATTENTION, Architecture, check_hand_through
from shardp2p.runtime.arena import CacheArena
from shardp2p.runtime.cache import LayerShape, RowBatch, RowCache
from shardp2p.runtime.cut import begin_later, copy_of, head_of, slice_layers
from shardp2p.runtime.gaps import Gaps, watching
from shardp2p.runtime.graph import Graphs
from shardp2p.runtime.packing import (
    TRIAL_ROWS,
    Masks,
    Pack,
    PackedAs,
    Part,
    Trial,
    packed_attention,
    reads_all_positions,
)
from shardp2p.runtime.stage_graphs import WIDTHS, StageGraphs
from shardp2p.vocabulary import LayerRange


class Block:
    """What load_block gives. Not thread-safe: one thread owns the device (device.py)."""

    def __init__(
        self,
        model: PreTrainedModel,
        inner: Any,
        architecture: Architecture,
        layers: LayerRange,
        dtype: torch.dtype,
        device: torch.device,
        layer_bytes: int,
    ) -> None:
        config: Any = architecture.config
        self.layers = layers
        self.model_layers = architecture.layer_count
        self.hidden_size: int = config.hidden_size
        self.vocab_size: int = config.vocab_size
        self.context_tokens: int = config.max_position_embeddings
        self.dtype = dtype
        self.device = device
        self.layer_bytes = layer_bytes
        self.is_first = layers.start == 0
        self.is_last = layers.stop == architecture.layer_count
        self._architecture = architecture
        self._attention = architecture.attention[layers.start : layers.stop]
        self._mixes = architecture.mixes_attention
        self._window_tokens = architecture.window_tokens
        self._inner = slice_layers(inner, LayerRange(0, architecture.layer_count), layers)
        self._head = head_of(model) if self.is_last else None
        self._config: Any = model.config  # the one that the attention layers read
        self._is_eager = self._config._attn_implementation == "eager"
        self._needs_mask = getattr(config, "index_topk", None) is not None
        self._cache_keyword = "cache" if "cache" in inspect.signature(inner.forward).parameters else "past_key_values"
        self._shapes = self._measure_rows()
        self._packed_as = self._find_packing()
        self._arena: CacheArena | None = None
        self._graphs: StageGraphs | None = None

    def part(self, layers: LayerRange) -> Block:
        """Some of these layers as a block of their own, which shares the weights and adds next to no memory.

        Raises:
            ConfigError: the model changes hidden states before its first layer, so nothing but that layer may begin.
            LocalProtocolError: `layers` are not among those of this block.
        """
        if not (self.layers.start <= layers.start and layers.stop <= self.layers.stop):
            raise LocalProtocolError(f"the layers {layers} are none of the block {self.layers}")
        part = copy.copy(self)
        part.layers = layers
        part.is_first = layers.start == 0
        part.is_last = layers.stop == self.model_layers
        part._attention = self._architecture.attention[layers.start : layers.stop]
        part._shapes = self._shapes[layers.start - self.layers.start : layers.stop - self.layers.start]
        part._head = self._head if part.is_last else None
        part._inner = copy_of(self._inner)
        if self.is_first and not part.is_first:
            begin_later(part._inner)
            check_hand_through(part._inner, self._architecture, is_first=False, device=self.device)
        if not part.is_last:
            part._inner.norm = nn.Identity()
        part._inner = slice_layers(part._inner, self.layers, layers)
        return part

    def reserve(self, total_bytes: int) -> None:
        """Takes the memory of all sessions' caches now, so that none has to be found while the block serves.

        Raises: ConfigError when the device has not that much.
        """
        self._arena = CacheArena(total_bytes, self.device)

    def replay_few_rows(self, graphs: Graphs | None) -> None:
        """Lets forwards of few rows be captured once and replayed, where they can be, of this block and parts made
        later. None: all are computed as ever.
        """
        self._graphs = None if graphs is None else StageGraphs(graphs)

    def new_cache(self, capacity_rows: int) -> RowCache:
        """Rows for one session; takes capacity_rows × row_bytes of memory now.

        Raises: OverloadedError when the device has not that much.
        """
        try:
            return RowCache(self._shapes, capacity_rows, self.dtype, self.device, self.layers.start, arena=self._arena)
        except (RuntimeError, MemoryError) as error:  # torch's allocators raise the first, numpy's the second
            needed = f"{capacity_rows * self.row_bytes / 2**20:,.0f} MiB"
            raise OverloadedError(
                f"{capacity_rows} cache rows need {needed}, which {self.device} does not have free; ask for fewer "
                "tokens, or start the stage with a smaller --cache-rows"
            ) from error

    @property
    def row_bytes(self) -> int:
        """What one cache row takes in all layers of the block."""
        return sum(self.layer_row_bytes)

    @property
    def layer_row_bytes(self) -> tuple[int, ...]:
        """What one cache row takes in each layer of the block."""
        return tuple(shape.row_bytes(self.dtype) for shape in self._shapes)

    def token_inputs(self, tokens: Sequence[int]) -> Tensor:
        """Token ids as the first block's inputs [T]. Raises RemoteProtocolError for one outside the vocabulary."""
        if not all(0 <= token < self.vocab_size for token in tokens):
            raise RemoteProtocolError(f"a token is outside the vocabulary of {self.vocab_size}")
        return torch.tensor(tokens, dtype=torch.int64, device=self.device)

    @property
    def can_pack(self) -> bool:
        """Whether several sessions go through the layers together; if not, one after the other, just as exactly."""
        return self._packed_as is not None

    def forward(self, inputs: Tensor, cache: RowCache, rows: RowBatch) -> Tensor:
        """Runs new rows: tokens [T] int64 (first block) or hidden [T, H] → hidden [T, H], normed by the last block.

        Raises:
            LocalProtocolError: the cache has no room, or inputs and rows do not fit together; the cache is unchanged.
        """
        return self.forward_many([self.prepare(inputs, cache, rows)])[0]

    def prepare(self, inputs: Tensor, cache: RowCache, rows: RowBatch) -> Part:
        """New rows of one session for `forward_many`, which must be the next thing to touch the cache.

        Raises:
            LocalProtocolError: the cache has no room, or inputs and rows do not fit together; the cache is unchanged.
        """
        wanted = (len(rows.parents),) if self.is_first else (len(rows.parents), self.hidden_size)
        if tuple(inputs.shape) != wanted:
            raise LocalProtocolError(f"a block got inputs of shape {tuple(inputs.shape)}; it needs {wanted}")
        is_chain = cache.begin(rows)
        return Part(inputs, cache, rows, self._masks(cache, rows, is_chain))

    def forward_many(self, parts: Sequence[Part]) -> list[Tensor]:
        """Runs the new rows of different sessions, as `forward` would each; the hidden [T, H] of each.

        One part is computed as it always was, but where few rows are replayed. Several go through all that treats rows
        alike in one piece. Both give results that are equal up to rounding. If it fails, no cache has changed.
        """
        if len({id(part.cache) for part in parts}) != len(parts):
            raise LocalProtocolError("a forward got two parts of one session")
        with torch.inference_mode():
            hidden = None
            if self._graphs is not None and self._packed_as == "views":
                hidden = self._graphs.run(self, parts)
            if hidden is None and len(parts) > 1 and self._packed_as is not None:
                hidden = self._run_packed(parts)
            if hidden is None:
                hidden = [self._run_alone(part) for part in parts]
        for part in parts:
            part.cache.commit(part.rows)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """The logits [n, V] of hidden [n, H] that the last block gave, with the model's scale and soft cap."""
        if self._head is None:
            raise LocalProtocolError("only the last block has a head")
        with torch.inference_mode():
            logits: Tensor = self._head(inputs_embeds=hidden[None], use_cache=False).logits[0]
        return logits

    def logits_many(self, hidden: Sequence[Tensor]) -> list[Tensor]:
        """The logits [n, V] of each of several sessions' hidden [n, H], in one product."""
        if len(hidden) == 1:
            return [self.logits(hidden[0])]
        return list(torch.split(self.logits(torch.cat(list(hidden))), [len(rows) for rows in hidden]))

    @property
    def row_shapes(self) -> tuple[LayerShape, ...]:
        """What one row takes in each layer of the block."""
        return tuple(self._shapes)

    @property
    def windows(self) -> dict[str, int]:
        """The kinds of attention, and how many positions each looks back; 0: all of them."""
        return {kind: self._window_tokens if kind == SLIDING_ATTENTION else 0 for kind in set(self._attention)}

    def run_rows(self, inputs: Tensor, positions: Tensor, allowed: Mapping[str, Tensor], rows: Any) -> Tensor:
        """Runs inputs [T] or [T, H] at positions [1, T] over rows of another's keeping; hidden [T, H].

        `allowed` [T, R] says per kind of attention which of its R rows each may see. Nothing here depends on values,
        so that a graph of it can be captured; `rows` is to the layers what LayerTensors is.
        """
        masks: dict[str, Tensor] = {kind: one[None, None] for kind, one in allowed.items()}
        if self._is_eager:
            ruled_out = torch.finfo(self.dtype).min
            masks = {
                kind: torch.zeros_like(one, dtype=self.dtype).masked_fill(~one, ruled_out)
                for kind, one in masks.items()
            }
        return self._run(inputs, positions, masks if self._mixes else next(iter(masks.values())), rows)

    def warm_up(self, tokens: int = TRIAL_ROWS) -> None:
        """Runs forwards of `tokens` rows, of one row and of all that are replayed, so that memory taken on first use is
        taken now, and nobody waits for a recording.
        """
        counts = (tokens, 1, *(WIDTHS if self._graphs is not None else ()))
        cache = self.new_cache(sum(counts))
        for count in counts:
            hidden = self.forward(self.new_inputs(count), cache, RowBatch.chain(cache.rows, count))
            if self.is_last:
                self.logits(hidden)

    def new_inputs(self, rows: int) -> Tensor:
        """Zeros as inputs: tokens [rows] of the first block, or hidden [rows, H]."""
        if self.is_first:
            return torch.zeros(rows, dtype=torch.int64, device=self.device)
        return torch.zeros((rows, self.hidden_size), dtype=self.dtype, device=self.device)

    def pack(self, parts: Sequence[Part]) -> Pack:
        """The caches of `parts` as one, with attention over each; where sessions can be packed."""
        assert self._packed_as is not None
        return Pack(parts, self._attention, self.layers.start, self._config._attn_implementation, self._packed_as)

    def run_watched(self, inputs: Tensor, positions: Tensor, gaps: Gaps) -> Tensor:
        """The forward of inputs [T] or [T, H] at positions [1, T], with `gaps` for cache, attention and experts."""
        with watching(self._config, gaps):
            return self._run(inputs, positions, self._any_masks(), gaps)

    def _run_alone(self, part: Part) -> Tensor:
        positions = torch.tensor((part.rows.positions,), device=self.device)
        masks = part.masks if self._mixes else next(iter(part.masks.values()))
        return self._run(part.inputs, positions, masks, part.cache.tensors)

    def _run_packed(self, parts: Sequence[Part]) -> list[Tensor]:
        pack = self.pack(parts)
        inputs = torch.cat([part.inputs for part in parts])
        positions = torch.tensor(([at for part in parts for at in part.rows.positions],), device=self.device)
        with packed_attention(self._config, pack):
            hidden = self._run(inputs, positions, self._any_masks(), pack)
        return list(torch.split(hidden, [len(part.rows.parents) for part in parts]))

    def _run(self, inputs: Tensor, positions: Tensor, masks: Any, cache: Any) -> Tensor:
        name = "input_ids" if self.is_first else "inputs_embeds"
        given = {name: inputs[None], self._cache_keyword: cache}
        output = self._inner(position_ids=positions, attention_mask=masks, use_cache=True, **given)
        hidden: Tensor = output.last_hidden_state[0]
        return hidden

    def _masks(self, cache: RowCache, rows: RowBatch, is_chain: bool) -> Masks:
        """The mask of each kind of attention."""
        masks: dict[str, Tensor | None] = {}
        starts: dict[str, int] = {}
        for kind in set(self._attention):
            window = self._window_tokens if kind == SLIDING_ATTENTION else 0
            masks[kind], starts[kind] = self._mask(cache, rows, is_chain, window)
        cache.tensors.view_starts = [starts[kind] for kind in self._attention]
        return masks

    def _any_masks(self) -> Any:
        """What the model's own forward takes for its masks where the attention has others or needs none."""
        mask = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=self.device)
        if self._is_eager:
            mask = torch.zeros_like(mask, dtype=self.dtype)
        return dict.fromkeys(self._attention, mask) if self._mixes else mask

    def _mask(self, cache: RowCache, rows: RowBatch, is_chain: bool, window: int) -> tuple[Tensor | None, int]:
        """The mask of one kind of attention and the first row that it covers.

        A simple chain gets what transformers' own caches would give, row for row: results are equal in every bit.
        """
        count, before = len(rows.parents), cache.rows
        start = max(0, before - window + 1) if is_chain and window else 0
        if is_chain and not self._needs_mask:
            reach = before - start + count
            is_short = not window or reach < window or (self._is_eager and reach == window)
            if is_short and (count == 1 or (before == 0 and not self._is_eager)):
                return None, start
        allowed = torch.from_numpy(cache.ancestry.mask(rows, window)[:, start:]).to(self.device)
        if not self._is_eager:
            return allowed[None, None], start
        mask = torch.full(allowed.shape, torch.finfo(self.dtype).min, dtype=self.dtype, device=self.device)
        return mask.masked_fill_(allowed, 0.0)[None, None], start

    def _example(self) -> Tensor:
        if self.is_first:
            return torch.zeros(1, dtype=torch.int64, device=self.device)
        return torch.linspace(-2, 2, self.hidden_size, dtype=self.dtype, device=self.device)[None]

    def _show(self, inputs: Tensor, cache: _Probe) -> Tensor:
        """One row through the model's own forward; `cache` gets the shapes of what it would keep."""
        with torch.inference_mode():
            positions = torch.zeros((1, 1), dtype=torch.int64, device=self.device)
            return self._run(inputs, positions, self._any_masks(), cache)

    def _find_packing(self) -> PackedAs | None:
        """How sessions can be packed, as a few rows of any input show it; None where they cannot."""
        if reads_all_positions(self._inner):
            return None
        masks = self._any_masks()
        inputs = self._example().repeat(TRIAL_ROWS, *[1] * (self._example().ndim - 1))
        positions = torch.zeros((1, TRIAL_ROWS), dtype=torch.int64, device=self.device)
        ways: tuple[PackedAs, ...] = ("views", "joined")
        for way in ways:
            trial = Trial(self.layers, list(masks.values()) if self._mixes else [masks], way)
            # A model that asks more of its cache, or does with attention what a trial does not foresee, runs unpacked.
            with suppress(*MISFITS), torch.inference_mode(), packed_attention(self._config, trial):
                self._run(inputs, positions, masks, trial)
                if trial.fits:
                    return way
        return None

    def _measure_rows(self) -> list[LayerShape]:
        """What each layer stores per row, as one token of any input shows it."""
        probe = _Probe()
        self._show(self._example(), probe)
        return [
            LayerShape(*probe.stored[layer], *([(probe.others[layer],)] if layer in probe.others else []))
            for layer in range(self.layers.start, self.layers.stop)
        ]


class _Probe:
    """A cache that keeps nothing but the shapes that it was given."""

    is_compileable = False

    def __init__(self) -> None:
        self.stored: dict[int, tuple[tuple[int, int], tuple[int, int]]] = {}
        self.others: dict[int, tuple[int, ...]] = {}

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.stored[layer_idx] = ((keys.shape[1], keys.shape[3]), (values.shape[1], values.shape[3]))
        return keys, values

    def update_indexer(self, keys: Tensor, layer_idx: int, *_: Any, **__: Any) -> Tensor:
        self.others[layer_idx] = (keys.shape[2],)
        return keys

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0
