"""The best ring by looking at every one: subsets, orders and fills of a few machines. Pure; not the planner's code."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations, pairwise, permutations

from shardp2p.lab.placement.worlds import World
from shardp2p.scheduler.topology import Machine


def enumerate_chunk_s(world: World) -> float:
    """The least time per chunk over all subsets, orders and fills; infinite when the model fits none. n <= 7."""
    machines = [machine for machine in world.topology.machines if machine.fits_layers > 0]
    best_s = math.inf
    for count in range(1, len(machines) + 1):
        for subset in combinations(machines, count):
            front = fills(world.shape.layers, subset)
            if front:
                hops_s = min(_hops_s(world, order) for order in _orders(world, subset))
                costs = (max(slowest_s, (hops_s + work_s) / world.goal.in_flight) for slowest_s, work_s in front)
                best_s = min(best_s, *costs)
    return best_s


def _orders(world: World, subset: tuple[Machine, ...]) -> list[tuple[Machine, ...]]:
    if world.goal.driver is not None:
        return list(permutations(subset))
    # Where the driver sits with the first layers a ring may be turned: its first machine can be any.
    return [(subset[0], *others) for others in permutations(subset[1:])]


def _hops_s(world: World, order: tuple[Machine, ...]) -> float:
    driver = world.goal.driver or order[0].peer_id
    peers = (driver, *(machine.peer_id for machine in order), driver)
    return sum(world.topology.delay_s(sender, receiver) for sender, receiver in pairwise(peers))


def fills(layers: int, machines: Sequence[Machine]) -> list[tuple[float, float]]:
    """(slowest stage, work) in seconds of every fill worth having: for each possible slowest stage, the least work."""
    limits = {
        count * machine.layer_s for machine in machines for count in range(1, min(machine.fits_layers, layers) + 1)
    }
    front: list[tuple[float, float]] = []
    for limit_s in sorted(limits):
        counts = [1] * len(machines)
        for _ in range(layers - len(machines)):
            growing = [
                (machine.layer_s, at)
                for at, machine in enumerate(machines)
                if counts[at] < machine.fits_layers and (counts[at] + 1) * machine.layer_s <= limit_s * (1 + 1e-9)
            ]
            if not growing:
                break
            counts[min(growing)[1]] += 1
        stages_s = [count * machine.layer_s for count, machine in zip(counts, machines, strict=True)]
        if sum(counts) == layers and max(stages_s) <= limit_s * (1 + 1e-9):
            work_s = sum(stages_s)
            if not front or work_s < front[-1][1]:
                front.append((max(stages_s), work_s))
    return front
