"""Rings that are planned: sound, the same everywhere, explained, and kept while delays are noisy."""

from random import Random

import pytest

from shardp2p.errors import PeerUnavailableError
from shardp2p.lab.placement.comparison import candidates_of
from shardp2p.lab.placement.worlds import World, make_world, with_noise
from shardp2p.scheduler.planning import Goal, PlanReport, plan
from shardp2p.scheduler.planning_improve import improve
from shardp2p.scheduler.planning_keep import replan
from shardp2p.scheduler.planning_order import shorten
from shardp2p.scheduler.planning_reasons import explain
from shardp2p.scheduler.planning_search import search
from shardp2p.scheduler.topology import Machine, ModelShape, Topology
from shardp2p.vocabulary import LayerRange, ModelId, PeerId

A, B, C, D = (PeerId(name) for name in "ABCD")
SHAPE = ModelShape(ModelId("m"), "0" * 64, 12, 2**30, 4096)


def require_sound(world: World, made: PlanReport) -> None:
    at = 0
    for stage in made.stages:
        machine = world.topology.machine(stage.peer_id)
        assert machine is not None
        assert stage.layers.start == at
        assert len(stage.layers) <= machine.fits_layers
        at = stage.layers.stop
    assert at == world.shape.layers
    assert len({stage.peer_id for stage in made.stages}) == len(made.stages)
    assert made.chunk_s == world.topology.chunk_s(made.stages, made.driver, world.goal.in_flight)
    assert made.driver == (world.goal.driver or made.stages[0].peer_id)


@pytest.mark.parametrize("peers", [1, 2, 5, 9, 40, 200])
@pytest.mark.parametrize("is_pipelined", [False, True])
@pytest.mark.parametrize("is_pinned", [False, True])
def test_every_layer_has_one_machine_with_room_for_it(peers: int, is_pipelined: bool, is_pinned: bool) -> None:
    world = make_world(peers, f"sound/{peers}", is_pipelined=is_pipelined, is_pinned=is_pinned)
    require_sound(world, plan(world.shape, world.topology, world.goal))


@pytest.mark.parametrize("peers", [6, 30, 300])
def test_the_order_in_which_peers_are_named_changes_nothing(peers: int) -> None:
    world = make_world(peers, "order", is_pipelined=peers < 100)
    machines = list(world.topology.machines)
    Random(1).shuffle(machines)
    shuffled = Topology(machines, estimate=world.delays)
    one, other = (plan(world.shape, topology, world.goal).stages for topology in (world.topology, shuffled))
    assert one == other


def test_many_small_machines_hold_a_model_that_no_neighbourhood_holds() -> None:
    machines = [Machine(PeerId(f"{number:04d}"), 1, 0.001, "r") for number in range(140)]
    made = plan(ModelShape(ModelId("m"), "", 60, 1, 1), Topology(machines))
    assert len(made.stages) == 60


def test_a_close_pair_beats_the_fast_one_far_away() -> None:
    machines = [Machine(A, 6, 0.002), Machine(B, 6, 0.002), Machine(C, 12, 0.0019)]
    delays = {(A, B): 0.001, (A, C): 0.1, (B, C): 0.1}
    made = plan(SHAPE, Topology(machines[:2], delays))
    assert {stage.peer_id for stage in made.stages} == {A, B}
    assert [stage.peer_id for stage in plan(SHAPE, Topology(machines, delays)).stages] == [C]


def test_a_pinned_driver_draws_the_ring_to_itself() -> None:
    machines = [Machine(A, 12, 0.001), Machine(B, 12, 0.002)]
    topology = Topology(machines, {(A, B): 0.05, (D, A): 0.09, (D, B): 0.001})
    assert [stage.peer_id for stage in plan(SHAPE, topology).stages] == [A]
    pinned = plan(SHAPE, topology, Goal(driver=D))
    assert ([stage.peer_id for stage in pinned.stages], pinned.driver) == ([B], D)


def test_chunks_in_flight_spread_the_layers_over_more_stages() -> None:
    machines = [Machine(peer, 12, 0.001) for peer in (A, B, C)]
    topology = Topology(machines, {(A, B): 0.002, (B, C): 0.002, (A, C): 0.002})
    assert len(plan(SHAPE, topology).stages) == 1
    full = plan(SHAPE, topology, Goal(in_flight=16, accepted=2.0))
    assert [len(stage.layers) for stage in full.stages] == [4, 4, 4]
    assert full.rate == pytest.approx(2 / 0.004)


def test_the_way_over_a_third_machine_is_taken_where_it_is_shorter() -> None:
    machines = [Machine(peer, 4, 0.001) for peer in (A, B, C)]
    delays = {(A, B): 0.09, (B, A): 0.01, (B, C): 0.09, (C, B): 0.01, (C, A): 0.09, (A, C): 0.01}
    made = plan(SHAPE, Topology(machines, delays))
    assert made.lap_s == pytest.approx(0.03 + 0.012)


def test_too_little_room_says_how_much_is_missing() -> None:
    topology = Topology([Machine(A, 4, 0.1), Machine(B, 3, 0.1), Machine(C, 0, 0.1)])
    with pytest.raises(PeerUnavailableError, match=r"12 layers and the 3 peers have room for 7.*5 more, 5\.0 GiB"):
        plan(SHAPE, topology)


def test_nobody_at_all_is_too_little_room() -> None:
    with pytest.raises(PeerUnavailableError, match="room for 0"):
        plan(SHAPE, Topology([]))


def test_every_machine_gets_a_reason() -> None:
    machines = [Machine(A, 6, 0.001), Machine(B, 6, 0.001), Machine(C, 6, 0.001), Machine(D, 0, 0.001)]
    topology = Topology(machines, {(A, B): 0.001, (A, C): 0.05, (B, C): 0.05})
    made = plan(SHAPE, topology)
    used, other, far, empty = explain(made, topology)
    assert {used.peer_id, other.peer_id} == {A, B}
    assert used.layers == LayerRange(0, 6)
    assert "stage 1 of 2: 6 of the 6 layers" in used.reason
    assert (far.peer_id, far.layers) == (C, None)
    assert "add 99.0 ms of hops" in far.reason
    assert (empty.peer_id, "no room for one layer of 1024 MiB") == (D, empty.reason)


def test_slow_machine_on_a_shorter_way_saves_hops_and_costs_more() -> None:
    machines = [Machine(A, 6, 0.001), Machine(B, 6, 0.001), Machine(C, 1, 0.5)]
    topology = Topology(machines, {(A, B): 0.05, (A, C): 0.01, (B, C): 0.01})
    *_, slow = explain(plan(SHAPE, topology), topology)
    assert "save 30.0 ms of hops and make a chunk" in slow.reason


@pytest.mark.parametrize("seed", range(6))
def test_noise_moves_no_ring(seed: int) -> None:
    world = make_world(12, f"noise/{seed}", is_pipelined=seed % 2 == 1)
    running = plan(world.shape, world.topology, world.goal).stages
    for number in range(5):
        assert replan(running, world.shape, with_noise(world, 0.2, number), world.goal).stages == running


def test_a_ring_moves_to_what_is_better_beyond_doubt() -> None:
    slow, fast = Machine(A, 12, 0.01), Machine(B, 12, 0.001)
    running = plan(SHAPE, Topology([slow])).stages
    assert [stage.peer_id for stage in replan(running, SHAPE, Topology([slow, fast])).stages] == [B]
    slightly = Topology([slow, Machine(B, 12, 0.0095)])
    assert replan(running, SHAPE, slightly).stages == running


def test_a_ring_whose_machine_is_gone_or_shrank_is_given_up() -> None:
    running = plan(SHAPE, Topology([Machine(A, 12, 0.001)])).stages
    other = Machine(B, 12, 0.1)
    for topology in (Topology([other]), Topology([Machine(A, 11, 0.001), other])):
        assert replan(running, SHAPE, topology).stages[0].layers.start == 0
        assert B in {stage.peer_id for stage in replan(running, SHAPE, topology).stages}


def test_shortening_a_tour_keeps_its_machines_and_its_start() -> None:
    candidates = candidates_of(make_world(40, "tour", is_pipelined=False, is_pinned=True))
    assert candidates.depot is not None
    tour = [candidates.depot, *range(20)]
    shorter = shorten(candidates, tour)
    assert shorter[0] == candidates.depot
    assert sorted(shorter) == sorted(tour)
    assert candidates.hops_s(shorter) < candidates.hops_s(tour)


def test_a_found_ring_has_no_better_neighbour() -> None:
    candidates = candidates_of(make_world(30, "local", is_pipelined=False))
    found = search(candidates, range(len(candidates.capacities)))
    assert found is not None
    assert improve(candidates, found)[0] == pytest.approx(found[0])
