"""How fast a loaded block is on its device: measured before it serves, in bounded time. `swarm.speed` follows it under
load.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Final

import torch
from torch import Tensor

from shardp2p.runtime.block import Block
from shardp2p.runtime.cache import RowBatch, RowCache
from shardp2p.vocabulary import LayerSpeed

FIRST_ROWS: Final = 16
MAX_ROWS: Final = 256
"""Of a wide chunk: where the time of a token no longer falls much, on GPUs too."""
MIN_SAMPLES: Final = 3
MAX_SAMPLES: Final = 9
LEAST_S: Final = 1e-9
"""What a step takes at least where a clock is too coarse to see it."""


def measure_speed(block: Block, *, budget_s: float = 1.0, clock: Callable[[], float] = perf_counter) -> LayerSpeed:
    """The block's speed when nothing else runs; call it in the device thread, after `Block.warm_up`.

    Takes about `budget_s`, on a slow device the time of six forwards. The head counts with the last layers, as it does
    in every chunk that they serve. Raises: OverloadedError when there is no memory for some hundred cache rows.
    """
    cache = block.new_cache(min(MAX_ROWS + MAX_SAMPLES, block.context_tokens))
    try:
        return _measure(_Steps(block, cache, clock), budget_s)
    finally:
        cache.close()


class _Steps:
    """Forwards of so many rows over one cache, timed."""

    def __init__(self, block: Block, cache: RowCache, clock: Callable[[], float]) -> None:
        self._block = block
        self._cache = cache
        self._clock = clock
        self.layers = len(block.layers)
        self.most_rows = max(1, cache.capacity_rows - MAX_SAMPLES)

    def run(self, rows: int, before: int = 0) -> float:
        """Seconds for a chunk of `rows` after `before` others."""
        self._cache.truncate(before)
        inputs = self._inputs(rows)
        started = self._clock()
        hidden = self._block.forward(inputs, self._cache, RowBatch.chain(before, rows))
        # The device is done once a number of the result is here.
        (self._block.logits(hidden[-1:]) if self._block.is_last else hidden)[-1, 0].item()
        return max(self._clock() - started, LEAST_S)

    def _inputs(self, rows: int) -> Tensor:
        block = self._block
        if block.is_first:
            return torch.arange(rows, device=block.device) % block.vocab_size
        numbers = torch.linspace(-1, 1, rows * block.hidden_size, dtype=torch.float32, device=block.device)
        return numbers.view(rows, block.hidden_size).to(block.dtype)


def _measure(steps: _Steps, budget_s: float) -> LayerSpeed:
    rows = min(FIRST_ROWS, steps.most_rows)
    first_s = steps.run(rows)
    # As wide as a third of the budget allows for the three that follow.
    rows = max(rows, min(steps.most_rows, int(rows * budget_s / (3 * MIN_SAMPLES * first_s))))
    wide_s = _median_of(lambda: steps.run(rows), budget_s / 2)
    narrow_s = _median_of(lambda: steps.run(1, before=rows), budget_s / 2)
    return LayerSpeed(narrow_s / steps.layers, wide_s / (rows * steps.layers))


def _median_of(run: Callable[[], float], budget_s: float) -> float:
    """Of MIN_SAMPLES or, as long as the budget lasts, up to MAX_SAMPLES runs; of fewer where one alone exceeds it."""
    samples: list[float] = []
    while len(samples) < MAX_SAMPLES and (sum(samples) < budget_s or not samples):
        samples.append(run())
    return median(samples)
