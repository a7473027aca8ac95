"""An hour of a swarm whose peers join, crash and leave all the time: no sockets, no clock, one seed.

Every peer decides by itself with the pure functions of `scheduler`, on what it knows: news of others reach it late, and
each peer at another time. What gossip costs is measured apart (`churn_traffic`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

from shardp2p.scheduler.holders import Holder, HolderState, counts
from shardp2p.scheduler.placement import place
from shardp2p.scheduler.settling import must_move, resolve_conflict
from shardp2p.scheduler.topology import Machine, ModelShape, Topology
from shardp2p.swarm.pace import lifetime_s
from shardp2p.vocabulary import LayerRange, ModelId, PeerId

NEWS_S = 2.0
"""Within this time everybody knows what a peer said of itself, a departure too (docs/protocols/gossip.md)."""

SETTLE_S = 2 * NEWS_S
"""A claim that nobody contradicted for so long is loaded."""

MOVES_AT_MOST = 2
"""After so many moves a claim is loaded as it is: others give way to what loads."""

REGIONS = 6

SAMPLE_S = 10.0


@dataclass(frozen=True, slots=True)
class ChurnSettings:
    """What happens in the hour. Peers stay for exponential times; a share of them goes without a word."""

    peers: int = 1000
    duration_s: float = 3600.0
    layers: int = 80
    layer_bytes: int = 400 * 2**20
    fits: tuple[int, ...] = (2, 4, 6, 8, 12, 16)
    stay_s: float = 1800.0
    crash_share: float = 0.3
    bandwidth_bytes_s: tuple[float, float] = (5e6, 100e6)
    start_within_s: float = 300.0
    seed: int = 0


@dataclass(slots=True)
class ChurnReport:
    """What happened.

    ready_s          when every layer was served for the first time
    lost_s           how long some layer was not, later on and with memory enough in the swarm
    short_s          how long some layer was not because the peers together had no room for the model
    fewest_holders   the least number of peers that served a layer at any time after the start
    typical_holders  the median over time of that number, and what the memory allowed then
    moves            changes of place: of a claim before anything was loaded, and of a peer that served
    announcements    records that peers made because something changed
    """

    settings: ChurnSettings
    joined: int = 0
    crashed: int = 0
    left: int = 0
    moves_of_claims: int = 0
    moves_of_serving: int = 0
    most_moves: int = 0
    ready_s: float | None = None
    lost_s: float = 0.0
    short_s: float = 0.0
    fewest_holders: int = 0
    typical_holders: int = 0
    allowed_holders: int = 0
    announcements: int = 0

    def figures(self) -> dict[str, float | int | bool | None]:
        """What a table or a script shows."""
        hours = self.settings.duration_s / 3600
        return {
            "peers": self.settings.peers,
            "hours": round(hours, 4),
            "layers": self.settings.layers,
            "joined": self.joined,
            "left": self.left,
            "crashed": self.crashed,
            "ready_s": None if self.ready_s is None else round(self.ready_s, 1),
            "coverage_lost": self.lost_s > 0,
            "lost_s": round(self.lost_s, 1),
            "short_s": round(self.short_s, 1),
            "fewest_holders": self.fewest_holders,
            "typical_holders": self.typical_holders,
            "allowed_holders": self.allowed_holders,
            "moves_of_claims_per_hour": round(self.moves_of_claims / hours, 1),
            "moves_of_serving_per_hour": round(self.moves_of_serving / hours, 1),
            "most_moves_of_a_peer": self.most_moves,
            "announcements_per_peer_hour": round(self.announcements / self.settings.peers / hours, 2),
        }


@dataclass(slots=True)
class _Version:
    """What a peer said at a time, the first thing with number 0; no holders once it left or its silence was noticed."""

    at: float
    holders: tuple[Holder, ...]
    within_s: float
    number: int


@dataclass(slots=True)
class _Peer:
    machine: Machine
    bandwidth_bytes_s: float
    salt: int
    ranges: tuple[LayerRange, ...] = ()
    state: HolderState = "placing"
    changed_at: float = 0.0
    moves: int = 0
    said: list[_Version] = field(default_factory=list)


class Churn:
    """The simulation. `run` gives the report."""

    def __init__(self, settings: ChurnSettings) -> None:
        self._settings = settings
        self._random = Random(settings.seed)
        self._shape = ModelShape(ModelId("churned"), "ab" * 32, settings.layers, settings.layer_bytes, 16384)
        self._report = ChurnReport(settings)
        self._peers: dict[PeerId, _Peer] = {}
        self._alive: dict[PeerId, _Peer] = {}
        self._agenda: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = 0
        self._served = [0] * settings.layers
        self._watched_at = 0.0
        self._samples: list[tuple[int, int]] = []
        self._delays = [[0.0] * REGIONS for _ in range(REGIONS)]
        for one in range(REGIONS):
            for other in range(one, REGIONS):
                seconds = self._random.uniform(0.02, 0.12) if one != other else 0.005
                self._delays[one][other] = self._delays[other][one] = seconds
        self._topology = Topology((), estimate=self)

    def delay_s(self, sender: PeerId, receiver: PeerId) -> float:
        """Between the regions of two peers; the last character of an id says which."""
        return self._delays[int(sender[-1])][int(receiver[-1])]

    def run(self) -> ChurnReport:
        """Let the hour pass."""
        settings, report = self._settings, self._report
        for _ in range(settings.peers):
            self._at(self._random.uniform(0, settings.start_within_s), self._join)
        self._at(2 * settings.start_within_s, self._sample)
        while self._agenda and self._agenda[0][0] <= settings.duration_s:
            now, _, action = heapq.heappop(self._agenda)
            self._watch(now)
            action(now)
        self._watch(settings.duration_s)
        if self._samples:
            report.fewest_holders = min(fewest for fewest, _ in self._samples)
            report.typical_holders, report.allowed_holders = sorted(self._samples)[len(self._samples) // 2]
        return report

    def _at(self, when: float, action: Callable[[float], None]) -> None:
        self._order += 1
        heapq.heappush(self._agenda, (when, self._order, action))

    def _sample(self, now: float) -> None:
        self._samples.append((min(self._served), self._room() // self._settings.layers))
        self._at(now + SAMPLE_S, self._sample)

    def _room(self) -> int:
        return sum(peer.machine.fits_layers for peer in self._alive.values())

    def _watch(self, now: float) -> None:
        """Count the time since the last event in which layers were missing, once all had been there."""
        report, passed_s = self._report, now - self._watched_at
        self._watched_at = now
        if min(self._served) > 0:
            report.ready_s = now if report.ready_s is None else report.ready_s
        elif report.ready_s is not None and now > self._settings.start_within_s:
            if self._room() < self._settings.layers:
                report.short_s += passed_s
            else:
                report.lost_s += passed_s

    def _join(self, now: float) -> None:
        draw, settings = self._random, self._settings
        peer_id = PeerId(f"{draw.getrandbits(64):016x}{len(self._peers)}{draw.randrange(REGIONS)}")
        machine = Machine(peer_id, draw.choice(settings.fits), draw.uniform(0.0005, 0.003))
        peer = _Peer(machine, draw.uniform(*settings.bandwidth_bytes_s), draw.getrandbits(30))
        self._peers[peer_id] = self._alive[peer_id] = peer
        self._report.joined += 1
        self._claim(now, peer, place(self._shape, machine, list(self._view(peer, now)), self._topology).ranges)
        leaves_at = now + draw.expovariate(1 / settings.stay_s)
        self._at(leaves_at, lambda at: self._end(at, peer))

    def _end(self, now: float, peer: _Peer) -> None:
        """A peer goes, and another machine comes in its stead at some time, so that the swarm keeps its size."""
        is_crash = self._random.random() < self._settings.crash_share
        self._serve(peer, -1)
        del self._alive[peer.machine.peer_id]
        within_s = NEWS_S + (lifetime_s(len(self._alive) + 1) if is_crash else 0.0)
        peer.said.append(_Version(now, (), within_s, peer.said[-1].number + 1))
        if is_crash:
            self._report.crashed += 1
        else:
            self._report.left += 1
            self._report.announcements += 1
        self._at(now + within_s, lambda at: self._forget(at, peer))
        self._at(now + self._random.expovariate(1 / 30.0), self._join)

    def _forget(self, now: float, peer: _Peer) -> None:
        """All know that it is gone. Where layers are missing now, those whom nobody needs move."""
        del self._peers[peer.machine.peer_id]
        if min(self._served) > 0:
            return
        for other in list(self._alive.values()):
            if other.state == "serving" and must_move(self._shape, other.machine.peer_id, list(self._view(other, now))):
                self._report.moves_of_serving += 1
                self._move(now, other, self._elsewhere(other, now))

    def _elsewhere(self, peer: _Peer, now: float) -> tuple[LayerRange, ...]:
        return place(self._shape, peer.machine, list(self._view(peer, now)), self._topology).ranges

    def _move(self, now: float, peer: _Peer, ranges: tuple[LayerRange, ...]) -> None:
        self._serve(peer, -1)
        peer.moves += 1
        self._report.most_moves = max(self._report.most_moves, peer.moves)
        self._claim(now, peer, ranges)

    def _claim(self, now: float, peer: _Peer, ranges: tuple[LayerRange, ...]) -> None:
        peer.ranges, peer.state, peer.changed_at = ranges, "placing", now
        self._say(now, peer)
        self._at(now + SETTLE_S, lambda at: self._settle(at, peer, now))

    def _settle(self, now: float, peer: _Peer, claimed_at: float) -> None:
        if self._alive.get(peer.machine.peer_id) is not peer or peer.changed_at != claimed_at:
            return
        better = resolve_conflict(self._shape, peer.machine.peer_id, list(self._view(peer, now)))
        if better is not None and peer.moves < MOVES_AT_MOST:
            self._report.moves_of_claims += 1
            self._move(now, peer, better.ranges)
            return
        peer.state, peer.changed_at = "loading", now
        self._say(now, peer)
        size = sum(map(len, peer.ranges)) * self._settings.layer_bytes
        self._at(now + size / peer.bandwidth_bytes_s, lambda at: self._loaded(at, peer, now))

    def _loaded(self, now: float, peer: _Peer, began_at: float) -> None:
        if self._alive.get(peer.machine.peer_id) is not peer or peer.changed_at != began_at:
            return
        peer.state, peer.changed_at = "serving", now
        self._say(now, peer)
        self._serve(peer, +1)

    def _serve(self, peer: _Peer, change: int) -> None:
        if peer.state == "serving":
            for layer, held in enumerate(counts(self._settings.layers, peer.ranges)):
                self._served[layer] += change * held

    def _say(self, now: float, peer: _Peer) -> None:
        self._report.announcements += 1
        holders = tuple(
            Holder(peer.machine.peer_id, layers, peer.machine.layer_s, peer.state) for layers in peer.ranges
        )
        # What everybody knows by now needs no older version behind it.
        recent = sum(1 for version in peer.said if version.at + version.within_s > now)
        number = peer.said[-1].number + 1 if peer.said else 0
        peer.said = [*peer.said[-recent - 1 :], _Version(now, holders, NEWS_S, number)]

    def _view(self, viewer: _Peer, now: float) -> Iterator[Holder]:
        """What `viewer` knows: of every peer the newest version whose news reached it, itself as it is."""
        for peer in self._peers.values():
            for version in reversed(peer.said):
                late_s = version.within_s * _lateness(viewer.salt, peer.salt, version.number)
                if peer is viewer or version.at + late_s <= now:
                    yield from version.holders
                    break


def _lateness(viewer: int, peer: int, number: int) -> float:
    """From 0 to 1, the same for the same news to the same viewer."""
    return ((viewer * 2654435761 + peer * 40503 + number * 97) & 0xFFFF) / 0xFFFF
