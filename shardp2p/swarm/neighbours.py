"""Which peers to keep a gossip stream with: a few at random, everybody in a small swarm. Pure.

Three that we chose ourselves keep the graph in one piece with high probability and cannot be pushed out by those who
choose us; on average three more choose us. Beside them, now and then one that was lost is tried: so halves of a swarm
that lost each other meet again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from shardp2p.swarm.chance import Chance
from shardp2p.vocabulary import PeerId
from shardp2p.wire.messages import PeerAddress
from shardp2p.wire.records import CoverageRecord

SMALL: Final = 6
"""Up to so many others, everybody is a neighbour."""
CHOSEN: Final = 3
MOST_INBOUND: Final = 12
"""Of those who chose us; one above it is sent on when it had time to hear the view."""
SETTLING_S: Final = 5.0
DIALS_AT_ONCE: Final = 4
FIRST_BACK_OFF_S: Final = 1.0
LONGEST_BACK_OFF_S: Final = 60.0
REUNION_S: Final = 5.0
"""How often one that is not live is tried."""
MAX_LOST: Final = 128
MAX_FAILED: Final = 1024


@dataclass(frozen=True, slots=True)
class Connected:
    """A gossip stream that stands: who opened it, and when."""

    is_chosen: bool
    since: float


@dataclass(slots=True)
class _Failure:
    count: int
    until: float


class Neighbours:
    """Chooses whom to dial and whom to send on. `bootstrap` are the peers that we were told of."""

    def __init__(self, own: PeerId, bootstrap: Sequence[PeerAddress], rng: Chance) -> None:
        self._own = own
        self._rng = rng
        self._bootstrap = {peer.peer_id: peer for peer in bootstrap if peer.peer_id != own}
        self._lost: OrderedDict[PeerId, PeerAddress] = OrderedDict()
        self._failures: OrderedDict[PeerId, _Failure] = OrderedDict()
        self._reunion_at = 0.0

    def add(self, peers: Iterable[PeerAddress]) -> None:
        """Peers that somebody told us of, as the DHT or mDNS; they are tried like those that were lost."""
        for peer in peers:
            self._remember(peer)

    def lost(self, record: CoverageRecord) -> None:
        """This peer fell silent; it may have been us who lost the network."""
        if record.addresses:
            self._remember(PeerAddress(record.peer_id, record.addresses))

    def failed(self, peer: PeerId, now: float) -> None:
        """It could not be reached, or its stream ended: wait before the next try, each time longer."""
        failure = self._failures.setdefault(peer, _Failure(0, now))
        self._failures.move_to_end(peer)
        while len(self._failures) > MAX_FAILED:
            self._failures.popitem(last=False)
        back_off_s = min(LONGEST_BACK_OFF_S, FIRST_BACK_OFF_S * 2.0**failure.count)
        failure.count = min(failure.count + 1, 16)
        failure.until = now + back_off_s * (0.5 + 0.5 * self._rng.random())

    def succeeded(self, peer: PeerId) -> None:
        """Its stream stands."""
        self._failures.pop(peer, None)
        self._lost.pop(peer, None)

    def to_dial(
        self,
        live: Sequence[CoverageRecord],
        connected: Mapping[PeerId, Connected],
        is_banned: Callable[[PeerId], bool],
        now: float,
    ) -> list[PeerAddress]:
        """Whom to dial now. `connected` includes those that are being dialled."""
        chosen_already = sum(state.is_chosen for state in connected.values())
        lacking = min(DIALS_AT_ONCE, SMALL if len(live) <= SMALL else CHOSEN - chosen_already)
        chosen: list[PeerAddress] = []
        if lacking > 0:
            open_to_us = [
                PeerAddress(record.peer_id, record.addresses)
                for record in live
                if record.addresses
                and record.peer_id not in connected
                and self._may_try(record.peer_id, is_banned, now)
            ]
            chosen = self._rng.sample(open_to_us, min(len(open_to_us), lacking))
        return chosen + self._reunion(live, connected, is_banned, now)

    def surplus(self, connected: Mapping[PeerId, Connected], live: int, now: float) -> list[PeerId]:
        """Who should look for another neighbour."""
        inbound = [peer for peer, state in connected.items() if not state.is_chosen]
        settled = [peer for peer in inbound if now - connected[peer].since >= SETTLING_S]
        excess = min(len(inbound) - MOST_INBOUND, len(settled))
        return self._rng.sample(settled, excess) if excess > 0 and live > SMALL else []

    def _reunion(
        self,
        live: Sequence[CoverageRecord],
        connected: Mapping[PeerId, Connected],
        is_banned: Callable[[PeerId], bool],
        now: float,
    ) -> list[PeerAddress]:
        """One of those that we know and do not see; all that we may try, while we see nobody."""
        if connected and now < self._reunion_at:
            return []
        self._reunion_at = now + REUNION_S * (0.5 + self._rng.random())
        seen = {record.peer_id for record in live}
        hidden = [
            peer
            for peer in {**self._lost, **self._bootstrap}.values()
            if peer.peer_id not in seen
            and peer.peer_id not in connected
            and self._may_try(peer.peer_id, is_banned, now)
        ]
        return self._rng.sample(hidden, min(len(hidden), 1 if connected else DIALS_AT_ONCE))

    def _may_try(self, peer: PeerId, is_banned: Callable[[PeerId], bool], now: float) -> bool:
        failure = self._failures.get(peer)
        return peer != self._own and (failure is None or now >= failure.until) and not is_banned(peer)

    def _remember(self, peer: PeerAddress) -> None:
        if peer.peer_id != self._own:
            self._lost[peer.peer_id] = peer
            self._lost.move_to_end(peer.peer_id)
        while len(self._lost) > MAX_LOST:
            self._lost.popitem(last=False)
