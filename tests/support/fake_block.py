"""A tiny model of integers that the real SessionWorker runs as it runs a Block: exact in any split, and quick.

Every layer mixes a row with a running sum over its ancestors, in their order, so that a wrong parent, a wrong cache row
or a wrong compaction changes whatever comes after. Numbers stay below 2^24, where float32 is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar, TypeVarTuple

import torch
import trio
from torch import Tensor

from shardp2p.errors import LocalProtocolError, RemoteProtocolError
from shardp2p.runtime.cache import RowBatch
from shardp2p.runtime.choose import choose
from shardp2p.runtime.penalties import TokenCounts
from shardp2p.vocabulary import LayerRange, Position, SamplingParams, Token

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

PRIME = 8_388_593
MODEL_LAYERS = 6
VOCABULARY = 60


class FakeCache:
    """For each row its parent, its position, and a running sum for each layer."""

    def __init__(self, capacity_rows: int) -> None:
        self.capacity_rows = capacity_rows
        self.rows: list[tuple[int, int, tuple[int, ...]]] = []

    def has(self, rows: Sequence[int]) -> bool:
        return all(row < len(self.rows) for row in rows)

    def copy_from(self, other: FakeCache, rows: Sequence[int]) -> None:
        assert not self.rows
        assert len(rows) <= self.capacity_rows
        self.rows = [(at - 1, at, other.rows[row][2]) for at, row in enumerate(rows)]

    def keep(self, rows: Sequence[int], first: int = 0) -> None:
        if list(rows) != sorted(set(rows)) or any(not first <= row < len(self.rows) for row in rows):
            raise LocalProtocolError("the rows to keep must be ascending rows of the cache")
        rows = (*range(first), *rows)
        numbers = {row: at for at, row in enumerate(rows)} | {-1: -1}
        self.rows = [(numbers[parent], position, sums) for parent, position, sums in (self.rows[r] for r in rows)]


@dataclass
class FakePart:
    """One session's part of a forward."""

    inputs: Tensor
    cache: FakeCache
    rows: RowBatch


class FakeBlock:
    """Layers [a, b) of the fake model, with the part of Block's interface that SessionWorker uses."""

    def __init__(self, layers: LayerRange = LayerRange(0, MODEL_LAYERS)) -> None:  # noqa: B008 — a frozen value
        self.layers = layers
        self.computed_rows = 0
        self.is_first = layers.start == 0
        self.is_last = layers.stop == MODEL_LAYERS
        self.hidden_size = 1
        self.vocab_size = VOCABULARY
        self.model_layers = MODEL_LAYERS
        self.context_tokens = 1_000
        self.layer_bytes = 1
        self.layer_row_bytes = (8,) * len(layers)
        self.dtype = torch.float32
        self.device = torch.device("cpu")

    def part(self, layers: LayerRange) -> FakeBlock:
        return FakeBlock(layers)

    def new_cache(self, capacity_rows: int) -> FakeCache:
        return FakeCache(capacity_rows)

    def token_inputs(self, tokens: Sequence[int]) -> Tensor:
        if not all(0 <= token < self.vocab_size for token in tokens):
            raise RemoteProtocolError(f"a token is outside the vocabulary of {self.vocab_size}")
        return torch.tensor(tokens, dtype=torch.int64)

    def prepare(self, inputs: Tensor, cache: FakeCache, rows: RowBatch) -> FakePart:
        """tokens [T] or hidden [T, 1], for `forward_many`."""
        if len(cache.rows) + len(rows.parents) > cache.capacity_rows:
            raise LocalProtocolError("the cache has no room")
        return FakePart(inputs, cache, rows)

    def forward_many(self, parts: Sequence[FakePart]) -> list[Tensor]:
        """The hidden [T, 1] of each."""
        return [self.forward(part.inputs, part.cache, part.rows) for part in parts]

    def forward(self, inputs: Tensor, cache: FakeCache, rows: RowBatch) -> Tensor:
        """tokens [T] or hidden [T, 1] → hidden [T, 1]."""
        self.computed_rows += len(rows.parents)
        hidden = []
        for value, parent, position in zip(inputs.flatten().tolist(), rows.parents, rows.positions, strict=True):
            above = cache.rows[parent] if parent >= 0 else (-1, -1, (0,) * len(self.layers))
            if position != above[1] + 1:
                raise LocalProtocolError(f"position {position} below position {above[1]}")
            x, sums = int(value), []
            for layer, summed in zip(range(self.layers.start, self.layers.stop), above[2], strict=True):
                sums.append((summed * 31 + x + layer) % PRIME)
                x = (x * 7 + sums[-1]) % PRIME
            cache.rows.append((parent, position, tuple(sums)))
            hidden.append([float(x)])
        return torch.tensor(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """[n, V] of hidden [n, 1]."""
        x = hidden.to(torch.int64)
        j = torch.arange(self.vocab_size)
        return ((x * (2 * j + 17) + j * j * 40_503) % 1_009) / 250.0

    def logits_many(self, hidden: Sequence[Tensor]) -> list[Tensor]:
        return [self.logits(each) for each in hidden]


class InlineDevice:
    """DeviceThread without a thread: one call at a time, each of `compute_s` that no cancellation interrupts."""

    def __init__(self, compute_s: float = 0.0) -> None:
        self.compute_s = compute_s
        self._turn = trio.Lock()

    async def run(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        async with self._turn:
            with trio.CancelScope(shield=True):
                await trio.sleep(self.compute_s)
            return function(*args)

    def post(self, function: Callable[[], None]) -> None:
        """Behind what waits; nobody waits for it."""

        async def do() -> None:
            async with self._turn:
                function()

        trio.lowlevel.spawn_system_task(do)

    def linger(self, event: object, seconds: float) -> None:
        """Not at all: nothing can come in the meantime."""


def fake_reference(
    prompt: Sequence[Token],
    max_tokens: int,
    *,
    sampling: SamplingParams | None = None,
    stop_tokens: frozenset[Token] = frozenset(),
) -> tuple[Token, ...]:
    """What the whole model says after `prompt`, token by token, without any of the ring's machinery."""
    block = FakeBlock()
    cache = block.new_cache(len(prompt) + max_tokens)
    counts = TokenCounts.of_prompt(prompt)
    generated: list[Token] = []
    new = list(prompt)
    while len(generated) < max_tokens and not (generated and generated[-1] in stop_tokens):
        hidden = block.forward(block.token_inputs(new), cache, RowBatch.chain(len(cache.rows), len(new)))
        position = Position(len(cache.rows))
        new = choose(block.logits(hidden[-1:]), sampling or SamplingParams(), [position], [counts])
        counts = counts.after(new[0])
        generated.extend(new)
    return tuple(generated)
