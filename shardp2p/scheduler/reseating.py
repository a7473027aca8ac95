"""When a peer that nobody needs where it is should sit elsewhere, because the best ring gets clearly faster so. Pure.

Early joiners sat down before better ones came. All peers compute the same plan over everybody's memory, and go there
one at a time: each step keeps every layer, and the best ring as fast as it was, so that what runs stays; only where no
such way helps, and much is to be gained, is it slower until the last has moved. Where the ring is good, peers whose
layers many hold go where layers are on too few.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shardp2p.scheduler.holders import Holder, counts, named
from shardp2p.scheduler.options import SPARED, allowed
from shardp2p.scheduler.placement import Placement
from shardp2p.scheduler.planning import PlanReport, plan
from shardp2p.scheduler.reseating_path import Path, paths
from shardp2p.scheduler.reseating_spare import Step, mend
from shardp2p.scheduler.ring_search import Ring, cheapest_ring
from shardp2p.scheduler.settling import rank
from shardp2p.scheduler.target import Ranges, ranges_by_peer, seats_by_peer
from shardp2p.scheduler.topology import Machine, ModelShape, Topology
from shardp2p.vocabulary import PeerId

GAIN = 0.08
"""The share of a lap that the plan must save. Asked only once peers came or went: noise alone moves nobody."""

MOST_PEERS = 128
"""Beyond so many peers of a model nobody moves for speed: there, newcomers find good places among many."""

LARGE_GAIN = 0.12
"""The share of a lap for which the best ring may be slower until the last of a few peers has moved."""

SLOWER = 2.0
"""By at most so much, while one of them loads: until then its old layers are served by others alone."""

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
    move = next_move(shape, holders, topology, target, gain=gain, may_slow=True) if target is not None else None
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


def is_spare(shape: ModelShape, me: PeerId, coverage: Sequence[Holder], topology: Topology) -> bool:
    """Whether the best ring is as fast without `me`."""
    serving = [holder for holder in coverage if holder.state == "serving"]
    ring = cheapest_ring(shape.layers, serving, topology.delay_s)
    if ring is None or me not in {serving[leg.holder].peer_id for leg in ring.legs}:
        return True
    without = cheapest_ring(shape.layers, [one for one in serving if one.peer_id != me], topology.delay_s)
    return without is not None and without.lap_s <= ring.lap_s + SLACK_S


def target_of(shape: ModelShape, holders: Sequence[Holder], topology: Topology) -> PlanReport | None:
    """The best ring, could everybody sit anywhere; None where layers are missing, which is for others to mend."""
    if not holders or min(counts(shape.layers, [holder.layers for holder in holders])) == 0:
        return None
    speed = {holder.peer_id: holder.layer_s for holder in holders}
    machines = [Machine(peer, len(seat), speed[peer]) for peer, seat in seats_by_peer(holders).items()]
    return plan(shape, Topology(machines, estimate=topology))


def next_move(
    shape: ModelShape,
    holders: Sequence[Holder],
    topology: Topology,
    target: PlanReport,
    *,
    gain: float = GAIN,
    may_slow: bool = False,
) -> Move | None:
    """The one move to make now, the same on every peer that sees the same; None when all sit well enough.

    Every layer stays held. The best ring stays as fast as it was; unless it `may_slow` for a while, for a large gain.
    """
    swarm = _Swarm(shape, holders, topology)
    move = swarm.towards(target, gain, may_slow=may_slow) if target.lap_s < swarm.lap_s * (1 - gain) else None
    return move or swarm.spare(target)


class _Swarm:
    """Who sits where, in a swarm that lacks no layer."""

    def __init__(self, shape: ModelShape, holders: Iterable[Holder], topology: Topology) -> None:
        self._shape = shape
        self._topology = topology
        self._holders = sorted(holders, key=lambda one: (one.peer_id, one.layers))
        self._ranges = ranges_by_peer(self._holders)
        self._speed = {holder.peer_id: holder.layer_s for holder in self._holders}
        self._held = counts(shape.layers, [holder.layers for holder in self._holders])
        self._spared = min(SPARED, sum(self._held) // shape.layers)
        ring = self._ring(self._holders)
        assert ring is not None, "next_move was asked while layers are missing"
        self.lap_s = ring.lap_s
        self._running = {self._holders[leg.holder].peer_id for leg in ring.legs}

    def towards(self, target: PlanReport, gain: float, *, may_slow: bool) -> Move | None:
        """The first step of the shortest way to the target, or as near to it as clearly shortens the lap.

        Only for a large gain the best ring may be slower on the way. Of such ways, too, the shortest is taken: each
        step makes it shorter, so that nobody moves back and forth.
        """
        is_large = may_slow and target.lap_s < self.lap_s * (1 - LARGE_GAIN)
        slowing: Path | None = None
        for path in paths(self._shape, target.stages, self._ranges, self._running):
            if slowing is not None and (path.missed or len(path.steps) > len(slowing.steps)):
                break
            lap_s = self._lap_s(path.seats) if path.missed else target.lap_s
            if not path.steps or lap_s >= self.lap_s * (1 - gain) or not self._is_mended(path.seats):
                continue
            slowest_s = self._slowest_s(path)
            if slowest_s <= self.lap_s + SLACK_S:
                return self._first(path, lap_s)
            if slowing is None and is_large and not path.missed and slowest_s <= self.lap_s * SLOWER:
                slowing = path
        return self._first(slowing, target.lap_s) if slowing is not None else None

    def _first(self, path: Path, lap_s: float) -> Move:
        step = path.steps[0]
        share = 1 - lap_s / self.lap_s
        reason = f"nobody needs it where it is; once all sit as planned the best ring is {share:.0%} faster"
        return Move(step.peer_id, Placement(step.ranges, "speed", (reason,)))

    def _slowest_s(self, path: Path) -> float:
        """The longest lap on the way, also while somebody loads its new layers and has given up the old ones.

        As long as no peer of today's ring moves, that one is there.
        """
        now, slowest_s, is_touched = dict(self._ranges), self.lap_s, False
        for step in path.steps:
            is_touched |= step.peer_id in self._running
            if is_touched:
                slowest_s = max(slowest_s, self._lap_s({**now, step.peer_id: ()}))
            now[step.peer_id] = step.ranges
        return slowest_s

    def spare(self, target: PlanReport) -> Move | None:
        """How a peer brings layers to as many holders as the memory allows, while the best ring stays as fast.

        Up to SPARED any help counts. Beyond, it must be worth half of the peer's memory, and no peer of a good ring
        moves.
        """
        step = self._mend()
        if step is None:
            busy = self._running | {stage.peer_id for stage in target.stages}
            idle = self._ranked(self._ranges.keys() - busy)
            step = mend(self._shape.layers, self._ranges, idle, allowed(self._held), least=0.5)
        if step is None:
            return None
        reason = f"many hold its layers, and few hold {named(step.ranges)}"
        return Move(step.peer_id, Placement(step.ranges, "redundancy", (reason,)))

    def _mend(self) -> Step | None:
        """The next step until SPARED hold every layer; peers of the ring move last, where others replace them in it."""
        idle = self._ranked(self._ranges.keys() - self._running)
        order = [*idle, *self._ranked(self._running)]
        return mend(self._shape.layers, self._ranges, order, self._spared, is_allowed=self._is_as_fast)

    def _is_mended(self, seats: Mapping[PeerId, Ranges]) -> bool:
        """Whether SPARED hold every layer in the end, when all are where `seats` has them."""
        for _ in range(2 * len(seats)):
            if min(counts(self._shape.layers, [part for parts in seats.values() for part in parts])) >= self._spared:
                return True
            step = self._with(seats)._mend()
            if step is None:
                return False
            seats = {**seats, step.peer_id: step.ranges}
        return False

    def _is_as_fast(self, step: Step) -> bool:
        if step.peer_id not in self._running:
            return True
        return self._lap_s({**self._ranges, step.peer_id: ()}) <= self.lap_s + SLACK_S

    def _with(self, seats: Mapping[PeerId, Ranges]) -> _Swarm:
        return _Swarm(self._shape, self._sitting(seats), self._topology)

    def _sitting(self, seats: Mapping[PeerId, Ranges]) -> list[Holder]:
        return [Holder(peer, part, self._speed[peer]) for peer, parts in seats.items() for part in parts]

    def _ranked(self, peers: Iterable[PeerId]) -> list[PeerId]:
        return sorted(peers, key=lambda peer: rank(self._shape.digest, peer))

    def _ring(self, holders: Sequence[Holder]) -> Ring | None:
        return cheapest_ring(self._shape.layers, holders, self._topology.delay_s)

    def _lap_s(self, seats: Mapping[PeerId, Ranges]) -> float:
        ring = self._ring(self._sitting(seats))
        return ring.lap_s if ring is not None else float("inf")
