"""Why a plan uses a peer, or does not, in words. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from shardp2p.scheduler.planning import PlanReport
from shardp2p.scheduler.planning_fill import Candidates
from shardp2p.scheduler.topology import Machine, Topology
from shardp2p.vocabulary import LayerRange, PeerId


@dataclass(frozen=True, slots=True)
class PeerReason:
    """Why a peer is used, and for which layers, or why it is not."""

    peer_id: PeerId
    layers: LayerRange | None
    reason: str


def explain(plan: PlanReport, topology: Topology) -> tuple[PeerReason, ...]:
    """A reason for every machine: those of the ring in its order, then the others, the nearest to being used first."""
    used = {stage.peer_id: stage for stage in plan.stages}
    reasons = [
        PeerReason(stage.peer_id, stage.layers, _why_used(plan, topology, number))
        for number, stage in enumerate(plan.stages, 1)
    ]
    unused = [_why_not(plan, topology, machine) for machine in topology.machines if machine.peer_id not in used]
    return (*reasons, *(reason for _, reason in sorted(unused, key=lambda one: (one[0], one[1].peer_id))))


def _why_used(plan: PlanReport, topology: Topology, number: int) -> str:
    stage = plan.stages[number - 1]
    machine = topology.machine(stage.peer_id)
    fits = machine.fits_layers if machine is not None else len(stage.layers)
    before = plan.stages[number - 2].peer_id if number > 1 else plan.driver
    computes_ms, hop_ms = 1e3 * topology.stage_s(stage), 1e3 * topology.delay_s(before, stage.peer_id)
    way = "drives, so no hop to it" if before == stage.peer_id else f"{hop_ms:.1f} ms from the one before"
    limit = "its slowest stage" if topology.stage_s(stage) == plan.slowest_stage_s and plan.goal.in_flight > 1 else ""
    return (
        f"stage {number} of {len(plan.stages)}: {len(stage.layers)} of the {fits} layers it has room for, "
        f"{computes_ms:.1f} ms of computing, {way}{', ' + limit if limit else ''}"
    )


def _why_not(plan: PlanReport, topology: Topology, machine: Machine) -> tuple[float, PeerReason]:
    """What the ring would cost with it at its best place, and so the reason."""
    if machine.fits_layers == 0:
        reason = f"no room for one layer of {plan.shape.layer_bytes / 2**20:.0f} MiB"
        return float("inf"), PeerReason(machine.peer_id, None, reason)
    with_it_s, added_s = _with(plan, topology, machine)
    slower = with_it_s / plan.chunk_s - 1
    reason = (
        f"at its best place it would {'add' if added_s >= 0 else 'save'} {1e3 * abs(added_s):.1f} ms of hops and make "
        f"a chunk {slower:.1%} slower"
        if slower >= 0.0005
        else "it would make the ring no faster, and one stage longer"
    )
    if with_it_s == float("inf"):
        reason = "every layer has its machine already, none is left for it"
    return with_it_s, PeerReason(machine.peer_id, None, reason)


def _with(plan: PlanReport, topology: Topology, machine: Machine) -> tuple[float, float]:
    """Time per chunk with the machine at its cheapest place, filled anew; and what its hops add there."""
    peers = (plan.driver, *(stage.peer_id for stage in plan.stages), plan.driver)
    delay_s = topology.delay_s
    hops = list(pairwise(peers)) if plan.goal.driver is not None or len(peers) > 3 else [(plan.driver, plan.driver)]
    added_s = min(
        delay_s(one, machine.peer_id) + delay_s(machine.peer_id, other) - delay_s(one, other) for one, other in hops
    )
    known = [topology.machine(stage.peer_id) for stage in plan.stages]
    machines = sorted([machine, *(one for one in known if one is not None)], key=lambda one: one.layer_s)
    candidates = Candidates(
        layers=plan.shape.layers,
        in_flight=plan.goal.in_flight,
        capacities=[one.fits_layers for one in machines],
        layer_s=[one.layer_s for one in machines],
        delays=[],
    )
    hops_s = sum(delay_s(one, other) for one, other in pairwise(peers)) + added_s
    return candidates.chunk_s(range(len(machines)), hops_s), added_s
