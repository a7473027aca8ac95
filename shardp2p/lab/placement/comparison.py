"""Plans against the optimum, a bound, joiners that place themselves and what others do, on generated worlds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from statistics import median
from typing import Any

from shardp2p.lab.placement.baselines import BASELINES
from shardp2p.lab.placement.bounds import lower_bound_s
from shardp2p.lab.placement.oracles import enumerate_chunk_s
from shardp2p.lab.placement.worlds import World, make_world, with_noise
from shardp2p.scheduler.holders import Holder
from shardp2p.scheduler.placement import place
from shardp2p.scheduler.planning import Goal, plan
from shardp2p.scheduler.planning_exact import best_tour
from shardp2p.scheduler.planning_fill import Candidates
from shardp2p.scheduler.planning_keep import replan
from shardp2p.scheduler.planning_shortlist import Field
from shardp2p.scheduler.ring_search import cheapest_ring

ENUMERATED = (3, 7)
HELD_KARP = (8, 12)
BOUNDED = 100
SHARES = (0.62, 0.32)
"""Of the worlds, those with few enough machines to enumerate and for Held and Karp; the others have BOUNDED."""

JOINERS = (8, 40)
"""Machines of the worlds in which joiners place themselves; one in ten of the worlds besides."""

NOISE = 0.2
NOISY_ROUNDS = 5

Report = Callable[[int, int], None]


@dataclass
class Ratios:
    """What was found, as ratios to the best known: 1 is the optimum."""

    oracle: list[float] = field(default_factory=list)
    held_karp: list[float] = field(default_factory=list)
    hundred: list[float] = field(default_factory=list)
    joiners: list[float] = field(default_factory=list)
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
        joined = _joiners_ratio(make_world(size, f"{seed}/joiners/{number}", is_pipelined=False))
        ratios.joiners.append(joined)
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


def _joiners_ratio(world: World) -> float:
    """The lap of the best ring through joiners that placed themselves one by one, by that of the central plan."""
    holders: list[Holder] = []
    for machine in world.topology.machines:
        placed = place(world.shape, machine, holders, world.topology)
        holders.extend(Holder(machine.peer_id, layers, machine.layer_s) for layers in placed.ranges)
    ring = cheapest_ring(world.shape.layers, holders, world.topology.delay_s)
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
