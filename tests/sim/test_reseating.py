"""Founders sit as the best plan says; later, peers that nobody needs move one at a time and lose nothing."""

from __future__ import annotations

import pytest

from shardp2p.lab.placement.comparison import join_one_by_one
from shardp2p.lab.placement.worlds import make_world
from shardp2p.scheduler.holders import Holder, HolderState, counts
from shardp2p.scheduler.options import SPARED
from shardp2p.scheduler.placement import place
from shardp2p.scheduler.plan import Stage
from shardp2p.scheduler.planning import plan
from shardp2p.scheduler.reseating import SLOWER, better_seat, may_leave, next_move, target_of
from shardp2p.scheduler.reseating_path import paths
from shardp2p.scheduler.ring_search import cheapest_ring
from shardp2p.scheduler.settling import rank
from shardp2p.scheduler.target import seats_by_peer, turnings, widened
from shardp2p.scheduler.topology import Machine, ModelShape, Topology
from shardp2p.vocabulary import LayerRange, ModelId, PeerId

SHAPE = ModelShape(ModelId("tiny"), "ab" * 32, 6, layer_bytes=2**20, hidden_bytes=100)
NOWHERE = Topology([])


def holder(name: str, layers: str, state: HolderState = "serving", layer_s: float = 0.01) -> Holder:
    return Holder(PeerId(name), LayerRange.parse(layers), layer_s, state)


def lap_s(shape: ModelShape, holders: list[Holder], topology: Topology) -> float:
    ring = cheapest_ring(shape.layers, holders, topology.delay_s)
    assert ring is not None
    return ring.lap_s


def test_a_target_is_turned_to_where_most_peers_sit() -> None:
    world = Topology([Machine(PeerId("a"), 3, 0.01), Machine(PeerId("b"), 3, 0.01)])
    arcs = turnings(plan(SHAPE, world).stages, 6, seats_by_peer([holder("a", "1:4")]))
    assert len(arcs) == 6
    assert arcs[0] == {PeerId("a"): frozenset((1, 2, 3)), PeerId("b"): frozenset((4, 5, 0))}


def test_a_seat_is_widened_over_the_scarcest_layers() -> None:
    assert widened(frozenset((2, 3)), 4, [1, 0, 1, 1, 2, 2]) == (LayerRange(0, 4),)
    assert widened(frozenset((5, 0)), 3, [1, 2, 2, 2, 0, 1]) == (LayerRange(0, 1), LayerRange(4, 6))


def settled(seed: str) -> tuple[ModelShape, Topology, list[Holder]]:
    """Joiners that sat down one by one, none of which has moved yet."""
    world = make_world(9, seed, is_pipelined=False)
    holders: list[Holder] = []
    for machine in world.topology.machines:
        ranges = place(world.shape, machine, holders, world.topology).ranges
        holders += [Holder(machine.peer_id, part, machine.layer_s) for part in ranges]
    return world.shape, world.topology, holders


@pytest.mark.parametrize("seed", range(4))
def test_moves_keep_every_layer_and_never_slow_the_best_ring(seed: int) -> None:
    shape, topology, holders = settled(f"moves/{seed}")
    target = target_of(shape, holders, topology)
    assert target is not None
    width = {peer: len(seat) for peer, seat in seats_by_peer(holders).items()}
    for _ in range(3 * len(width)):
        move = next_move(shape, holders, topology, target)
        if move is None:
            break
        rest = [one for one in holders if one.peer_id != move.peer_id]
        speed = next(one.layer_s for one in holders if one.peer_id == move.peer_id)
        assert min(counts(shape.layers, [one.layers for one in rest])) > 0
        before_s = lap_s(shape, holders, topology)
        holders = rest + [Holder(move.peer_id, part, speed) for part in move.placement.ranges]
        assert lap_s(shape, holders, topology) <= before_s + 1e-8
    else:
        pytest.fail("the peers never came to rest")
    assert {peer: len(seat) for peer, seat in seats_by_peer(holders).items()} == width


@pytest.mark.parametrize("seed", range(4))
def test_moves_that_may_slow_the_ring_lose_no_layer_and_end_where_it_is_near_the_best(seed: int) -> None:
    shape, topology, holders = settled(f"moves/{seed}")
    target = target_of(shape, holders, topology)
    assert target is not None
    first_s = slowest_s = lap_s(shape, holders, topology)
    for _ in range(2 * len(holders)):
        move = next_move(shape, holders, topology, target, may_slow=True)
        if move is None:
            break
        rest = [one for one in holders if one.peer_id != move.peer_id]
        assert min(counts(shape.layers, [one.layers for one in rest])) > 0
        speed = next(one.layer_s for one in holders if one.peer_id == move.peer_id)
        holders = rest + [Holder(move.peer_id, part, speed) for part in move.placement.ranges]
        slowest_s = max(slowest_s, lap_s(shape, holders, topology))
    else:
        pytest.fail("the peers never came to rest")
    assert slowest_s <= first_s * SLOWER
    assert lap_s(shape, holders, topology) <= min(first_s, 1.15 * target.lap_s)


@pytest.mark.parametrize(("seed", "machines"), [("202/joiners/54", 14), ("202/joiners/46", 40)])
def test_nobody_moves_back_and_forth_on_ways_on_which_the_ring_is_slower(seed: str, machines: int) -> None:
    world = make_world(machines, seed, is_pipelined=False)
    joined = join_one_by_one(world)
    assert joined.moves < machines
    target = target_of(world.shape, joined.holders, world.topology)
    assert target is not None
    assert lap_s(world.shape, list(joined.holders), world.topology) <= 1.15 * target.lap_s
    room = sum(machine.fits_layers for machine in world.topology.machines) // world.shape.layers
    assert min(counts(world.shape.layers, [one.layers for one in joined.holders])) >= min(room, SPARED)


def seats(**by_peer: str) -> dict[PeerId, tuple[LayerRange, ...]]:
    return {PeerId(peer): (LayerRange.parse(layers),) for peer, layers in by_peer.items()}


def stages(**by_peer: str) -> list[Stage]:
    return [Stage(PeerId(peer), LayerRange.parse(layers)) for peer, layers in by_peer.items()]


def test_the_only_holders_of_layers_change_seats_by_way_of_a_free_peer() -> None:
    held = seats(a="0:2", b="2:4", c="4:6", idle="0:2")
    (path, *_) = paths(SHAPE, stages(a="0:2", c="2:4", b="4:6"), held, {PeerId("a"), PeerId("b"), PeerId("c")})
    assert path.missed == 0
    assert path.steps[0].peer_id in ("a", "idle")
    at = dict(held)
    for step in path.steps:
        at[step.peer_id] = step.ranges
        assert min(counts(6, [part for parts in at.values() for part in parts])) > 0
    assert at == path.seats


def test_of_a_path_the_rest_is_found_again_after_each_step() -> None:
    at, wanted = seats(a="0:2", b="2:4", c="4:6", idle="0:2"), stages(a="0:2", c="2:4", b="4:6")
    left = len(paths(SHAPE, wanted, at, set())[0].steps)
    while left:
        step = paths(SHAPE, wanted, at, set())[0].steps[0]
        at[step.peer_id] = step.ranges
        assert len(paths(SHAPE, wanted, at, set())[0].steps) <= left - 1
        left -= 1


def test_where_all_are_needed_nobody_moves() -> None:
    (path, *_) = paths(SHAPE, stages(a="0:2", c="2:4", b="4:6"), seats(a="0:2", b="2:4", c="4:6"), set())
    assert path.missed > 0
    assert path.steps == ()


def founded() -> tuple[Topology, list[Holder]]:
    """Two slow peers that run the model, and two fast ones beside them of which one sits badly."""
    holders = [holder("slow1", "0:3", layer_s=0.05), holder("slow2", "3:6", layer_s=0.05)]
    holders += [holder("fast1", "0:3", layer_s=0.001), holder("fast2", "0:3", layer_s=0.001)]
    return Topology([], {}, None), holders


def test_exactly_one_idle_peer_moves_to_where_it_makes_the_ring_faster() -> None:
    topology, holders = founded()
    moves = {one.peer_id: better_seat(SHAPE, one.peer_id, holders, topology) for one in holders}
    movers = [peer for peer, placement in moves.items() if placement is not None]
    assert len(movers) == 1
    assert movers[0] in ("fast1", "fast2")
    placement = moves[movers[0]]
    assert placement is not None
    assert (placement.ranges, placement.aim) == ((LayerRange(3, 6),), "speed")
    assert "nobody needs it" in placement.reasons[0]


def test_nobody_moves_while_another_peer_is_on_its_way() -> None:
    topology, holders = founded()
    for state in ("placing", "loading"):
        coming = [*holders, holder("new", "3:6", state)]
        assert all(better_seat(SHAPE, one.peer_id, coming, topology) is None for one in holders)


def test_nobody_moves_where_layers_are_missing() -> None:
    assert better_seat(SHAPE, PeerId("a"), [holder("a", "0:3"), holder("b", "0:3")], NOWHERE) is None
    assert better_seat(SHAPE, PeerId("a"), [], NOWHERE) is None


def test_of_two_movers_that_need_each_other_exactly_one_may_leave() -> None:
    held = [holder("one", "0:3"), holder("two", "0:3"), holder("end", "3:6")]
    held += [holder("one", "3:6", "placing"), holder("two", "3:6", "placing")]
    may = {name: may_leave(SHAPE, PeerId(name), held) for name in ("one", "two")}
    first = min(("one", "two"), key=lambda name: rank(SHAPE.digest, PeerId(name)))
    assert may == {name: name == first for name in ("one", "two")}
    assert not may_leave(SHAPE, PeerId("end"), held)
