"""Gossip among many peers in one process, without a network or a clock: the pure machines that real peers run.

Says what one peer sends and receives, and how soon all know who came and who is gone. Seeded: the same call gives the
same figures. `python -m shardp2p.lab.epidemic 1000` prints them.
"""

from __future__ import annotations

import gc
import heapq
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from random import Random
from typing import Final

from shardp2p.identity.keys import Identity
from shardp2p.identity.token import Invite, Member, Refusal, read_member
from shardp2p.swarm.gossip import Gossip
from shardp2p.swarm.links import rough
from shardp2p.swarm.neighbours import CHOSEN, Connected, Neighbours
from shardp2p.swarm.pace import lifetime_s, period_s
from shardp2p.swarm.publisher import Coverage, Publisher
from shardp2p.swarm.roll import Roll
from shardp2p.swarm.sealed_records import open_record
from shardp2p.swarm.view_events import GossipEvent, Vanished
from shardp2p.vocabulary import LayerRange, ModelId, PeerId, SwarmId
from shardp2p.wire.codec import encode
from shardp2p.wire.codec_gossip import HEARTBEAT_BYTES, SHORT_BYTES
from shardp2p.wire.messages import PeerAddress
from shardp2p.wire.news import News
from shardp2p.wire.protocols import GOSSIP
from shardp2p.wire.records import CoverageRecord, HeldLayers, Link

TICK_S: Final = 0.5
DELAY_S: Final = 0.05
"""One way between any two peers."""
OVERHEAD_BYTES: Final = 12 + 18
"""What the multiplexer and the encryption add to a message."""
EMPTY_BYTES: Final = len(encode(GOSSIP, News()))
UNIX_S: Final = 1_700_000_000.0
_DIGEST: Final = sha256(b"a-model").hexdigest()
INVITE_S: Final = 30 * 86_400.0
PERIODS: Final = 2.0
"""How long what it costs is measured, in heartbeats of one peer."""


@dataclass(slots=True)
class SimulatedPeer:
    """One peer and what it sent and received, in bytes."""

    identity: Identity
    gossip: Gossip
    neighbours: Neighbours
    connected: dict[PeerId, Connected]
    coverage: Coverage
    sent_bytes: int = 0
    received_bytes: int = 0
    wakes_at: float = 0.0
    is_alive: bool = True

    @property
    def peer_id(self) -> PeerId:
        """Its id."""
        return self.identity.peer_id


class Epidemic:
    """Peers that gossip. `now` is simulated time in seconds."""

    def __init__(self, seed: int = 0) -> None:
        self.now = 0.0
        self.peers: dict[PeerId, SimulatedPeer] = {}
        self._rng = Random(seed)
        owner = self._identity()
        self._swarm = SwarmId(owner.peer_id)
        self._invite = Invite.issue(owner, "a swarm", UNIX_S, INVITE_S, key=Identity.from_seed(bytes(32)))
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._opened: dict[bytes, CoverageRecord] = {}
        self._members: dict[bytes, Member] = {}

    def join(
        self, entrances: int = 1, says: Callable[[Coverage], Coverage] = lambda coverage: coverage
    ) -> SimulatedPeer:
        """A new peer that was told of a few others; what it `says` first follows from its coverage."""
        alive = [peer.peer_id for peer in self.peers.values() if peer.is_alive]
        peer = self._peer(self._rng.sample(alive, min(len(alive), entrances)), alive[:8])
        peer.gossip.own.update(says(peer.coverage))
        self._tick(peer)
        return peer

    def form(self, size: int) -> None:
        """A swarm of `size` peers that have known one another for long, in the moment in which it is looked at."""
        peers = [self._peer((), []) for _ in range(size)]
        links = [peer.peer_id for peer in peers[:8]]
        period = period_s(lifetime_s(size))
        for peer in peers:
            others = [other.peer_id for other in peers if other is not peer]
            for chosen in self._rng.sample(others, min(len(others), CHOSEN)):
                self._connect(peer, chosen)
            peer.coverage = typical_coverage(peer.peer_id, links)
            peer.gossip.own.update(peer.coverage)
            spoke_at = self.now - self._rng.random() * period
            peer.gossip.own.tick(spoke_at, UNIX_S + spoke_at, size)
        told = [(peer, news) for peer in peers if (news := peer.gossip.own.news(self.now)) is not None]
        for peer in peers:
            for other, news in told:
                if other is not peer:
                    peer.gossip.view.learn(news, self.now)
            self._at(self.now + self._rng.random() * TICK_S, partial(self._tick, peer))

    def kill(self, peer: SimulatedPeer) -> None:
        """End a peer without a word; its neighbours notice that the streams are gone."""
        peer.is_alive = False
        for other in list(peer.connected):
            self._disconnect(self.peers[other], peer)
        del self.peers[peer.peer_id]

    def leave(self, peer: SimulatedPeer) -> None:
        """End a peer that says so, a second later."""
        peer.gossip.own.leave()
        self._at(self.now + 1.0, lambda: self.kill(peer))

    def run_until(self, end: float) -> None:
        """Let time pass."""
        while self._agenda and self._agenda[0][0] <= end:
            self.now, _, action = heapq.heappop(self._agenda)
            action()
        self.now = end

    def knowing(self, gone: SimulatedPeer) -> int:
        """How many still believe that this peer lives."""
        return sum(peer.gossip.view.record_of(gone.peer_id) is not None for peer in self.peers.values())

    def traffic_bytes(self) -> int:
        """Sent and received by all peers since the beginning."""
        return sum(peer.sent_bytes + peer.received_bytes for peer in self.peers.values())

    def _peer(self, told: Iterable[PeerId], linked: Iterable[PeerId]) -> SimulatedPeer:
        identity = self._identity()
        rng = Random(self._rng.random())
        proof = self._invite.claim(identity, UNIX_S)
        publisher = Publisher(identity, self._swarm, rng, rng.randbytes, membership=proof)
        peer = SimulatedPeer(
            identity,
            Gossip(publisher, self._swarm, opener=self._open, roll=Roll(self)),
            Neighbours(identity.peer_id, [PeerAddress(other, ("/",)) for other in told], rng),
            {},
            typical_coverage(identity.peer_id, linked),
        )
        publisher.update(peer.coverage)
        self.peers[peer.peer_id] = peer
        return peer

    def _identity(self) -> Identity:
        return Identity.from_seed(self._rng.randbytes(32))

    def _open(self, sealed: bytes, swarm: SwarmId) -> CoverageRecord:
        """Each record is checked once for all peers, which is a pure function of its bytes."""
        record = self._opened.get(sealed)
        if record is None:
            record = self._opened[sealed] = open_record(sealed, swarm)
        return record

    def check(self, proof: bytes, peer: PeerId, now_s: float) -> Member:
        """As `_open`, for proofs of membership."""
        member = self._members.get(proof)
        if member is None:
            member = self._members[proof] = read_member(proof)
        return member

    def refusal(self, member: Member, now_s: float) -> Refusal | None:
        """Nobody is revoked here."""
        return None

    def _at(self, when: float, action: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._agenda, (when, self._order, action))

    def _tick(self, peer: SimulatedPeer) -> None:
        if not peer.is_alive:
            return
        self._note(peer, peer.gossip.tick(self.now, UNIX_S + self.now))
        live = peer.gossip.view.live()
        for address in peer.neighbours.to_dial(live, peer.connected, lambda _: False, self.now):
            self._connect(peer, address.peer_id)
        for other in peer.neighbours.surplus(peer.connected, len(live), self.now):
            self._disconnect(self.peers[other], peer)
            self._disconnect(peer, self.peers[other])
        self._wake(peer)
        self._at(self.now + TICK_S, partial(self._tick, peer))

    def _connect(self, dialler: SimulatedPeer, peer: PeerId) -> None:
        other = self.peers.get(peer)
        if other is None or dialler.peer_id in other.connected:
            dialler.neighbours.failed(peer, self.now)
            return
        for one, two, is_chosen in ((dialler, other, True), (other, dialler, False)):
            one.connected[two.peer_id] = Connected(is_chosen, self.now)
            one.neighbours.succeeded(two.peer_id)
            one.gossip.connect(two.peer_id, self.now)
            self._wake(one)

    def _disconnect(self, peer: SimulatedPeer, other: SimulatedPeer) -> None:
        peer.connected.pop(other.peer_id, None)
        peer.gossip.disconnect(other.peer_id)
        peer.neighbours.failed(other.peer_id, self.now)

    def _wake(self, peer: SimulatedPeer) -> None:
        """Send what is due, and come again when more is."""
        gossip, due = peer.gossip, math.inf
        for other in peer.connected:
            while (due_at := gossip.due_at(other)) <= self.now:
                news = gossip.take(other, self.now)
                if not news.is_empty:
                    self._send(peer, self.peers[other], news)
            if due_at < due:
                due = due_at
        # A tick comes anyway, so only what is due before it needs a place in the agenda.
        if self.now < due < self.now + TICK_S and not self.now < peer.wakes_at <= due:
            peer.wakes_at = due
            self._at(due, partial(self._wake_alive, peer))

    def _wake_alive(self, peer: SimulatedPeer) -> None:
        if peer.is_alive:
            self._wake(peer)

    def _send(self, sender: SimulatedPeer, receiver: SimulatedPeer, news: News) -> None:
        size = encoded_bytes(news) + OVERHEAD_BYTES
        sender.sent_bytes += size
        self._at(self.now + DELAY_S, partial(self._receive, sender, receiver, news, size))

    def _receive(self, sender: SimulatedPeer, receiver: SimulatedPeer, news: News, size: int) -> None:
        receiver.received_bytes += size
        if receiver.is_alive and sender.peer_id in receiver.connected:
            self._note(receiver, receiver.gossip.receive(sender.peer_id, news, self.now))
            self._wake(receiver)

    def _note(self, peer: SimulatedPeer, events: Iterable[GossipEvent]) -> None:
        for event in events:
            if isinstance(event, Vanished) and event.reason == "silent":
                peer.neighbours.lost(event.record)


def encoded_bytes(news: News) -> int:
    """What `news` takes once it is encoded, without encoding what comes in great numbers."""
    if news.records or news.offers or news.value_wants or news.values:
        return len(encode(GOSSIP, news))
    packed = (HEARTBEAT_BYTES * len(news.heartbeats), SHORT_BYTES * len(news.record_wants))
    return EMPTY_BYTES + sum(1 + _varint_bytes(size) + size for size in packed if size)


def _varint_bytes(value: int) -> int:
    return max(1, -(-value.bit_length() // 7))


def typical_coverage(peer: PeerId, linked: Iterable[PeerId]) -> Coverage:
    """What a peer with one range of layers and eight measured links says."""
    held = HeldLayers(
        ModelId("a-model"),
        _DIGEST,
        80,
        LayerRange(0, 8),
        "serving",
        "bfloat16",
        8192,
        2**33,
        65536,
        65536,
        0.002,
        0.0001,
    )
    # Figures that differ, as measured ones do: records are deflated.
    draw = Random(peer)
    addresses = tuple(f"/ip4/198.51.{draw.randrange(256)}.{draw.randrange(256)}/tcp/4001/p2p/{peer}" for _ in range(2))
    links = tuple(_typical_link(other, draw) for other in linked if other != peer)
    return Coverage("serving", addresses, "public", "eu", "0.1.0", 2**34, 2**30, (held,), links)


def _typical_link(other: PeerId, draw: Random) -> Link:
    """A measured way: some 40 ms and 10 MB/s, each in the digits in which links are told."""
    rtt_s, spread_s, bandwidth_bytes_s = (draw.lognormvariate(math.log(median), 1.0) for median in (0.04, 0.002, 1e7))
    return Link(other, rough(rtt_s), rough(spread_s, 1), rough(bandwidth_bytes_s))


def main(size: int) -> None:
    """Print what `size` peers that have formed a swarm cost each, and how soon a death is known."""
    epidemic = Epidemic()
    epidemic.form(size)
    gc.freeze()  # what lives to the end need not be looked at again and again
    period = period_s(lifetime_s(size))
    epidemic.run_until(period)
    before, start = epidemic.traffic_bytes(), epidemic.now
    epidemic.run_until(start + PERIODS * period)
    per_peer = (epidemic.traffic_bytes() - before) / size / (PERIODS * period)
    seen = min(len(peer.gossip.view) for peer in epidemic.peers.values()) + 1
    victim = next(iter(epidemic.peers.values()))
    epidemic.kill(victim)
    start = epidemic.now
    while epidemic.knowing(victim) and epidemic.now < start + 120:
        epidemic.run_until(epidemic.now + TICK_S)
    took = epidemic.now - start
    degree = sum(len(peer.connected) for peer in epidemic.peers.values()) / len(epidemic.peers)
    sys.stdout.write(
        f"{size} peers, each sees {seen} or more, {degree:.1f} neighbours, {per_peer:.0f} bytes/s in and out, "
        f"a death forgotten by all after {took:.1f} s\n"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
