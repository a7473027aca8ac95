"""Plans against the optimum, a bound, joiners that place themselves and what others do, on generated worlds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import mean, median, quantiles
from typing import Any

from shardp2p.lab.placement.baselines import BASELINES
from shardp2p.lab.placement.bounds import lower_bound_s
from shardp2p.lab.placement.oracles import enumerate_chunk_s
from shardp2p.lab.placement.worlds import World, make_world, with_noise
from shardp2p.scheduler.holders import Holder, missing_ranges
from shardp2p.scheduler.placement import place
from shardp2p.scheduler.planning import Goal, plan
from shardp2p.scheduler.planning_exact import best_tour
from shardp2p.scheduler.planning_fill import Candidates
from shardp2p.scheduler.planning_keep import replan
from shardp2p.scheduler.planning_shortlist import Field
from shardp2p.scheduler.reseating import next_move, target_of
from shardp2p.scheduler.ring_search import cheapest_ring
from shardp2p.scheduler.topology import Machine
from shardp2p.vocabulary import LayerRange

ENUMERATED = (3, 7)
HELD_KARP = (8, 12)
BOUNDED = 100
SHARES = (0.62, 0.32)
"""Of the worlds, those with few enough machines to enumerate and for Held and Karp; the others have BOUNDED."""

JOINERS = (8, 40)
"""Machines of the worlds in which joiners place themselves; one in ten of the worlds besides."""

NOISE = 0.2
NOISY_ROUNDS = 5

MOVES_AT_MOST = 2
"""Moves of each peer after a newcomer: a move helps the ring or scarce layers, so that they end long before."""

JOINERS_AT_MOST = 1.15
"""What joiners that place themselves may make of the central plan's lap."""

Report = Callable[[int, int], None]


@dataclass
class Ratios:
    """What was found, as ratios to the best known: 1 is the optimum."""

    oracle: list[float] = field(default_factory=list)
    held_karp: list[float] = field(default_factory=list)
    hundred: list[float] = field(default_factory=list)
    joiners: list[float] = field(default_factory=list)
    moves_per_join: list[float] = field(default_factory=list)
    baselines: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in BASELINES})
    moves: int = 0

    def report(self) -> dict[str, Any]:
        """The figures of the bench, without times."""
        return {
            "topologies": len(self.oracle) + len(self.held_karp) + len(self.hundred),
            "oracle_ratio_max": max(self.oracle, default=None),
            "held_karp_ratio_max": max(self.held_karp, default=None),
            "hundred_ratio_max": max(self.hundred, default=None),
            "joiners_ratio_p50": median(self.joiners) if self.joiners else None,
            "joiners_ratio_max": max(self.joiners, default=None),
            "joiners_ratio_p99": quantiles(self.joiners, n=100, method="inclusive")[98] if self.joiners[1:] else None,
            "joiners_above_share": mean(ratio > JOINERS_AT_MOST for ratio in self.joiners) if self.joiners else None,
            "joiners_moves_per_join": mean(self.moves_per_join) if self.moves_per_join else None,
            "moves_under_noise": self.moves,
            "baselines": {name: median(ratios) for name, ratios in self.baselines.items() if ratios},
        }


def compare(topologies: int, seed: int, progress: Report = lambda done, of: None) -> Ratios:
    """Plan `topologies` worlds and compare each. Raises: ConfigError when scipy is not installed."""
    ratios = Ratios()
    for number, world in enumerate(worlds(topologies, seed), 1):
        _compare_one(world, ratios)
        progress(number, topologies)
    for number in range(max(1, topologies // 10)):
        size = Random(f"{seed}/joiners/{number}").randint(*JOINERS)
        world = make_world(size, f"{seed}/joiners/{number}", is_pipelined=False)
        joined = join_one_by_one(world)
        ratios.joiners.append(_joiners_ratio(world, joined))
        ratios.moves_per_join.append(joined.moves / size)
        ratios.moves += _moves(make_world(size, f"{seed}/noise/{number}", is_pipelined=number % 2 == 1))
    return ratios


def worlds(topologies: int, seed: int) -> Iterator[World]:
    """Worlds of all three sizes; serial and pipelined by turns, one in five with a pinned driver."""
    few, some = round(topologies * SHARES[0]), round(topologies * SHARES[1])
    for number in range(topologies):
        sizes = ENUMERATED if number < few else HELD_KARP if number < few + some else (BOUNDED, BOUNDED)
        size = Random(f"{seed}/{number}").randint(*sizes)
        yield make_world(size, f"{seed}/{number}", is_pipelined=number % 2 == 1, is_pinned=number % 5 == 0)


def _compare_one(world: World, ratios: Ratios) -> None:
    made = plan(world.shape, world.topology, world.goal)
    size = len(world.topology.machines)
    if size <= ENUMERATED[1]:
        ratios.oracle.append(made.chunk_s / enumerate_chunk_s(world))
    elif size <= HELD_KARP[1]:
        best = best_tour(candidates_of(world))
        ratios.held_karp.append(made.chunk_s / best[0] if best is not None else float("inf"))
    else:
        ratios.hundred.append(made.chunk_s / lower_bound_s(candidates_of(world), made.chunk_s))
    for name, baseline in BASELINES.items():
        stages = baseline(world)
        if stages:
            driver = world.goal.driver or stages[0].peer_id
            theirs_s = world.topology.chunk_s(stages, driver, world.goal.in_flight)
            ratios.baselines[name].append(theirs_s / made.chunk_s)


def candidates_of(world: World) -> Candidates:
    """All machines of a world that can hold a layer."""
    usable = [machine for machine in world.topology.machines if machine.fits_layers > 0]
    field = Field(world.topology, usable, world.shape.layers, world.goal.in_flight, world.goal.driver)
    return field.candidates(range(len(usable)))


@dataclass(frozen=True)
class _Joined:
    """A swarm whose peers came one by one: who holds what, and how many moves that took."""

    holders: tuple[Holder, ...]
    moves: int


def join_one_by_one(world: World) -> _Joined:
    """All machines of a world place themselves as they come; after each, those move whom nobody needs."""
    shape, topology, moves = world.shape, world.topology, 0
    by_peer = {machine.peer_id: machine for machine in topology.machines}
    holders: list[Holder] = []
    for machine in topology.machines:
        holders += _seated(machine, place(shape, machine, holders, topology).ranges)
        if missing_ranges(shape.layers, [holder.layers for holder in holders]):
            continue
        target = target_of(shape, holders, topology)
        for _ in range(MOVES_AT_MOST * len(by_peer)):
            move = next_move(shape, holders, topology, target, may_slow=True) if target is not None else None
            if move is None:
                break
            moves += 1
            holders = [holder for holder in holders if holder.peer_id != move.peer_id]
            holders += _seated(by_peer[move.peer_id], move.placement.ranges)
    return _Joined(tuple(holders), moves)


def _seated(machine: Machine, ranges: Sequence[LayerRange]) -> list[Holder]:
    return [Holder(machine.peer_id, layers, machine.layer_s) for layers in ranges]


def _joiners_ratio(world: World, joined: _Joined) -> float:
    """The lap of the best ring through joiners that placed themselves one by one, by that of the central plan."""
    ring = cheapest_ring(world.shape.layers, joined.holders, world.topology.delay_s)
    central = plan(world.shape, world.topology, Goal())
    return float("inf") if ring is None else ring.lap_s / central.lap_s


def _moves(world: World) -> int:
    """How often a running ring moves while every delay is measured anew, each off by up to NOISE."""
    running, moves = plan(world.shape, world.topology, world.goal).stages, 0
    for number in range(NOISY_ROUNDS):
        again = replan(running, world.shape, with_noise(world, NOISE, number), world.goal).stages
        moves += again != running
        running = again
    return moves


def plan_s(peers: int, seed: int) -> float:
    """The longest time that planning among so many peers takes on this machine, of both objectives."""
    longest_s = 0.0
    for is_pipelined in (False, True):
        world = make_world(peers, f"{seed}/time/{peers}", is_pipelined=is_pipelined)
        started_s = time.perf_counter()
        plan(world.shape, world.topology, world.goal)
        longest_s = max(longest_s, time.perf_counter() - started_s)
    return longest_s
