"""When to try again to punch a hole to a peer: later each time, and not for ever, until something changed. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from shardp2p.host.addresses import Endpoint
from shardp2p.host.punch.mapping import MappingKind
from shardp2p.vocabulary import PeerId

FIRST_PAUSE_S: Final = 5.0
LONGEST_PAUSE_S: Final = 320.0
MAX_FAILURES: Final = 8
"""In a row without any change: about ten minutes of trying, of which most is pauses."""
SETTLE_S: Final = 5.0
"""After a success: a hole that closes again at once must not keep us busy."""
MAX_PEERS: Final = 1024
"""More than there can be connections; the one that was heard of longest ago is forgotten."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What an attempt depends on. One that failed is due anew as soon as any of it differs."""

    our_addresses: tuple[Endpoint, ...] = ()
    our_kind: MappingKind = "unknown"
    their_addresses: tuple[str, ...] = ()
    their_kind: MappingKind = "unknown"

    @property
    def are_hopeless(self) -> bool:
        """Whether both routers give every remote another port: over TCP there is nothing to punch then."""
        return self.our_kind == "dependent" and self.their_kind == "dependent"


@dataclass(slots=True)
class _History:
    circumstances: Circumstances
    failures: int = 0
    due_at: float = -math.inf
    earliest_at: float = -math.inf


class Schedule:
    """What came of the attempts with each peer. `chance` gives numbers in [0, 1)."""

    def __init__(self, chance: Callable[[], float]) -> None:
        self._chance = chance
        self._peers: dict[PeerId, _History] = {}

    def is_due(self, peer: PeerId, circumstances: Circumstances, now: float, *, has_straight: bool = False) -> bool:
        """Whether to try now; never while a straight connection lives."""
        return not has_straight and self.why_not(peer, circumstances, now) is None

    def why_not(self, peer: PeerId, circumstances: Circumstances, now: float) -> str | None:
        """Why an attempt is not due, in words."""
        if circumstances.are_hopeless:
            return "both routers give each remote another port, so the relay stays"
        history = self._peers.get(peer)
        if history is None:
            return None
        due_at = self._due_at(history, circumstances)
        if due_at == math.inf:
            return f"{history.failures} attempts failed; the next one comes when an address changes"
        return f"the next attempt is due in {due_at - now:.0f} s" if now < due_at else None

    def next_at(self, peer: PeerId, circumstances: Circumstances) -> float:
        """When an attempt is due if nothing changes; inf for never."""
        history = self._peers.get(peer)
        if circumstances.are_hopeless:
            return math.inf
        return -math.inf if history is None else self._due_at(history, circumstances)

    def fail(self, peer: PeerId, circumstances: Circumstances, now: float) -> None:
        """An attempt under these circumstances ended without a connection."""
        history = self._peers.pop(peer, None)
        if history is None or history.circumstances != circumstances:
            history = _History(circumstances)
        pause_s = min(FIRST_PAUSE_S * 2**history.failures, LONGEST_PAUSE_S)
        history.failures += 1
        # Up to a fifth earlier or later, so that two peers that failed together do not stay in step.
        history.due_at = now + pause_s * (0.8 + 0.4 * self._chance())
        history.earliest_at = now + FIRST_PAUSE_S / 2
        self._keep(peer, history)

    def succeed(self, peer: PeerId, circumstances: Circumstances, now: float) -> None:
        """A straight connection came about."""
        self._peers.pop(peer, None)
        self._keep(peer, _History(circumstances, 0, now + SETTLE_S, now + SETTLE_S))

    def forget(self, peer: PeerId) -> None:
        """The peer is gone."""
        self._peers.pop(peer, None)

    def __len__(self) -> int:
        return len(self._peers)

    @staticmethod
    def _due_at(history: _History, circumstances: Circumstances) -> float:
        if history.circumstances != circumstances:
            # Whoever changes its addresses all the time is still not tried all the time.
            return history.earliest_at
        return history.due_at if history.failures < MAX_FAILURES else math.inf

    def _keep(self, peer: PeerId, history: _History) -> None:
        if len(self._peers) >= MAX_PEERS:
            del self._peers[next(iter(self._peers))]
        self._peers[peer] = history
