"""Which machines a search looks at: all of a few, else the neighbourhoods of the most promising ones. Pure.

No table of all pairs is made: delays are asked from a bounded number of seeds to everyone, and within each short list.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from heapq import nsmallest
from itertools import pairwise

from shardp2p.errors import LocalProtocolError
from shardp2p.scheduler.planning_fill import Candidates
from shardp2p.scheduler.topology import Machine, Topology
from shardp2p.vocabulary import PeerId

SEEDS = 16
"""Neighbourhoods looked at: enough for every part of a world that has some thousands of machines."""

NEIGHBOURS = 40
"""Machines of a neighbourhood: several times as many as a ring has stages."""

SAMPLE = 64
"""Pairs whose delays tell what a short hop is."""


Ring = list[tuple[int, int]]
"""Machines of a ring, as indices in a field, each with its number of layers; in order, from the driver on."""


class Field:
    """The machines that can hold a layer, the fastest first, with how a search is to weigh them."""

    def __init__(
        self, topology: Topology, machines: Sequence[Machine], layers: int, in_flight: int, driver: PeerId | None
    ) -> None:
        self.machines = sorted(machines, key=lambda machine: (machine.layer_s, -machine.fits_layers, machine.peer_id))
        self._topology, self._layers, self._in_flight, self._driver = topology, layers, in_flight, driver

    def candidates(self, nodes: Sequence[int]) -> Candidates:
        """The machines at `nodes` (ascending) as candidates; index i is that of `nodes[i]`."""
        peers = [self.machines[node].peer_id for node in nodes]
        depot = None if self._driver is None else len(peers)
        if self._driver is not None:
            peers.append(self._driver)
        delay_s = self._topology.delay_s
        return Candidates(
            layers=self._layers,
            in_flight=self._in_flight,
            capacities=[min(self.machines[node].fits_layers, self._layers) for node in nodes],
            layer_s=[self.machines[node].layer_s for node in nodes],
            delays=[[delay_s(sender, receiver) for receiver in peers] for sender in peers],
            depot=depot,
        )

    def ring(self, nodes: Sequence[int], candidates: Candidates, found: tuple[float, Sequence[int]]) -> Ring:
        """What a search among `nodes` found, with layers. Without a pinned driver it begins at the fastest machine."""
        tour = list(found[1])
        members = candidates.members(tour)
        counts = candidates.best_fill(members, candidates.hops_s(tour))
        if counts is None:
            raise LocalProtocolError("a search found a ring that does not hold the model")
        start = tour.index(members[0] if candidates.depot is None else candidates.depot)
        layers = dict(zip(members, counts, strict=True))
        return [(nodes[node], layers[node]) for node in tour[start:] + tour[:start] if node != candidates.depot]

    def neighbourhoods(self) -> Iterator[list[int]]:
        """Short lists, each with its seed first; the last holds the roomiest machines and is sure to hold the model."""
        hop_s, covered, size = self._short_hop_s(), set[int](), self._neighbourhood_size()
        worth = self._per_layer_s(lambda _: hop_s)
        ranked = nsmallest(SEEDS * NEIGHBOURS, range(len(self.machines)), key=worth)
        if self._driver is not None:
            yield self._nearest(self._detour([self._driver]), size)
        for seed in self._spread(ranked, covered, max(2, SEEDS * NEIGHBOURS // size)):
            peer = self.machines[seed].peer_id
            near = self._nearest(self._detour([peer] if self._driver is None else [self._driver, peer]), size)
            covered.update(near[: size // 2])
            yield [seed, *(node for node in near if node != seed)]
        yield nsmallest(
            max(size, self._layers),
            range(len(self.machines)),
            key=lambda node: (-self.machines[node].fits_layers, node),
        )

    def around(self, ring: Sequence[int], count: int) -> list[int]:
        """The machines of a ring and the `count` that would lengthen it least for what they hold."""
        peers = [self.machines[node].peer_id for node in ring]
        near = self._nearest(self._detour(peers if self._driver is None else [self._driver, *peers]), count)
        return sorted({*ring, *near})

    def _neighbourhood_size(self) -> int:
        room = sum(min(machine.fits_layers, self._layers) for machine in self.machines) / len(self.machines)
        return max(NEIGHBOURS, math.ceil(2 * self._layers / room))

    def _spread(self, ranked: Sequence[int], covered: set[int], count: int) -> Iterator[int]:
        chosen = 0
        for node in ranked:
            if chosen < count and node not in covered:
                chosen += 1
                yield node

    def _detour(self, peers: Sequence[PeerId]) -> Callable[[int], float]:
        """What a machine adds to the closed tour through `peers` at its best place."""
        delay_s = self._topology.delay_s
        hops = [(one, other, delay_s(one, other)) for one, other in pairwise((*peers, peers[0]))]

        def added_s(node: int) -> float:
            peer = self.machines[node].peer_id
            return min(delay_s(one, peer) + delay_s(peer, other) - hop_s for one, other, hop_s in hops)

        return added_s

    def _nearest(self, added_s: Callable[[int], float], count: int) -> list[int]:
        return nsmallest(count, range(len(self.machines)), key=self._per_layer_s(added_s))

    def _per_layer_s(self, added_s: Callable[[int], float]) -> Callable[[int], tuple[float, int]]:
        """Ranks a machine by what each of its layers would add to a lap; ties by speed."""
        pace_s = self._pace_s()

        def worth(node: int) -> tuple[float, int]:
            machine = self.machines[node]
            useful = max(1.0, min(machine.fits_layers, self._layers, pace_s // machine.layer_s))
            return added_s(node) / useful + machine.layer_s, node

        return worth

    def _pace_s(self) -> float:
        """A bound on stages that a full pipeline could keep to; none where one chunk is in flight."""
        if self._in_flight == 1:
            return math.inf
        # The least there is: the lap of the fastest machines without a hop, shared among the chunks in flight.
        missing, lap_s = self._layers, 0.0
        for machine in self.machines:
            count = min(machine.fits_layers, missing)
            lap_s += count * machine.layer_s
            missing -= count
            if not missing:
                break
        return 4 * lap_s / self._in_flight

    def _short_hop_s(self) -> float:
        """A delay shorter than most: a good ring finds such hops."""
        count = len(self.machines)
        step = max(1, count // SAMPLE)
        sample = self.machines[::step]
        delays = sorted(self._topology.delay_s(a.peer_id, b.peer_id) for a, b in pairwise((*sample, sample[0])))
        return delays[len(delays) // 8]
