"""What `shardp2p plan` makes of a sight of the swarm: the ring for a request, the best one, and the reasons. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from shardp2p.cli.columns import clipped, short_peer
from shardp2p.cli.sight import Sight
from shardp2p.errors import OverloadedError, PeerUnavailableError, ShardError
from shardp2p.runtime.budget import HEADROOM_PERCENT
from shardp2p.scheduler.capacity import machines_of, shape_of
from shardp2p.scheduler.coverage import find_model, models_of
from shardp2p.scheduler.holders import holders_of
from shardp2p.scheduler.planning import Goal, PlanReport
from shardp2p.scheduler.planning import plan as plan_layers
from shardp2p.scheduler.planning_reasons import PeerReason, explain
from shardp2p.scheduler.request_route import RequestNeeds, Route, route_request
from shardp2p.scheduler.topology import ModelShape

MAX_ROWS: Final = 40
"""Peers of each list; --json has all."""


@dataclass(frozen=True, slots=True)
class Plans:
    """The ring for a request now, and the best ring if layers could move; or the error that says why there is none."""

    shape: ModelShape
    route: Route | ShardError
    best: PlanReport | ShardError
    reasons: tuple[PeerReason, ...]


def make_plans(sight: Sight, asked: str, goal: Goal, rows: int) -> Plans:
    """What the scheduler makes of a sight. Raises: PeerUnavailableError when nobody serves the model."""
    records = sight.live
    model = find_model(asked, models_of(records))
    shape = shape_of(model, records)
    staying = [record for record in records if record.state != "draining"]
    topology = sight.topology(machines_of(model, staying, HEADROOM_PERCENT / 100))
    leaving = [PeerReason(record.peer_id, None, "it is leaving") for record in records if record.state == "draining"]
    route: Route | ShardError
    best: PlanReport | ShardError
    try:
        route = route_request(shape, RequestNeeds(cache_rows=rows), holders_of(model.digest, records), topology)
    except (PeerUnavailableError, OverloadedError) as error:
        route = error
    try:
        best = plan_layers(shape, topology, goal)
    except PeerUnavailableError as error:
        return Plans(shape, route, error, ())
    return Plans(shape, route, best, (*explain(best, topology), *leaving))


def plans_object(plans: Plans) -> dict[str, Any]:
    """What `--json` says: both rings, each with a reason for every peer."""
    route, best = plans.route, plans.best
    return {
        "model": plans.shape.model,
        "digest": plans.shape.digest,
        "layers": plans.shape.layers,
        "route": None if isinstance(route, ShardError) else _route_object(route),
        "route_error": route.message if isinstance(route, ShardError) else None,
        "plan": None if isinstance(best, ShardError) else _best_object(best, plans.reasons),
        "plan_error": best.message if isinstance(best, ShardError) else None,
    }


def plan_lines(plans: Plans) -> Iterator[str]:
    """Both rings and the reasons, to read."""
    route, best, shape = plans.route, plans.best, plans.shape
    yield f"{clipped(shape.model, 64)}  {shape.layers} layers  {shape.digest[:12]}"
    yield ""
    if isinstance(route, ShardError):
        yield f"a request now: no ring: {route.message}"
    else:
        yield f"a request now: {_ring(len(route.plan.stages), route.lap_s)}, driven by {short_peer(route.driver)}"
        yield from _table(
            [(one.peer_id, str(one.held), one.is_used, one.reason) for one in sorted(route.choices, key=_used_first)]
        )
    yield ""
    if isinstance(best, ShardError):
        yield f"if layers could move: no ring: {best.message}"
        return
    pace = f", {1e3 * best.chunk_s:.1f} ms from chunk to chunk" if best.goal.in_flight > 1 else ""
    yield f"if layers could move: {_ring(len(best.stages), best.lap_s)}{pace}, driven by {short_peer(best.driver)}"
    yield from _table(
        [(one.peer_id, str(one.layers or "-"), one.layers is not None, one.reason) for one in plans.reasons]
    )


def _used_first(choice: Any) -> tuple[bool, int]:
    return not choice.is_used, choice.held.start


def _ring(stages: int, lap_s: float) -> str:
    return f"{stages} {'stage' if stages == 1 else 'stages'}, a lap takes {1e3 * lap_s:.1f} ms"


def _table(rows: list[tuple[str, str, bool, str]]) -> Iterator[str]:
    width = max((len(layers) for _, layers, _, _ in rows), default=0)
    for peer, layers, is_used, reason in rows[:MAX_ROWS]:
        yield f"  {'+' if is_used else '-'} {short_peer(peer)}  {layers:>{width}}  {clipped(reason, 240)}"
    if len(rows) > MAX_ROWS:
        yield f"  and {len(rows) - MAX_ROWS:,} more; --json has all"


def _route_object(route: Route) -> dict[str, Any]:
    return {
        "stages": [_stage_object(stage.peer_id, stage.layers) for stage in route.plan.stages],
        "driver": route.driver,
        "dtype": route.plan.dtype,
        "lap_ms": round(1e3 * route.lap_s, 3),
        "peers": [
            {
                "peer_id": one.peer_id,
                "layers": [one.held.start, one.held.stop],
                "is_used": one.is_used,
                "reason": one.reason,
            }
            for one in route.choices
        ],
    }


def _best_object(best: PlanReport, reasons: tuple[PeerReason, ...]) -> dict[str, Any]:
    return {
        "stages": [_stage_object(stage.peer_id, stage.layers) for stage in best.stages],
        "driver": best.driver,
        "in_flight": best.goal.in_flight,
        "lap_ms": round(1e3 * best.lap_s, 3),
        "slowest_stage_ms": round(1e3 * best.slowest_stage_s, 3),
        "chunk_ms": round(1e3 * best.chunk_s, 3),
        "peers": [
            {
                "peer_id": one.peer_id,
                "layers": None if one.layers is None else [one.layers.start, one.layers.stop],
                "is_used": one.layers is not None,
                "reason": one.reason,
            }
            for one in reasons
        ],
    }


def _stage_object(peer: str, layers: Any) -> dict[str, Any]:
    return {"peer_id": peer, "layers": [layers.start, layers.stop]}
