"""The planner's fills and rings against every possibility, and the bound against the optimum."""

from itertools import product
from random import Random

import pytest

from shardp2p.lab.placement.bounds import lower_bound_s
from shardp2p.lab.placement.comparison import candidates_of
from shardp2p.lab.placement.oracles import enumerate_chunk_s, fills
from shardp2p.lab.placement.worlds import make_world
from shardp2p.scheduler.planning import plan
from shardp2p.scheduler.planning_exact import best_tour
from shardp2p.scheduler.planning_fill import Candidates
from shardp2p.scheduler.topology import Machine
from shardp2p.vocabulary import PeerId


def every_fill_s(layers: int, machines: list[Machine], hops_s: float, in_flight: int) -> float:
    """The least time per chunk over every single way to give each machine a layer or more."""
    costs = [float("inf")]
    for counts in product(*(range(1, machine.fits_layers + 1) for machine in machines)):
        if sum(counts) == layers:
            stages_s = [count * machine.layer_s for count, machine in zip(counts, machines, strict=True)]
            costs.append(max(*stages_s, (hops_s + sum(stages_s)) / in_flight))
    return min(costs)


@pytest.mark.parametrize("seed", range(60))
def test_both_fills_are_the_best_of_all(seed: int) -> None:
    draw = Random(seed)
    machines = sorted(
        (Machine(PeerId(str(name)), draw.randint(1, 6), draw.uniform(0.5, 3)) for name in range(draw.randint(1, 4))),
        key=lambda machine: machine.layer_s,
    )
    layers, hops_s, in_flight = draw.randint(1, 14), draw.uniform(0, 30), draw.choice((1, 2, 5, 12))
    best_s = every_fill_s(layers, machines, hops_s, in_flight)
    candidates = Candidates(
        layers, in_flight, [m.fits_layers for m in machines], [m.layer_s for m in machines], [[0.0] * 4] * 4
    )
    assert candidates.chunk_s(range(len(machines)), hops_s) == pytest.approx(best_s)
    front = [max(slowest_s, (hops_s + work_s) / in_flight) for slowest_s, work_s in fills(layers, machines)]
    assert min(front, default=float("inf")) == pytest.approx(best_s)


@pytest.mark.parametrize("seed", range(10))
def test_the_bound_is_below_the_optimum_and_near_it(seed: int) -> None:
    pytest.importorskip("scipy")
    world = make_world(7, f"bound/{seed}", is_pipelined=seed % 2 == 1, is_pinned=seed % 3 == 0)
    best_s = enumerate_chunk_s(world)
    bound_s = lower_bound_s(candidates_of(world), best_s * 1.3)
    assert best_s * 0.9 < bound_s <= best_s * (1 + 1e-6)


@pytest.mark.parametrize("seed", range(8))
def test_the_dynamic_program_finds_what_enumeration_finds(seed: int) -> None:
    world = make_world(7, f"exact/{seed}", is_pipelined=seed % 2 == 1, is_pinned=seed % 3 == 0)
    best = best_tour(candidates_of(world))
    assert best is not None
    assert best[0] == pytest.approx(enumerate_chunk_s(world))
    assert plan(world.shape, world.topology, world.goal).chunk_s == pytest.approx(best[0])
