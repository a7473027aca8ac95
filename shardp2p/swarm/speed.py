"""How fast layers are under load: what was measured when nothing ran, corrected by what real chunks take. Pure."""

from __future__ import annotations

from typing import Final

from shardp2p.errors import LocalProtocolError
from shardp2p.swarm.decaying import DecayingMedian
from shardp2p.vocabulary import LayerSpeed
from shardp2p.wire.records import MAX_LAYER_S

WIDE_ROWS: Final = 32
"""A chunk of so many rows is one of a prompt; a smaller one is of drafts, where the start of each layer counts."""
WINDOW: Final = 64
HALF_LIFE_S: Final = 60.0
"""A load that ended is half forgotten after a minute, and a speed does not follow every gust."""
IDLE_WEIGHT: Final = 4.0
"""So many fresh chunks does the speed measured at rest count for: a single slow one changes nothing."""
LEAST_FACTOR: Final = 0.05
MOST_FACTOR: Final = 1000.0
LEAST_S: Final = 1e-9


class SpeedEstimate:
    """The speed of the layers of one block. `idle` is what they do alone (runtime.speed)."""

    def __init__(self, idle: LayerSpeed) -> None:
        if not (0 < idle.decode_layer_s < float("inf") and 0 < idle.prefill_layer_s < float("inf")):
            raise LocalProtocolError(f"layers that take {idle.decode_layer_s} and {idle.prefill_layer_s} s")
        self._idle = idle
        self._narrow, self._wide = (
            DecayingMedian(WINDOW, HALF_LIFE_S, prior=1.0, prior_weight=IDLE_WEIGHT) for _ in range(2)
        )

    def observe(self, rows: int, layers: int, compute_s: float, now: float) -> None:
        """Count a chunk of `rows` live rows that took `compute_s` on the device for `layers` layers.

        A chunk without live rows says nothing, and is not counted.
        """
        if rows < 1 or layers < 1:
            return
        # A line through the two speeds at rest: one token's time, and for each further one that of a wide chunk.
        expected_s = layers * (self._idle.decode_layer_s + (rows - 1) * self._idle.prefill_layer_s)
        factor = min(max(compute_s / expected_s, LEAST_FACTOR), MOST_FACTOR)
        (self._wide if rows >= WIDE_ROWS else self._narrow).observe(factor, now)

    def at(self, now: float) -> LayerSpeed:
        """The speed under the load of the last minutes."""
        return LayerSpeed(
            _scaled(self._idle.decode_layer_s, self._narrow, now), _scaled(self._idle.prefill_layer_s, self._wide, now)
        )


def _scaled(seconds: float, factors: DecayingMedian, now: float) -> float:
    factor = factors.at(now)
    assert factor is not None  # it has a prior
    return min(max(seconds * factor.median, LEAST_S), MAX_LAYER_S)
