"""When a peer that nobody needs where it is should sit elsewhere, because the best ring gets clearly faster so. Pure.

Early joiners sat down before better ones came. All peers compute the same plan over everybody's memory, and go there
one at a time: each step keeps every layer, and the best ring at least as fast as it was, so that what runs stays. Where
the ring is good, peers whose layers many hold go where layers are on too few.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardp2p.scheduler.holders import Holder, counts, named
from shardp2p.scheduler.options import SPARED, options
from shardp2p.scheduler.placement import Placement
from shardp2p.scheduler.planning import PlanReport, plan
from shardp2p.scheduler.ring_search import Ring, cheapest_ring
from shardp2p.scheduler.settling import rank
from shardp2p.scheduler.target import seats_by_peer, turned, widened
from shardp2p.scheduler.topology import Machine, ModelShape, Topology
from shardp2p.vocabulary import PeerId

GAIN = 0.08
"""The share of a lap that the plan must save. Asked only once peers came or went: noise alone moves nobody."""

MOST_PEERS = 128
"""Beyond so many peers of a model nobody moves for speed: there, newcomers find good places among many."""

SLACK_S = 1e-9
"""What adding in another order changes in a lap."""


@dataclass(frozen=True, slots=True)
class Move:
    """Who should sit where."""

    peer_id: PeerId
    placement: Placement


def better_seat(
    shape: ModelShape, me: PeerId, coverage: Sequence[Holder], topology: Topology, *, gain: float = GAIN
) -> Placement | None:
    """Where `me`, which serves, should move now; None where it stays.

    `coverage` has its own layers in it, as much of the model as its memory holds. Nobody moves while another peer is
    on its way to a seat.
    """
    holders = [holder for holder in coverage if holder.is_coming]
    peers = {holder.peer_id for holder in holders}
    if len(peers) > MOST_PEERS or any(holder.state != "serving" for holder in holders):
        return None
    target = target_of(shape, holders, topology)
    move = next_move(shape, holders, topology, target, gain=gain) if target is not None else None
    return move.placement if move is not None and move.peer_id == me else None


def may_leave(shape: ModelShape, me: PeerId, coverage: Sequence[Holder]) -> bool:
    """Whether every layer that `me` serves stays served without it, also if others move at the same moment.

    A mover serves its old layers and claims new ones; of several movers the first in rank goes first.
    """
    claiming = {holder.peer_id for holder in coverage if holder.state in ("placing", "loading")}
    mine = rank(shape.digest, me)
    staying = [
        holder.layers
        for holder in coverage
        if holder.state == "serving"
        and holder.peer_id != me
        and (holder.peer_id not in claiming or rank(shape.digest, holder.peer_id) > mine)
    ]
    held = counts(shape.layers, staying)
    own = [holder.layers for holder in coverage if holder.peer_id == me and holder.state == "serving"]
    return all(held[layer] for part in own for layer in range(part.start, min(part.stop, shape.layers)))


def target_of(shape: ModelShape, holders: Sequence[Holder], topology: Topology) -> PlanReport | None:
    """The best ring, could everybody sit anywhere; None where layers are missing, which is for others to mend."""
    if not holders or min(counts(shape.layers, [holder.layers for holder in holders])) == 0:
        return None
    speed = {holder.peer_id: holder.layer_s for holder in holders}
    machines = [Machine(peer, len(seat), speed[peer]) for peer, seat in seats_by_peer(holders).items()]
    return plan(shape, Topology(machines, estimate=topology))


def next_move(
    shape: ModelShape, holders: Sequence[Holder], topology: Topology, target: PlanReport, *, gain: float = GAIN
) -> Move | None:
    """The one move to make now, the same on every peer that sees the same; None when all sit well enough."""
    swarm = _Swarm(shape, holders, topology)
    if target.lap_s < swarm.lap_s * (1 - gain):
        return swarm.towards(target)
    return swarm.spare(target)


class _Swarm:
    """Who sits where, in a swarm that lacks no layer."""

    def __init__(self, shape: ModelShape, holders: Sequence[Holder], topology: Topology) -> None:
        self._shape = shape
        self._topology = topology
        self._holders = sorted(holders, key=lambda one: (one.peer_id, one.layers))
        self._seats = seats_by_peer(holders)
        self._speed = {holder.peer_id: holder.layer_s for holder in holders}
        ring = self._ring(self._holders)
        assert ring is not None, "next_move was asked while layers are missing"
        self.lap_s = ring.lap_s
        self._running = {self._holders[leg.holder].peer_id for leg in ring.legs}

    def towards(self, target: PlanReport) -> Move | None:
        """The first in rank of the target's peers that can sit down as it says, and harms nobody by that."""
        needed = {stage.peer_id for stage in target.stages if self._is_needed(stage.peer_id)}
        arcs = turned(target.stages, self._shape.layers, self._seats, needed)
        for peer in self._ranked(arcs):
            held = self._held_without(peer)
            if arcs[peer] <= self._seats[peer] or min(held) == 0:
                continue
            ranges = widened(arcs[peer], len(self._seats[peer]), held, self._seats[peer])
            after = [*self._without(peer), *(Holder(peer, part, self._speed[peer]) for part in ranges)]
            if self._is_as_fast(after):
                share = 1 - target.lap_s / self.lap_s
                reason = f"nobody needs it where it is; the best ring gets {share:.0%} faster with it there"
                return Move(peer, Placement(ranges, "speed", (reason,)))
        return None

    def spare(self, target: PlanReport) -> Move | None:
        """The first in rank of the peers in no good ring that could help scarce layers by half of its memory."""
        held = counts(self._shape.layers, [holder.layers for holder in self._holders])
        if min(held) >= SPARED:
            return None
        busy = self._running | {stage.peer_id for stage in target.stages}
        for peer in self._ranked(self._seats.keys() - busy):
            without, seat = self._held_without(peer), self._seats[peer]
            if min(without) == 0:
                continue
            best = max(options(self._shape.layers, len(seat), without), key=lambda one: (one.relief, one.balance))
            if 2 * (_thin(held) - _thin(_with(without, best.layers))) >= len(seat):
                reason = f"many hold its layers, and few hold {named(best.ranges)}"
                return Move(peer, Placement(best.ranges, "redundancy", (reason,)))
        return None

    def _ranked(self, peers: Iterable[PeerId]) -> list[PeerId]:
        return sorted(peers, key=lambda peer: rank(self._shape.digest, peer))

    def _is_needed(self, peer: PeerId) -> bool:
        """Whether what runs would miss it where it is."""
        if min(self._held_without(peer)) == 0:
            return True
        return peer in self._running and not self._is_as_fast(self._without(peer))

    def _is_as_fast(self, holders: Sequence[Holder]) -> bool:
        ring = self._ring(holders)
        return ring is not None and ring.lap_s <= self.lap_s + SLACK_S

    def _without(self, peer: PeerId) -> list[Holder]:
        return [holder for holder in self._holders if holder.peer_id != peer]

    def _held_without(self, peer: PeerId) -> list[int]:
        return counts(self._shape.layers, [holder.layers for holder in self._without(peer)])

    def _ring(self, holders: Sequence[Holder]) -> Ring | None:
        return cheapest_ring(self._shape.layers, holders, self._topology.delay_s)


def _thin(held: Sequence[int]) -> int:
    """How many more holdings it takes until every layer has SPARED."""
    return sum(max(0, SPARED - count) for count in held)


def _with(held: Sequence[int], layers: set[int]) -> list[int]:
    return [count + (layer in layers) for layer, count in enumerate(held)]
