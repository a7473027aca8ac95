"""What others do, from their own descriptions (docs/architecture.md): each gives stages for a world. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shardp2p.lab.placement.worlds import World
from shardp2p.scheduler.holders import Holder
from shardp2p.scheduler.plan import Stage
from shardp2p.scheduler.ring_search import cheapest_ring
from shardp2p.scheduler.topology import Machine
from shardp2p.vocabulary import LayerRange, PeerId

Baseline = Callable[[World], tuple[Stage, ...]]


def _usable(world: World) -> list[Machine]:
    return [machine for machine in world.topology.machines if machine.fits_layers > 0]


def _stages(counts: Sequence[tuple[PeerId, int]]) -> tuple[Stage, ...]:
    stages, at = [], 0
    for peer, count in counts:
        if count:
            stages.append(Stage(peer, LayerRange(at, at + count)))
            at += count
    return tuple(stages)


def _by_share(layers: int, machines: Sequence[Machine]) -> list[tuple[PeerId, int]]:
    """Layers in proportion to memory, the rest to the largest fractions (as room allows)."""
    room = sum(machine.fits_layers for machine in machines)
    exact = [layers * machine.fits_layers / room for machine in machines]
    counts = [int(share) for share in exact]
    by_fraction = sorted(range(len(machines)), key=lambda at: (counts[at] - exact[at], at))
    for at in by_fraction[: layers - sum(counts)]:
        counts[at] += 1
    return [(machine.peer_id, count) for machine, count in zip(machines, counts, strict=True)]


def ram_share(world: World) -> tuple[Stage, ...]:
    """exo: a ring of all machines, the roomiest first, each with its share of the memory."""
    machines = sorted(_usable(world), key=lambda machine: (-machine.fits_layers, machine.peer_id))
    return _stages(_by_share(world.shape.layers, machines))


def rtt_greedy(world: World) -> tuple[Stage, ...]:
    """Mesh: a host takes the peers with the lowest round trip to itself until the model fits, by share of memory."""
    delay_s, machines = world.topology.delay_s, _usable(world)
    host = world.goal.driver or max(machines, key=lambda machine: (machine.fits_layers, machine.peer_id)).peer_id
    machines.sort(
        key=lambda machine: (delay_s(host, machine.peer_id) + delay_s(machine.peer_id, host), machine.peer_id)
    )
    count = 1
    while sum(machine.fits_layers for machine in machines[:count]) < world.shape.layers:
        count += 1
    return _stages(_by_share(world.shape.layers, machines[:count]))


def worst_covered(world: World) -> tuple[Stage, ...]:
    """Petals: each server joins with the window of layers whose throughputs are the lowest; a client routes exactly."""
    layers, held, throughput = world.shape.layers, list[Holder](), [0.0] * world.shape.layers
    for machine in _usable(world):
        width = min(machine.fits_layers, layers)
        start = min(range(layers - width + 1), key=lambda at: (sorted(throughput[at : at + width]), at))
        for layer in range(start, start + width):
            throughput[layer] += 1 / machine.layer_s / width
        held.append(Holder(machine.peer_id, LayerRange(start, start + width), machine.layer_s))
    ring = cheapest_ring(layers, held, world.topology.delay_s, driver=world.goal.driver)
    return () if ring is None else tuple(Stage(held[leg.holder].peer_id, leg.layers) for leg in ring.legs)


def fewest_stages(world: World) -> tuple[Stage, ...]:
    """Parallax: the fewest stages, within one region where that fits, layers filled like water by speed, then the
    nearest next peer; of the regions the one with the fewest stages and the shortest lap.
    """
    machines = sorted(_usable(world), key=lambda machine: (-machine.fits_layers, machine.layer_s, machine.peer_id))
    found = []
    for region in sorted({machine.region for machine in machines}):
        local = [machine for machine in machines if machine.region == region]
        if sum(machine.fits_layers for machine in local) >= world.shape.layers:
            found.append(_pipeline(world, local))
    return min(
        found or [_pipeline(world, machines)],
        key=lambda stages: (len(stages), world.topology.lap_s(stages, world.goal.driver or stages[0].peer_id)),
    )


def _pipeline(world: World, machines: Sequence[Machine]) -> tuple[Stage, ...]:
    count = 1
    while sum(machine.fits_layers for machine in machines[:count]) < world.shape.layers:
        count += 1
    delay_s, rest = world.topology.delay_s, list(machines[:count])
    at = world.goal.driver or rest[0].peer_id
    ordered: list[Machine] = []
    while rest:
        following = min(rest, key=lambda machine: (delay_s(at, machine.peer_id), machine.peer_id))
        ordered.append(following)
        rest.remove(following)
        at = following.peer_id
    counts = [1] * count
    for _ in range(world.shape.layers - count):
        _, lowest = min(
            ((counts[at] + 1) * machine.layer_s, at)
            for at, machine in enumerate(ordered)
            if counts[at] < machine.fits_layers
        )
        counts[lowest] += 1
    return _stages([(machine.peer_id, layers) for machine, layers in zip(ordered, counts, strict=True)])


BASELINES: dict[str, Baseline] = {
    "ram_share": ram_share,
    "rtt_greedy": rtt_greedy,
    "worst_covered_window": worst_covered,
    "stage_count_water_filling": fewest_stages,
}
"""By the names of the report."""
