"""Strikes: who broke the rules, how often, and for how long nobody talks to it. Also what a peer may send. Pure.

Both decay: an old strike weighs nothing, and a ban ends. Memory is bounded, whoever comes.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from shardp2p.vocabulary import PeerId

MAX_STRUCK: Final = 4096
"""Peers that are remembered; of more, those that were struck longest ago are forgotten."""
BAN_SCORE: Final = 10.0
HALF_LIFE_S: Final = 120.0
FIRST_BAN_S: Final = 60.0
LONGEST_BAN_S: Final = 3600.0
"""Each ban is twice as long as the one before, up to this."""
FORGIVEN_S: Final = 6 * 3600.0
"""After so long without a ban the next one is short again."""

FORGERY: Final = 6.0
"""A wrong signature or proof: the second one is the last."""
BREACH: Final = 4.0
"""Bytes or values against the rules."""
NUISANCE: Final = 1.0
"""What an honest peer does now and then: too much at once, or an answer that nobody waits for."""


@dataclass(slots=True)
class _Standing:
    score: float = 0.0
    scored_at: float = 0.0
    bans: int = 0
    banned_until: float = -math.inf


class Strikes:
    """The standing of peers that broke rules. One for the whole process: any service may strike."""

    def __init__(self) -> None:
        self._standings: OrderedDict[PeerId, _Standing] = OrderedDict()

    def __len__(self) -> int:
        return len(self._standings)

    def strike(self, peer: PeerId, weight: float, now: float) -> bool:
        """Count against `peer`; whether it is banned by that."""
        standing = self._standings.setdefault(peer, _Standing())
        self._standings.move_to_end(peer)
        while len(self._standings) > MAX_STRUCK:
            self._standings.popitem(last=False)
        standing.score = _decayed(standing, now) + weight
        standing.scored_at = now
        if standing.score < BAN_SCORE or now < standing.banned_until:
            return False
        if now > standing.banned_until + FORGIVEN_S:
            standing.bans = 0
        standing.banned_until = now + min(LONGEST_BAN_S, FIRST_BAN_S * 2.0**standing.bans)
        standing.bans = min(standing.bans + 1, 16)
        standing.score = 0.0
        return True

    def is_banned(self, peer: PeerId, now: float) -> bool:
        """Whether to talk to `peer` at all."""
        standing = self._standings.get(peer)
        return standing is not None and now < standing.banned_until

    def score(self, peer: PeerId, now: float) -> float:
        """What weighs against `peer` now; 0 for most."""
        standing = self._standings.get(peer)
        return 0.0 if standing is None else _decayed(standing, now)


def _decayed(standing: _Standing, now: float) -> float:
    return standing.score * math.pow(0.5, max(0.0, now - standing.scored_at) / HALF_LIFE_S)


class TokenBucket:
    """Lets through `burst` at once and `rate` per second in the long run."""

    __slots__ = ("_burst", "_filled_at", "_rate", "_tokens")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._filled_at = now

    def has(self, amount: float, now: float) -> bool:
        """Whether `amount` may pass now."""
        return self._level(now) >= amount

    def spend(self, amount: float, now: float) -> bool:
        """Take `amount` if it may pass; whether it did."""
        level = self._level(now)
        if level < amount:
            return False
        self._tokens = level - amount
        self._filled_at = now
        return True

    def _level(self, now: float) -> float:
        return min(self._burst, self._tokens + self._rate * max(0.0, now - self._filled_at))
