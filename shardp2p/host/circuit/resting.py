"""Relays that failed, and until when each is left alone. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from shardp2p.vocabulary import PeerId

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
"""A pause doubles with every failure in a row, up to this."""
MAX_FAILURES: Final = 8
GIVEN_UP_S: Final = 600.0
"""After so many failures a relay is tried once in ten minutes."""
MAX_RESTING: Final = 256
"""Four times as many as there are candidates; who failed first is forgotten first."""


@dataclass(frozen=True, slots=True)
class _Rest:
    until: float
    failures: int
    reason: str


class Resting:
    """Times are those of the clock that `now` comes from."""

    def __init__(self) -> None:
        self._rests: dict[PeerId, _Rest] = {}

    @property
    def reasons(self) -> dict[PeerId, str]:
        """Why each was left alone last."""
        return {peer: rest.reason for peer, rest in self._rests.items()}

    def until(self, peer: PeerId) -> float:
        """When `peer` may be tried; a time long past for one that did not fail."""
        rest = self._rests.get(peer)
        return -math.inf if rest is None else rest.until

    def failures(self, peer: PeerId) -> int:
        """How often `peer` failed since it last worked."""
        rest = self._rests.get(peer)
        return 0 if rest is None else rest.failures

    def failed(self, peer: PeerId, reason: str, now: float) -> None:
        """Leave `peer` alone, for longer than the last time."""
        failures = self.failures(peer) + 1
        pause_s = min(FIRST_PAUSE_S * 2.0 ** (failures - 1), LONGEST_PAUSE_S) if failures < MAX_FAILURES else GIVEN_UP_S
        self._rests.pop(peer, None)
        if len(self._rests) >= MAX_RESTING:
            del self._rests[next(iter(self._rests))]
        self._rests[peer] = _Rest(now + pause_s, failures, reason)

    def hurry(self, peer: PeerId, now: float) -> None:
        """`peer` has come back: try it soon, however long it was away. Another failure counts on."""
        rest = self._rests.get(peer)
        if rest is not None:
            self._rests[peer] = replace(rest, until=min(rest.until, now + FIRST_PAUSE_S))

    def forgive(self, peer: PeerId) -> None:
        """`peer` worked."""
        self._rests.pop(peer, None)
