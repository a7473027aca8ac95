"""Whether a running ring gives way to a better one: only where it is better whatever the measurements err by. Pure."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise

from shardp2p.scheduler.plan import Stage
from shardp2p.scheduler.planning import Goal, PlanReport, plan, report
from shardp2p.scheduler.topology import ModelShape, Topology
from shardp2p.vocabulary import PeerId

ERROR = 0.2
"""The share by which a measured delay may be off."""

GAIN = 0.1
"""The share of the time per chunk that a new ring must save: moving layers costs minutes of loading."""

Hop = tuple[PeerId, PeerId]


def replan(running: tuple[Stage, ...], shape: ModelShape, topology: Topology, goal: Goal | None = None) -> PlanReport:
    """The running ring as it is now, or a new plan where that is worth a move.

    A new plan wins if it saves GAIN even when its own hops take as much longer, and the running ring's as much less, as
    ERROR allows; hops of both count as measured. So no error within ERROR moves a ring that is the best one. A
    running ring with a machine that is gone, or holds too few layers now, gives way at once.
    """
    goal = goal or Goal()
    new = plan(shape, topology, goal)
    if not _still_fits(running, shape, topology):
        return new
    now = report(shape, topology, goal, running)
    shared = _hops(now) & _hops(new)
    slow_s = _chunk_s(new, topology, shared, 1 / (1 - ERROR))
    fast_s = _chunk_s(now, topology, shared, 1 / (1 + ERROR))
    return new if slow_s < fast_s * (1 - GAIN) else now


def _still_fits(running: tuple[Stage, ...], shape: ModelShape, topology: Topology) -> bool:
    machines = [(topology.machine(stage.peer_id), len(stage.layers)) for stage in running]
    return sum(count for _, count in machines) == shape.layers and all(
        machine is not None and machine.fits_layers >= count for machine, count in machines
    )


def _hops(ring: PlanReport) -> set[Hop]:
    peers = (ring.driver, *(stage.peer_id for stage in ring.stages), ring.driver)
    return {(sender, receiver) for sender, receiver in pairwise(peers) if sender != receiver}


def _chunk_s(ring: PlanReport, topology: Topology, shared: Collection[Hop], factor: float) -> float:
    """The time per chunk if the hops that are not `shared` took `factor` times as long as measured."""
    own_s = sum(
        topology.delay_s(sender, receiver) for sender, receiver in _hops(ring) if (sender, receiver) not in shared
    )
    return max(ring.slowest_stage_s, (ring.lap_s + (factor - 1) * own_s) / ring.goal.in_flight)
