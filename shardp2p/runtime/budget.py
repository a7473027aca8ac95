"""What a peer offers of its memory, and what of a model fits into it: weights, and the cache rows beside them. Pure.

A fifth of the offer stays free: for activations, kernels, the peak of loading, and whatever else grows. Without it the
first long prompt fails instead of the start.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, Protocol

from shardp2p.errors import ConfigError, LocalProtocolError
from shardp2p.vocabulary import LayerRange, ModelId

HEADROOM_PERCENT: Final = 20


class Needs(Protocol):
    """What the layers of a model need; `weights.footprint.Footprint` is one."""

    @property
    def model(self) -> ModelId: ...

    @property
    def layers(self) -> int:
        """How many layers the model has."""
        ...

    def weight_bytes(self, layers: LayerRange) -> int:
        """What a block of these layers takes, with what comes with the first and the last one."""
        ...

    def row_bytes(self, layers: LayerRange) -> int:
        """What one cache row takes in all of these layers."""
        ...


@dataclass(frozen=True, slots=True)
class Budget:
    """`memory_bytes` is all that a peer offers on one device, `used_bytes` what its blocks and their caches have of it.

    `cache_rows` are reserved in every layer that is held, for all requests together.
    """

    memory_bytes: int
    cache_rows: int
    used_bytes: int = 0

    def __post_init__(self) -> None:
        if self.memory_bytes < 1 or self.cache_rows < 1 or self.used_bytes < 0:
            raise LocalProtocolError(f"a budget of {self.memory_bytes} bytes and {self.cache_rows} cache rows")

    @property
    def headroom_bytes(self) -> int:
        """What stays free."""
        return -(-self.memory_bytes * HEADROOM_PERCENT // 100)

    @property
    def free_bytes(self) -> int:
        """What is left for further layers and their caches."""
        return max(0, self.memory_bytes - self.headroom_bytes - self.used_bytes)

    def need_bytes(self, needs: Needs, layers: LayerRange) -> int:
        """What these layers take with their cache. Raises: ConfigError for layers that the model does not have."""
        return needs.weight_bytes(layers) + self.cache_rows * needs.row_bytes(layers)

    def fits(self, needs: Needs, layers: LayerRange) -> bool:
        """Whether these layers fit into what is left."""
        return self.need_bytes(needs, layers) <= self.free_bytes

    def with_block(self, needs: Needs, layers: LayerRange) -> Budget:
        """The budget while a block of these layers is held too. Raises: ConfigError when they do not fit."""
        self.require(needs, layers)
        return replace(self, used_bytes=self.used_bytes + self.need_bytes(needs, layers))

    def longest_from(self, needs: Needs, start: int) -> LayerRange | None:
        """The most layers from `start` on that fit, or None where not even that one does."""
        fitting = None
        for stop in range(start + 1, needs.layers + 1):
            if not self.fits(needs, LayerRange(start, stop)):
                break
            fitting = LayerRange(start, stop)
        return fitting

    def fits_layers(self, needs: Needs, *, everywhere: bool = False) -> int:
        """How many consecutive layers fit: in the best place of the model, or `everywhere` in it."""
        runs = [self._run(needs, start) for start in range(needs.layers)]
        if not everywhere:
            return max(runs)
        # A run that the model's end cut short says nothing against longer ones elsewhere.
        return min((run for start, run in enumerate(runs) if start + run < needs.layers), default=needs.layers)

    def require(self, needs: Needs, layers: LayerRange) -> None:
        """Raises: ConfigError that says what would fit and how much is missing, when these layers do not."""
        if self.fits(needs, layers):
            return
        longest = self.longest_from(needs, layers.start)
        shorter = "" if longest is None else f"take --layers {longest}, "
        raise ConfigError(
            f"layers {layers} of {needs.model} do not fit: {shorter}{self._ways_out(needs, layers)}; "
            f"{self._account(needs, layers)}"
        )

    def require_any(self, needs: Needs) -> None:
        """Raises: ConfigError that says what would fit and how much is missing, when not one layer does."""
        single = [LayerRange(layer, layer + 1) for layer in range(needs.layers)]
        smallest = min(single, key=lambda layers: self.need_bytes(needs, layers))
        if not self.fits(needs, smallest):
            raise ConfigError(
                f"not even one layer of {needs.model} fits: {self._ways_out(needs, smallest)}; "
                f"{self._account(needs, smallest)}"
            )

    def _run(self, needs: Needs, start: int) -> int:
        longest = self.longest_from(needs, start)
        return 0 if longest is None else len(longest)

    def _account(self, needs: Needs, layers: LayerRange) -> str:
        weights, rows = needs.weight_bytes(layers), self.cache_rows * needs.row_bytes(layers)
        used = f" and {_mib(self.used_bytes)} are in use" if self.used_bytes else ""
        return (
            f"{_mib(weights)} of weights and {_mib(rows)} of cache for {self.cache_rows} tokens are "
            f"{_mib_more(weights + rows - self.free_bytes)} more than the {_mib(self.free_bytes)} that are left of "
            f"{_mib(self.memory_bytes)} when {HEADROOM_PERCENT} % stay free{used}"
        )

    def _ways_out(self, needs: Needs, layers: LayerRange) -> str:
        need = self.need_bytes(needs, layers) + self.used_bytes
        memory_mib = -(-need * 100 // ((100 - HEADROOM_PERCENT) * 2**20))
        rows = (self.free_bytes - needs.weight_bytes(layers)) // needs.row_bytes(layers)
        fewer = f", or set --cache-rows to at most {rows}" if rows > 0 else ""
        return f"offer --memory {memory_mib}MiB or more{fewer}"


def _mib_more(count: int) -> str:
    """What is missing, rounded up: never nothing."""
    return f"{math.ceil(count * 10 / 2**20) / 10:,.1f} MiB"


def _mib(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"
