"""The cheapest replacement for a peer that died within a ring: who takes over its layers. Pure.

The other stages keep their layers, since they keep their caches. Only the lost layers are given away: to a hot spare,
to several peers, or in part to the neighbours in the ring that hold some of them too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shardp2p.errors import LocalProtocolError, PeerUnavailableError
from shardp2p.scheduler.holders import Holder, missing_ranges, named
from shardp2p.scheduler.plan import Plan, Stage
from shardp2p.scheduler.ring_search import cheapest_ring
from shardp2p.scheduler.topology import Topology
from shardp2p.vocabulary import LayerRange, PeerId

STRANGER_S = 0.05
"""What a peer that is new to the ring costs in the choice, per stage: a dial, an open and the warming of its links."""

NOBODY = PeerId("")
"""Stands for both neighbours of a gap: the search leaves one of them and comes back to the other."""


@dataclass(frozen=True, slots=True)
class Repair:
    """The mended plan, the stages in it that are new, and the reasons in words. The caches of the new are empty."""

    plan: Plan
    new_stages: tuple[Stage, ...]
    reasons: tuple[str, ...]


def repair(
    plan: Plan,
    dead: PeerId,
    holders: Sequence[Holder],
    topology: Topology,
    *,
    driver: PeerId,
    cache_rows: int = 0,
    avoid: Mapping[PeerId, str] | None = None,
) -> Repair:
    """`plan` without the peer `dead`. `holders` is the live coverage in any order, `avoid` what failed before.

    If `driver` is the dead peer itself, whoever takes the first layers will drive.

    Raises: PeerUnavailableError when some lost layers have no other holder with `cache_rows` free rows; says which.
    LocalProtocolError when the peer is no part of the plan.
    """
    lost = [number for number, stage in enumerate(plan.stages) if stage.peer_id == dead]
    if not lost:
        raise LocalProtocolError(f"a repair for {dead}, which is no stage of the plan")
    shunned = {dead, *(avoid or {})}
    usable = sorted(
        (
            holder
            for holder in holders
            if holder.peer_id not in shunned
            and holder.state == "serving"
            and holder.dtype == plan.dtype
            and holder.reachability != "unreachable"
            and holder.free_cache_rows >= cache_rows
            and holder.context_tokens >= plan.context_tokens
        ),
        key=lambda holder: (holder.peer_id, holder.layers),
    )
    stages: list[Stage] = []
    reasons: list[str] = []
    new: list[Stage] = []
    for number, stage in enumerate(plan.stages):
        if number not in lost:
            stages.append(stage)
            continue
        ends = _neighbours(plan, number, dead, driver)
        taking = _replacement(plan, stage, ends, usable, topology)
        reasons += _explain(stage, taking, plan)
        stages += taking
        new += taking
    return Repair(replace(plan, stages=tuple(stages)), tuple(new), tuple(reasons))


def _neighbours(plan: Plan, number: int, dead: PeerId, driver: PeerId) -> tuple[PeerId, PeerId] | None:
    """The living peers before and after a stage of the ring; None when there are none left."""
    driving = [driver] if driver != dead else []
    before = [*driving, *(stage.peer_id for stage in plan.stages[:number] if stage.peer_id != dead)]
    after = [*(stage.peer_id for stage in plan.stages[number + 1 :] if stage.peer_id != dead), *driving]
    around = [*after, *before]
    return ((before or around)[-1], (after or around)[0]) if around else None


def _replacement(
    plan: Plan, stage: Stage, neighbours: tuple[PeerId, PeerId] | None, usable: Sequence[Holder], topology: Topology
) -> list[Stage]:
    """The stages that run a lost stage's layers at the least cost between its neighbours in the ring."""
    lost, start = stage.layers, stage.layers.start
    known = {kept.peer_id for kept in plan.stages}
    parts = [(holder, _common(holder.layers, lost)) for holder in usable]
    candidates = [(holder, part) for holder, part in parts if part is not None]
    shifted = [replace(holder, layers=LayerRange(part.start - start, part.stop - start)) for holder, part in candidates]
    before, after = neighbours or (NOBODY, NOBODY)

    def cost_s(one: PeerId, other: PeerId) -> float:
        """Hops, and for each peer that enters the ring what a stranger costs, charged where it is entered."""
        sender = before if one == NOBODY else one
        receiver = after if other == NOBODY else other
        hop_s = topology.delay_s(sender, receiver) if NOBODY not in (sender, receiver) else 0.0
        return hop_s + (0.0 if other == NOBODY or other in known else STRANGER_S)

    ring = cheapest_ring(len(lost), shifted, cost_s, driver=NOBODY)
    if ring is None:
        missing = missing_ranges(lost.stop, [LayerRange(0, start)] * (start > 0) + [part for _, part in candidates])
        raise PeerUnavailableError(
            f"{stage.peer_id} is gone and nobody else can run the layers {named(missing)} of {plan.model} now; "
            f"start a peer that holds them",
            stage.peer_id,
        )
    return [
        Stage(
            candidates[leg.holder][0].peer_id,
            LayerRange(leg.layers.start + start, leg.layers.stop + start),
            candidates[leg.holder][0].addresses,
        )
        for leg in ring.legs
    ]


def _common(one: LayerRange, other: LayerRange) -> LayerRange | None:
    start, stop = max(one.start, other.start), min(one.stop, other.stop)
    return LayerRange(start, stop) if start < stop else None


def _explain(lost: Stage, taking: Sequence[Stage], plan: Plan) -> list[str]:
    known = {stage.peer_id for stage in plan.stages}
    return [
        f"{stage.peer_id} takes the layers {stage.layers} of {lost.peer_id}"
        + (": it is in the ring already and holds them too" if stage.peer_id in known else ": it is a spare")
        for stage in taking
    ]
