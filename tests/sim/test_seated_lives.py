"""Whole lives of peers that seat themselves: life machine, seating and scheduler together, without a socket or a clock.

News take their time, loading takes minutes, and nobody sees more than the records that reached it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random

import pytest

from shardp2p.lab.placement.worlds import make_world
from shardp2p.runtime.budget import Budget
from shardp2p.scheduler.holders import Holder, counts
from shardp2p.scheduler.occasion import FRESH_S, MOST_MOVES, QUIET_S
from shardp2p.scheduler.reseating import SLOWER, next_move, target_of
from shardp2p.scheduler.ring_search import cheapest_ring
from shardp2p.scheduler.topology import Machine, ModelShape, Topology
from shardp2p.seating import Offered, Seating
from shardp2p.swarm.life import SETTLE_S, Choose, Life, Load, Seat, Seats
from shardp2p.vocabulary import LayerRange, ModelId, PeerId, SwarmId
from shardp2p.weights.footprint import Footprint
from shardp2p.weights.store import StoredModel
from shardp2p.wire.records import CoverageRecord, HeldLayers, NodeState

MODEL, DIGEST = ModelId("tiny"), "ab" * 32
LAYER_BYTES, ROWS = 1000, 100
NEWS_S = 1.0


@dataclass(frozen=True)
class FakeManifest:
    """As much of a manifest as seating looks at."""

    layers: int
    digest: str = DIGEST
    hidden_size: int = 64


def offered(layers: int, end_layers: float) -> Offered:
    """A model whose embedding takes as much as so many layers, at either end."""
    end_bytes = int(end_layers * (LAYER_BYTES + ROWS))
    footprint = Footprint(
        MODEL, DIGEST, "float32", (LAYER_BYTES,) * layers, (1,) * layers, end_bytes, end_bytes, end_bytes
    )
    return Offered(StoredModel(MODEL, Path("nowhere"), FakeManifest(layers)), footprint)  # type: ignore[arg-type]


@dataclass
class Peer:
    """One peer, what it serves and what it has heard."""

    machine: Machine
    life: Life
    seating: Seating
    kept: Seats = ()
    said: int = 0
    last: tuple[NodeState, Seats, Seats] | None = None
    due_at: float = -1.0
    moves: int = 0
    seen: dict[PeerId, CoverageRecord] = field(default_factory=dict)


class Village:
    """Peers with memory for `machines[n].fits_layers` inner layers each, which start within `spread_s`."""

    def __init__(
        self,
        machines: Sequence[Machine],
        topology: Topology,
        layers: int,
        *,
        seed: int,
        end_layers: float = 0.0,
        load_s: float = 5.0,
        spread_s: float = 1.0,
    ) -> None:
        self.random, self.topology, self.layers, self.load_s = Random(seed), topology, layers, load_s
        self.now, self.order = 0.0, 0
        self.agenda: list[tuple[float, int, Callable[[], None]]] = []
        self.peers: dict[PeerId, Peer] = {}
        self.offered = offered(layers, end_layers)
        self.served: list[tuple[float, int, float]] = []
        for number, machine in enumerate(machines):
            self.at((number if spread_s > 60 else self.random.random()) * spread_s, partial(self.start, machine))

    @property
    def shape(self) -> ModelShape:
        return self.offered.shape

    def at(self, when: float, action: Callable[[], None]) -> None:
        self.order += 1
        heapq.heappush(self.agenda, (when, self.order, action))

    def start(self, machine: Machine) -> None:
        memory = int(machine.fits_layers * (LAYER_BYTES + ROWS) / 0.8) + 2
        seating = Seating(machine.peer_id, (self.offered,), Budget(memory, ROWS))
        peer = Peer(machine, Life(self.now, is_founder=not self.peers), seating)
        for other in self.peers.values():
            peer.seen[other.machine.peer_id] = self.record(other)
        self.peers[machine.peer_id] = peer
        peer.life.connected(self.now)
        self.pump(peer)

    def run(self, until: float) -> None:
        while self.agenda and self.agenda[0][0] <= until:
            self.now, _, action = heapq.heappop(self.agenda)
            action()

    def pump(self, peer: Peer) -> None:
        """What the keeper does."""
        peer.life.tick(self.now)
        while (command := peer.life.next_command()) is not None:
            if isinstance(command, Choose):
                self.choose(peer, command)
            elif isinstance(command, Load):
                self.load(peer, command.seats)
        self.say(peer)
        due_at = max(self.now, peer.life.due_at)
        if due_at < float("inf") and due_at != peer.due_at:
            peer.due_at = due_at
            self.at(due_at, lambda: self.pump(peer))

    def choose(self, peer: Peer, question: Choose) -> None:
        live = [*peer.seen.values(), self.record(peer)]
        answer = peer.seating.answer(question, peer.life.seats, peer.kept, live, self.topology, self.now)
        peer.life.chosen(*answer, self.now)

    def load(self, peer: Peer, seats: Seats) -> None:
        if peer.kept and set(seats) != set(peer.kept):
            peer.moves += 1
        peer.kept = tuple(seat for seat in peer.kept if seat in seats)
        self.note()

        def loaded() -> None:
            peer.kept = tuple(sorted(seats))
            peer.life.loaded(self.now)
            self.note()
            self.pump(peer)

        self.at(self.now + self.load_s * self.random.uniform(0.5, 1.5), loaded)

    def say(self, peer: Peer) -> None:
        news = (self.published(peer), peer.life.seats, peer.kept)
        if news != peer.last:
            peer.last, peer.said = news, peer.said + 1
            record = self.record(peer)
            for other in self.peers.values():
                if other is not peer:
                    self.at(self.now + self.random.uniform(0.05, NEWS_S), partial(self.hear, other, record))

    def hear(self, peer: Peer, record: CoverageRecord) -> None:
        known = peer.seen.get(record.peer_id)
        if known is None or record.sequence > known.sequence:
            peer.seen[record.peer_id] = record

    def published(self, peer: Peer) -> NodeState:
        return "draining" if peer.life.state == "left" else peer.life.state

    def record(self, peer: Peer) -> CoverageRecord:
        seats = [(seat, seat in peer.kept) for seat in sorted({*peer.kept, *peer.life.seats})]
        held = tuple(
            HeldLayers(
                MODEL, DIGEST, self.layers, seat.layers, "serving" if is_kept else "loading", "float32", 2048,
                LAYER_BYTES, ROWS, ROWS, *(2 * [peer.machine.layer_s if is_kept else 0.0]),
            )
            for seat, is_kept in seats
        )  # fmt: skip
        name = peer.machine.peer_id
        return CoverageRecord(SwarmId("s"), name, 1 + peer.said, 0.0, 10.0, self.published(peer), held=held)

    def holders(self) -> list[Holder]:
        return [
            Holder(peer.machine.peer_id, seat.layers, peer.machine.layer_s)
            for peer in self.peers.values()
            for seat in peer.kept
        ]

    def counts(self) -> list[int]:
        return counts(self.layers, [holder.layers for holder in self.holders()])

    def note(self) -> None:
        ring = cheapest_ring(self.layers, self.holders(), self.topology.delay_s)
        self.served.append((self.now, min(self.counts()), ring.lap_s if ring is not None else float("inf")))


EIGHT = (18.1, 16.0, 13.3, 10.7, 18.1, 11.7, 13.9, 18.7)
"""Memory of eight peers in layers, for a model whose embedding takes 7.2 of them at each end."""


@pytest.mark.parametrize("seed", range(4))
def test_peers_that_start_at_once_hold_every_layer_as_often_as_their_memory_allows(seed: int) -> None:
    rng = Random(seed)
    machines = [Machine(PeerId(f"{rng.getrandbits(60):x}"), int(layers), 0.01) for layers in EIGHT]
    village = Village(machines, Topology([]), 30, seed=seed, end_layers=7.2)
    village.run(240.0)
    assert {peer.life.state for peer in village.peers.values()} == {"serving"}
    held = village.counts()
    assert min(held) == sum(held) // 30 == 2


@pytest.mark.parametrize("seed", [0, 3])
def test_moves_that_belong_together_are_all_made_and_no_layer_is_lost(seed: int) -> None:
    world = make_world(9, f"lives/{seed}", is_pipelined=False)
    machines = [machine for machine in world.topology.machines if machine.fits_layers]
    village = Village(machines, world.topology, world.shape.layers, seed=seed, load_s=1.7 * FRESH_S, spread_s=700.0)
    village.run(700.0 * len(machines) + 50 * FRESH_S)
    assert sum(peer.moves for peer in village.peers.values()) > 1
    assert all(peer.moves <= MOST_MOVES * len(machines) for peer in village.peers.values())
    whole = next(at for at, (_, fewest, _) in enumerate(village.served) if fewest)
    best_s = float("inf")
    for _, fewest, lap_s in village.served[whole:]:
        assert fewest > 0
        best_s = min(best_s, lap_s)
        assert lap_s <= SLOWER * best_s * 1.001
    holders = village.holders()
    target = target_of(village.shape, holders, village.topology)
    assert target is not None
    assert next_move(village.shape, holders, village.topology, target, may_slow=True) is None
    assert village.served[-1][2] <= 1.15 * target.lap_s


BOUND = {
    "a": (18.1, "14:24"), "b": (16.0, "6:14"), "c": (13.3, "0:6"), "d": (10.7, "15:18 28:29"),
    "e": (18.1, "18:28"), "f": (11.7, "11:15"), "g": (13.9, "24:30"), "h": (18.7, "0:11"),
}  # fmt: skip
"""Peers that sit so that the last layer is on one alone, and none of them can take it without leaving another thin."""


def test_where_nobody_can_help_alone_one_with_room_takes_more_and_sets_another_free() -> None:
    village = Village([], Topology([]), 30, seed=0, end_layers=7.2)
    for name, (fits_layers, held) in BOUND.items():
        village.start(Machine(PeerId(name), fits_layers, 0.01))
        peer = village.peers[PeerId(name)]
        peer.kept = tuple(Seat(MODEL, DIGEST, LayerRange.parse(layers)) for layers in held.split())
        peer.life = serving(peer.kept)
    assert min(village.counts()) == 1

    def look(name: str, at: float) -> Seats:
        peer, live = village.peers[PeerId(name)], [village.record(peer) for peer in village.peers.values()]
        seats, _ = peer.seating.answer(Choose(is_review=True), peer.kept, peer.kept, live, village.topology, at)
        return seats

    one, other = (village.peers[PeerId(name)] for name in "ab")
    assert look("a", 0.0) == one.kept
    assert look("a", QUIET_S - 1.0) == one.kept
    assert look("b", QUIET_S - 1.0) == other.kept
    more = look("a", QUIET_S)
    assert {*one.kept} < {*more}
    live = [replace(village.record(peer), state="loading") for peer in (other,)]
    assert one.seating.answer(Choose(), more, one.kept, live, village.topology, QUIET_S)[0] == one.kept
    one.kept = more
    other.kept = look("b", QUIET_S + 5.0)
    assert min(village.counts()) == sum(village.counts()) // 30 == 2


def serving(seats: Seats) -> Life:
    """That of a peer which serves these seats."""
    life = Life(0.0, is_founder=True)
    life.tick(0.0)
    life.chosen(seats, "", 0.0)
    life.tick(SETTLE_S)
    life.chosen(seats, "", SETTLE_S)
    life.loaded(SETTLE_S)
    return life
