"""A median of measurements that forgets: what is recent counts more, and no outlier counts more than others. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from shardp2p.errors import LocalProtocolError


class Spread(NamedTuple):
    """The middle of some measurements, and how far from it half of them lie (median absolute deviation)."""

    median: float
    spread: float


class DecayingMedian:
    """The last `window` measurements; one that is `half_life_s` old counts half, and one ten half-lives old no more.

    `prior` is what is believed without measurements: it counts as `prior_weight` fresh ones and does not age.
    """

    def __init__(
        self, window: int, half_life_s: float, *, prior: float | None = None, prior_weight: float = 1.0
    ) -> None:
        if window < 1 or not half_life_s > 0 or not prior_weight > 0:
            raise LocalProtocolError(f"a median of {window} values, half-life {half_life_s} s, prior {prior_weight}")
        self._values: deque[tuple[float, float]] = deque(maxlen=window)
        self._half_life_s = half_life_s
        self._prior = [] if prior is None else [(prior, prior_weight)]

    def observe(self, value: float, now: float) -> None:
        """Count a measurement made at `now`, which never goes back."""
        self._values.append((now, value))

    def count(self, now: float) -> int:
        """How many measurements still count."""
        return len(self._weighted(now))

    def at(self, now: float) -> Spread | None:
        """Median and spread as of `now`, or None while nothing is known."""
        weighted = self._weighted(now) + self._prior
        if not weighted:
            return None
        middle = weighted_median(weighted)
        return Spread(middle, weighted_median((abs(value - middle), weight) for value, weight in weighted))

    def _weighted(self, now: float) -> list[tuple[float, float]]:
        while self._values and now - self._values[0][0] > 10 * self._half_life_s:
            self._values.popleft()
        return [(value, 0.5 ** ((now - then) / self._half_life_s)) for then, value in self._values]


def weighted_median(weighted: Iterable[tuple[float, float]]) -> float:
    """The value at which half of the weight of (value, weight) pairs is reached; between two where it is met exactly.

    With equal weights it is the ordinary median. Raises: LocalProtocolError where there is nothing.
    """
    ordered = sorted(weighted)
    half = sum(weight for _, weight in ordered) / 2
    reached = 0.0
    for at, (value, weight) in enumerate(ordered):
        reached += weight
        if reached > half * (1 + 1e-12):
            return value
        if reached >= half * (1 - 1e-12) and at + 1 < len(ordered):
            return (value + ordered[at + 1][0]) / 2
    if not ordered:
        raise LocalProtocolError("a median of nothing")
    return ordered[-1][0]
