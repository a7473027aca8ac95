"""Generated swarms on a map of the world: clusters, home lines, detours, mixed memory and speed. Pure and seeded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from zlib import crc32

from shardp2p.scheduler.planning import Goal
from shardp2p.scheduler.topology import Machine, ModelShape, Topology
from shardp2p.vocabulary import ModelId, PeerId

CITIES = {
    "eu-west": (51.5, -0.1), "eu-central": (50.1, 8.7), "eu-north": (59.3, 18.1), "us-east": (40.7, -74.0),
    "us-central": (41.9, -87.6), "us-west": (37.4, -122.1), "sa-east": (-23.5, -46.6), "ap-south": (19.1, 72.9),
    "ap-southeast": (1.35, 103.8), "ap-northeast": (35.7, 139.7), "oceania": (-33.9, 151.2), "af-south": (-33.9, 18.4),
}  # fmt: skip
"""Latitude and longitude in degrees of where people are."""

EARTH_KM = 6371.0
FIBRE_KM_S = 200_000.0

DETOUR = (1.2, 2.2)
"""Cables and routing are longer than great circles; each direction of a pair has its own factor, so that directions
differ, and the way over a third place is sometimes the shorter one."""

ACCESS_S = (0.0002, 0.002, 0.006, 0.012)
"""One way over a machine's own line: data centre, fibre, cable, slow home line."""

MEMORY_SHARES = (0.04, 0.08, 0.12, 0.2, 0.3, 0.5)
"""Of the model's layers that a machine has room for, from a small card to two large ones."""

LAYER_S = (0.0004, 0.0008, 0.0012, 0.002, 0.004)


Place = tuple[float, float, float, float]
"""A point on the unit sphere, and the delay of the access line."""


@dataclass(frozen=True)
class MapDelays:
    """Delays of places on the map: distance, the pair's own detour and both access lines. Asymmetric, no triangle rule.

    `noise` scales every delay by a factor within 1 ± noise, drawn for each direction of each pair from `noise_salt`.
    """

    places: Mapping[PeerId, Place]
    salt: str
    noise: float = 0.0
    noise_salt: str = ""

    def delay_s(self, sender: PeerId, receiver: PeerId) -> float:
        one, other = self.places[sender], self.places[receiver]
        chord = math.dist(one[:3], other[:3])
        distance_km = 2 * EARTH_KM * math.asin(min(1.0, chord / 2))
        detour = DETOUR[0] + (DETOUR[1] - DETOUR[0]) * _drawn(self.salt, sender, receiver)
        factor = 1.0
        if self.noise:
            factor += self.noise * (2 * _drawn(self.noise_salt, sender, receiver) - 1)
        return (detour * distance_km / FIBRE_KM_S + one[3] + other[3]) * factor


def _drawn(salt: str, sender: PeerId, receiver: PeerId) -> float:
    """In [0, 1): the same for the same pair and direction, in every process."""
    return crc32(f"{receiver}{salt}{sender}".encode()) * 2654435761 % 2**32 / 2**32


@dataclass(frozen=True)
class World:
    """A topology, the model to place in it and what for."""

    shape: ModelShape
    topology: Topology
    goal: Goal
    delays: MapDelays


def with_noise(world: World, noise: float, number: int) -> Topology:
    """The world's machines, every delay measured anew and off by up to `noise`."""
    return Topology(world.topology.machines, estimate=replace(world.delays, noise=noise, noise_salt=f"noise{number}"))


def make_world(peers: int, seed: str, *, is_pipelined: bool, is_pinned: bool = False) -> World:
    """A world of `peers` machines in which the model fits. The same seed gives the same world."""
    draw = Random(seed)
    layers = draw.choice((24, 32, 40, 48, 61, 80))
    shape = ModelShape(ModelId("generated"), "0" * 64, layers, 400 * 2**20, 16384)
    cities = draw.sample(sorted(CITIES), draw.randint(1, min(len(CITIES), 2 + peers // 3)))
    while True:
        machines, places = [], {}
        for number in range(peers):
            region = draw.choice(cities)
            peer = PeerId(f"peer{number:05d}")
            places[peer] = _place(draw, region)
            # Some have no room at all: a full disk, a small card, a machine that only asks.
            fits = 0 if draw.random() < 0.08 else max(1, round(draw.choice(MEMORY_SHARES) * layers))
            fits = layers if peers <= 12 and draw.random() < 0.03 else fits
            machines.append(Machine(peer, fits, draw.choice(LAYER_S) * draw.uniform(0.8, 1.3), region))
        if sum(machine.fits_layers for machine in machines) >= layers:
            break
    driver = PeerId("driver") if is_pinned else None
    places[PeerId("driver")] = _place(draw, draw.choice(cities))
    goal = Goal(in_flight=draw.choice((4, 8, 16)) if is_pipelined else 1, accepted=3.0, driver=driver)
    delays = MapDelays(places, seed)
    return World(shape, Topology(machines, estimate=delays), goal, delays)


def _place(draw: Random, region: str) -> Place:
    spread = draw.choice((0.05, 0.5, 3.0))
    latitude, longitude = (math.radians(degrees + draw.gauss(0, spread)) for degrees in CITIES[region])
    return (
        math.cos(latitude) * math.cos(longitude),
        math.cos(latitude) * math.sin(longitude),
        math.sin(latitude),
        draw.choice(ACCESS_S) * draw.uniform(0.7, 1.4),
    )
