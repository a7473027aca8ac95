"""The cheapest ring is the one that enumeration finds, however ranges overlap and whatever links cost."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

import pytest

from shardp2p.scheduler.holders import Holder
from shardp2p.scheduler.ring_cells import MAX_CELLS, POOL_PER_CELL
from shardp2p.scheduler.ring_search import Ring, cheapest_ring, least_laps
from shardp2p.vocabulary import LayerRange, PeerId

Delay = Callable[[PeerId, PeerId], float]


def drawn(seed: int, peers: int, layers: int, widest: int) -> tuple[list[Holder], Delay]:
    """Holders at random; links differ by direction and break the triangle inequality. Some peers hold two ranges."""
    rng = random.Random(seed)
    holders = []
    for number in range(peers):
        width = rng.randint(1, widest)
        start = rng.randint(0, layers - width)
        name = PeerId(f"p{number if rng.random() < 0.8 else rng.randrange(peers):04}")
        holders.append(Holder(name, LayerRange(start, start + width), rng.uniform(0.001, 0.01)))
    delays: dict[tuple[PeerId, PeerId], float] = {}

    def delay(one: PeerId, other: PeerId) -> float:
        return delays.setdefault((one, other), random.Random(f"{seed}{one}{other}").uniform(0.001, 0.05))

    return holders, delay


def hop(one: Holder | PeerId, other: Holder | PeerId, delay: Delay, hop_s: float) -> float:
    ours, theirs = (end.peer_id if isinstance(end, Holder) else end for end in (one, other))
    return 0.0 if ours == theirs else delay(ours, theirs) + hop_s


def by_enumeration(
    layers: int, holders: Sequence[Holder], delay: Delay, driver: PeerId | None, hop_s: float
) -> float | None:
    best: list[float] = []

    def extend(layer: int, path: tuple[Holder, ...], cost: float) -> None:
        if best and cost >= best[0]:
            return
        if layer == layers:
            best[:] = [min([*best, cost + hop(path[-1], driver or path[0], delay, hop_s)])]
            return
        for holder in holders:
            if holder.layers.start <= layer < holder.layers.stop:
                arrival = path[-1] if path else driver or holder
                extend(layer + 1, (*path, holder), cost + hop(arrival, holder, delay, hop_s) + holder.layer_s)

    extend(0, (), 0.0)
    return best[0] if best else None


def lap_of(ring: Ring, holders: Sequence[Holder], delay: Delay, driver: PeerId | None, hop_s: float) -> float:
    used = [holders[leg.holder] for leg in ring.legs]
    home: Holder | PeerId = driver or used[0]
    ends = [home, *used, home]
    hops = sum(hop(one, other, delay, hop_s) for one, other in itertools.pairwise(ends))
    return hops + sum(holder.layer_s * len(leg.layers) for holder, leg in zip(used, ring.legs, strict=True))


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("driver", [None, "p0001", "client"])
def test_no_ring_is_cheaper(seed: int, driver: str | None) -> None:
    holders, delay = drawn(seed, peers=8, layers=6, widest=5)
    home = PeerId(driver) if driver else None
    hop_s = 0.002 * (seed % 3)
    ring = cheapest_ring(6, holders, delay, driver=home, hop_s=hop_s)
    expected = by_enumeration(6, holders, delay, home, hop_s)
    if ring is None:
        assert expected is None
        return
    assert ring.lap_s == pytest.approx(expected)
    assert ring.lap_s == pytest.approx(lap_of(ring, holders, delay, home, hop_s))
    assert [leg.layers.start for leg in ring.legs] == [0, *(leg.layers.stop for leg in ring.legs[:-1])]
    assert ring.legs[-1].layers.stop == 6
    for leg in ring.legs:
        held = holders[leg.holder].layers
        assert held.start <= leg.layers.start < leg.layers.stop <= held.stop


def by_first_peer(layers: int, holders: Sequence[Holder], delay: Delay) -> float:
    """The best lap, from one programme for every first holder and no shortcut."""
    best = float("inf")
    for first in holders:
        if first.layers.start > 0:
            continue
        costs = {id(first): (first, first.layer_s)}
        for layer in range(1, layers):
            costs = {
                id(after): (
                    after,
                    min(cost + hop(at, after, delay, 0.0) for at, cost in costs.values()) + after.layer_s,
                )
                for after in holders
                if after.layers.start <= layer < after.layers.stop
            }
        best = min([best, *(cost + hop(last, first, delay, 0.0) for last, cost in costs.values())])
    return best


@pytest.mark.parametrize("seed", range(3))
def test_a_crowd_gives_the_same_ring_as_the_search_without_shortcuts(seed: int) -> None:
    holders, delay = drawn(seed, peers=80, layers=8, widest=4)
    ring = cheapest_ring(8, holders, delay)
    assert ring is not None
    assert len(holders) > 8 * POOL_PER_CELL
    assert ring.lap_s == pytest.approx(by_first_peer(8, holders, delay))


def test_the_order_of_holders_decides_ties_and_nothing_else() -> None:
    holders = [Holder(PeerId(name), LayerRange(0, 4), 0.01) for name in "cab"]
    ring = cheapest_ring(4, holders, lambda _one, _other: 0.02)
    assert ring is not None
    assert [leg.holder for leg in ring.legs] == [0]


def test_missing_layers_give_no_ring() -> None:
    assert cheapest_ring(4, [Holder(PeerId("a"), LayerRange(0, 3))], lambda _one, _other: 0.0) is None
    assert cheapest_ring(4, [], lambda _one, _other: 0.0) is None


def test_a_claim_of_countless_layers_is_cut_at_the_edges_of_ranges_only() -> None:
    layers = 2**32 - 1
    assert layers > MAX_CELLS
    holders = [Holder(PeerId("a"), LayerRange(0, 2**31)), Holder(PeerId("b"), LayerRange(2**20, layers))]
    ring = cheapest_ring(layers, holders, lambda _one, _other: 1.0)
    assert ring is not None
    assert {leg.holder for leg in ring.legs} == {0, 1}


@pytest.mark.parametrize("seed", range(20))
def test_no_ring_through_a_holder_is_below_its_bound(seed: int) -> None:
    holders, delay = drawn(seed, peers=7, layers=5, widest=4)
    ring = cheapest_ring(5, holders, delay)
    bounds = least_laps(5, holders, delay)
    if ring is None:
        assert set(bounds) == {float("inf")}
        return
    for leg in ring.legs:
        assert bounds[leg.holder] <= ring.lap_s + 1e-12
