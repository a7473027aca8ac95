"""The moments at which loops look around, the same for all: so a peer with nothing to do wakes seldom. Pure.

A processor that wakes for one timer serves ten more for little; ten timers apart from each other wake it ten times.
"""

from __future__ import annotations

import math


def next_beat(now: float, period_s: float) -> float:
    """The next whole multiple of `period_s`: later than `now`, by one period at most."""
    beat = (math.floor(now / period_s) + 1) * period_s
    return beat if beat > now else beat + period_s
