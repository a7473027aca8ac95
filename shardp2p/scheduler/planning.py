"""Where a model's layers should sit: the machines, their order, their layers and the driver's place. Pure.

Minimises the time per chunk (`Topology.chunk_s`): with one chunk in flight the lap, with several the slower of the
slowest stage and a share of the lap. The same input gives the same plan on every peer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from shardp2p.errors import LocalProtocolError, PeerUnavailableError
from shardp2p.scheduler.plan import Stage
from shardp2p.scheduler.planning_exact import best_tour
from shardp2p.scheduler.planning_fill import Candidates
from shardp2p.scheduler.planning_improve import improve
from shardp2p.scheduler.planning_search import search, shake
from shardp2p.scheduler.planning_shortlist import Field, Ring
from shardp2p.scheduler.topology import ModelShape, Topology
from shardp2p.vocabulary import LayerRange, PeerId

EXACT = 8
"""Machines up to which the best ring is computed by dynamic programming, in milliseconds."""

SEARCHED = 128
"""Machines up to which one search sees all of them."""

REVISED = 3
"""Rings of a large swarm that are searched around once more."""

AROUND = 60
"""Machines beside a ring's own that such a search sees."""

KICKS_OF_MANY = 20
"""As `planning_search.KICKS`, where the time goes into looking around."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Goal:
    """What a plan is for: `in_flight` chunks at a time, each yielding `accepted` tokens on average.

    `driver` pins the driver to a peer; without it, it sits with the first layers and costs no hop.
    """

    in_flight: int = 1
    accepted: float = 1.0
    driver: PeerId | None = None


@dataclass(frozen=True, slots=True)
class PlanReport:
    """A ring for a model and what it costs; planning_reasons.explain says why."""

    shape: ModelShape
    goal: Goal
    stages: tuple[Stage, ...]
    driver: PeerId
    lap_s: float
    slowest_stage_s: float
    chunk_s: float

    @property
    def rate(self) -> float:
        """Tokens per second of one request, if each chunk yields `goal.accepted` tokens."""
        return self.goal.accepted / self.chunk_s


def plan(shape: ModelShape, topology: Topology, goal: Goal | None = None) -> PlanReport:
    """The best ring found: optimal up to EXACT machines; beyond, what a local search gives.

    Raises: PeerUnavailableError when all machines together hold
    too few layers; says how many, and how many bytes are missing.
    """
    goal = goal or Goal()
    usable = [machine for machine in topology.machines if machine.fits_layers > 0]
    room = sum(min(machine.fits_layers, shape.layers) for machine in usable)
    if room < shape.layers:
        missing = shape.layers - room
        raise PeerUnavailableError(
            f"{shape.model} has {shape.layers} layers and the {len(topology.machines)} peers have room for {room}: add "
            f"peers with room for {missing} more, {missing * shape.layer_bytes / 2**30:.1f} GiB, or raise --memory"
        )
    field = Field(topology, usable, shape.layers, goal.in_flight, goal.driver)
    ring = _plan_few(field) if len(usable) <= SEARCHED else _plan_many(field)
    return report(shape, topology, goal, _stages(field, ring))


def report(shape: ModelShape, topology: Topology, goal: Goal, stages: Sequence[Stage]) -> PlanReport:
    """What a ring of these stages costs now, whoever made it."""
    driver = goal.driver or stages[0].peer_id
    return PlanReport(
        shape=shape,
        goal=goal,
        stages=tuple(stages),
        driver=driver,
        lap_s=topology.lap_s(stages, driver),
        slowest_stage_s=topology.slowest_stage_s(stages),
        chunk_s=topology.chunk_s(stages, driver, goal.in_flight),
    )


def _plan_few(field: Field) -> Ring:
    nodes = range(len(field.machines))
    candidates = field.candidates(nodes)
    if len(nodes) <= EXACT:
        return field.ring(nodes, candidates, _require(best_tour(candidates)))
    return field.ring(nodes, candidates, _require(search(candidates, nodes)))


def _plan_many(field: Field) -> Ring:
    """Searches each neighbourhood, then around the best rings once more, among what would lengthen those least."""
    found: list[tuple[float, Ring]] = []
    for near in field.neighbourhoods():
        nodes = sorted(near)
        candidates = field.candidates(nodes)
        local = search(candidates, [nodes.index(near[0])], thorough=False)
        if local is not None:
            found.append((local[0], field.ring(nodes, candidates, local)))
    revised: list[tuple[float, list[int], Candidates, list[int]]] = []
    for _, ring in sorted(found)[:REVISED]:
        nodes = field.around([node for node, _ in ring], AROUND)
        candidates = field.candidates(nodes)
        tour = [nodes.index(node) for node, _ in ring]
        tour = tour if candidates.depot is None else [candidates.depot, *tour]
        chunk_s = candidates.chunk_s(candidates.members(tour), candidates.hops_s(tour))
        revised.append((*improve(candidates, (chunk_s, tour)), candidates, nodes))
    chunk_s, tour, candidates, nodes = _require(min(revised, key=lambda one: one[0], default=None))
    return field.ring(nodes, candidates, shake(candidates, (chunk_s, tour), KICKS_OF_MANY))


def _require(found: T | None) -> T:
    """What a search found: with enough room in all there is a ring, in the roomiest machines at worst."""
    if found is None:
        raise LocalProtocolError("no ring in machines that have room for the model")
    return found


def _stages(field: Field, ring: Ring) -> tuple[Stage, ...]:
    stages, at = [], 0
    for node, count in ring:
        stages.append(Stage(field.machines[node].peer_id, LayerRange(at, at + count)))
        at += count
    return tuple(stages)
