"""How often a peer speaks, by the size of the swarm: quick where it is small, affordable where it is large. Pure.

A heartbeat reaches everybody over some six streams, so the traffic of each peer grows with the number of peers over the
period. The period grows with the square root of the size: so does the traffic, and so does the time to miss the dead.
"""

from __future__ import annotations

import math
from typing import Final

SMALL_SWARM: Final = 50
"""Up to this size the pace is the quickest."""
LIFETIME_S: Final = 10.0
"""A peer that is not heard for so long is gone, in a small swarm."""
LIFETIME_STEP: Final = 1.178
"""Lifetimes come in steps, because each change of it is a new record."""
LONGEST_LIFETIMES: Final = 4.0
"""Others may see eight times as many peers as we do."""
HEARTBEATS_PER_LIFETIME: Final = 3.0
MINOR_CHANGE_S: Final = 10.0
REMEASURED_S: Final = 60.0
"""A link is measured once in so long, and half believed two minutes later."""
MINOR_CHANGE_S_PER_PEER: Final = 0.4
"""A swarm's records together cost each peer the same however many there are: one record in 0.4 s."""


def lifetime_s(size: int, current_s: float = 0.0) -> float:
    """How long a peer of a swarm of `size` lives on one heartbeat. Stays at `current_s` until that is two steps off,
    so that a size that wavers changes nothing; never below what the size needs.
    """
    needed = LIFETIME_S * LIFETIME_STEP ** math.ceil(_steps(size))
    return current_s if needed <= current_s <= needed * LIFETIME_STEP * 1.01 else needed


def longest_lifetime_s(size: int) -> float:
    """After so long without a heartbeat a peer is gone for who sees `size` peers, whatever its record says."""
    return LONGEST_LIFETIMES * lifetime_s(size)


def period_s(lifetime: float) -> float:
    """The time between two heartbeats of a peer with that lifetime: two may be lost, and there is time to spread."""
    return lifetime / HEARTBEATS_PER_LIFETIME


def minor_change_s(size: int) -> float:
    """How long a change that moves no request, as a few free cache rows, may wait for the next record."""
    return max(MINOR_CHANGE_S, MINOR_CHANGE_S_PER_PEER * size)


def remeasured_s(size: int) -> float:
    """How long other figures for links that are known already may wait for the next record."""
    return max(REMEASURED_S, minor_change_s(size))


def _steps(size: int) -> float:
    # The small excess keeps a whole number of steps from being rounded up.
    return max(0.0, math.log(math.sqrt(size / SMALL_SWARM), LIFETIME_STEP) - 1e-9) if size > 0 else 0.0
