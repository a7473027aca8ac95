"""A relay's book: who has a place here, and which circuits run. Pure.

Every id in it is the one that a connection has proved, never one that a message names, so nobody takes or gives up a
place in another's name.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from shardp2p.config import RelayLimits
from shardp2p.host.circuit.values import Status
from shardp2p.vocabulary import PeerId

MAX_PER_PAIR: Final = 4
"""Circuits between the same two peers: they need one, and another while it replaces the first."""


@dataclass(frozen=True, slots=True)
class Place:
    """A reservation. `number` is new with every holder, so that who held it before cannot give it up."""

    peer: PeerId
    network: str
    number: int
    expires_at: float


@dataclass(frozen=True, slots=True)
class Circuit:
    """A circuit from the peer that dialled to the one that has a place."""

    number: int
    source: PeerId
    target: PeerId


class Slots:
    """Decides by `limits` who gets what. `now` is any clock that does not go back."""

    def __init__(self, limits: RelayLimits) -> None:
        self.limits = limits
        self._places: dict[PeerId, Place] = {}
        self._circuits: dict[int, Circuit] = {}
        self._ends: Counter[PeerId] = Counter()
        self._number = 0

    @property
    def peers(self) -> tuple[PeerId, ...]:
        """Who has a place that was not seen to expire."""
        return tuple(self._places)

    @property
    def circuits(self) -> tuple[Circuit, ...]:
        """The circuits that run, the oldest first."""
        return tuple(self._circuits.values())

    def reserve(self, peer: PeerId, network: str, now: float) -> Place | Status:
        """A place for `peer`, who connects from `network`; whoever held it for the same peer holds it no longer."""
        self._forget_expired(now)
        others = [place for place in self._places.values() if place.peer != peer]
        if len(others) >= self.limits.reservations:
            return Status.RESERVATION_REFUSED
        if sum(place.network == network for place in others) >= self.limits.reservations_per_network:
            return Status.RESERVATION_REFUSED
        place = Place(peer, network, self._next_number(), now + self.limits.reservation_s)
        self._places[peer] = place
        return place

    def renew(self, place: Place, now: float) -> Place | Status:
        """The same place for longer, or a new one where it was lost meanwhile."""
        if self._places.get(place.peer, place).number != place.number:
            return Status.RESERVATION_REFUSED
        return self.reserve(place.peer, place.network, now)

    def release(self, place: Place) -> None:
        """Its holder has no more use for it. A place that has another holder by now stays."""
        held = self._places.get(place.peer)
        if held is not None and held.number == place.number:
            del self._places[place.peer]

    def forget(self, peer: PeerId) -> None:
        """`peer` is not connected any more."""
        self._places.pop(peer, None)

    def connect(self, source: PeerId, target: PeerId, now: float) -> Circuit | Status:
        """A circuit between the two; it takes a slot until `end`."""
        place = self._places.get(target)
        if place is None or now >= place.expires_at:
            return Status.NO_RESERVATION
        if source == target:
            return Status.PERMISSION_DENIED
        pair = {source, target}
        is_full = len(self._circuits) >= self.limits.circuits
        if is_full or any(self._ends[peer] >= self.limits.circuits_per_peer for peer in pair):
            return Status.RESOURCE_LIMIT_EXCEEDED
        if sum({one.source, one.target} == pair for one in self._circuits.values()) >= MAX_PER_PAIR:
            return Status.RESOURCE_LIMIT_EXCEEDED
        circuit = Circuit(self._next_number(), source, target)
        self._circuits[circuit.number] = circuit
        self._ends.update(pair)
        return circuit

    def end(self, circuit: Circuit) -> None:
        """The circuit runs no more; saying so twice does nothing more."""
        if self._circuits.pop(circuit.number, None) is not None:
            for peer in (circuit.source, circuit.target):
                self._ends[peer] -= 1
                if not self._ends[peer]:
                    del self._ends[peer]

    def _forget_expired(self, now: float) -> None:
        for peer in [peer for peer, place in self._places.items() if now >= place.expires_at]:
            del self._places[peer]

    def _next_number(self) -> int:
        self._number += 1
        return self._number
