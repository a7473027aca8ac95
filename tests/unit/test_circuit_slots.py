"""A relay's book: places and circuits, and that nobody gets more than the limits or what is another's."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from shardp2p.config import RelayLimits
from shardp2p.errors import ConfigError
from shardp2p.host.circuit.allowance import PIECE_BYTES, Allowance
from shardp2p.host.circuit.networks import network_of
from shardp2p.host.circuit.slots import MAX_PER_PAIR, Circuit, Place, Slots
from shardp2p.host.circuit.values import Status
from shardp2p.vocabulary import PeerId

A, B, C, D = (PeerId(name) for name in "ABCD")


def place(slots: Slots, peer: PeerId, network: str = "n", now: float = 0.0) -> Place:
    made = slots.reserve(peer, network, now)
    assert isinstance(made, Place)
    return made


def circuit(slots: Slots, source: PeerId, target: PeerId, now: float = 0.0) -> Circuit:
    made = slots.connect(source, target, now)
    assert isinstance(made, Circuit)
    return made


def test_peer_without_a_place_or_with_an_expired_one_is_not_connected_to() -> None:
    slots = Slots(RelayLimits(reservation_s=10))
    assert slots.connect(A, B, 0) is Status.NO_RESERVATION
    place(slots, B)
    circuit(slots, A, B, 9.9)
    assert slots.connect(C, B, 10) is Status.NO_RESERVATION


def test_places_are_bounded_in_all_and_expired_ones_make_room() -> None:
    slots = Slots(RelayLimits(reservations=2, reservation_s=10))
    place(slots, A)
    place(slots, B, now=5)
    assert slots.reserve(C, "n", 9) is Status.RESERVATION_REFUSED
    place(slots, C, now=10)
    assert set(slots.peers) == {B, C}


def test_full_book_still_renews() -> None:
    slots = Slots(RelayLimits(reservations=1, reservations_per_network=1, reservation_s=10))
    held = place(slots, A)
    renewed = slots.renew(held, 8)
    assert isinstance(renewed, Place)
    assert renewed.expires_at == 18


def test_one_network_cannot_take_every_place() -> None:
    slots = Slots(RelayLimits(reservations=4, reservations_per_network=2))
    place(slots, A, "one")
    place(slots, B, "one")
    assert slots.reserve(C, "one", 0) is Status.RESERVATION_REFUSED
    place(slots, C, "two")


def test_earlier_holder_of_a_place_can_neither_give_it_up_nor_renew_it() -> None:
    slots = Slots(RelayLimits())
    first = place(slots, A)
    second = place(slots, A)
    slots.release(first)
    assert slots.peers == (A,)
    assert slots.renew(first, 1) is Status.RESERVATION_REFUSED
    slots.release(second)
    assert not slots.peers


def test_circuits_are_bounded_per_peer_per_pair_and_in_all() -> None:
    slots = Slots(RelayLimits(circuits=6, circuits_per_peer=5))
    for peer in (A, B, C):
        place(slots, peer)
    for _ in range(MAX_PER_PAIR // 2):
        circuit(slots, A, B)
        circuit(slots, B, A)
    assert slots.connect(A, B, 0) is Status.RESOURCE_LIMIT_EXCEEDED  # the pair has enough
    circuit(slots, A, C)
    assert slots.connect(D, A, 0) is Status.RESOURCE_LIMIT_EXCEEDED  # A has enough
    last = circuit(slots, D, C)
    assert slots.connect(D, B, 0) is Status.RESOURCE_LIMIT_EXCEEDED  # there are enough
    slots.end(last)
    slots.end(last)
    circuit(slots, D, B)


def test_peer_is_not_connected_to_itself() -> None:
    slots = Slots(RelayLimits())
    place(slots, A)
    assert slots.connect(A, A, 0) is Status.PERMISSION_DENIED


@pytest.mark.parametrize("seed", range(10))
def test_no_order_of_requests_exceeds_a_limit_or_loses_a_slot(seed: int) -> None:
    chance = random.Random(seed)
    limits = RelayLimits(reservations=5, reservations_per_network=3, circuits=7, circuits_per_peer=4, reservation_s=10)
    slots = Slots(limits)
    peers = [PeerId(name) for name in "ABCDEFGHIJ"]
    places: list[Place] = []
    circuits: list[Circuit] = []
    now = 0.0
    for _ in range(1000):
        now += chance.random()
        action = chance.randrange(6)
        if action == 0:
            made = slots.reserve(chance.choice(peers), chance.choice("xyz"), now)
            places += [made] if isinstance(made, Place) else []
        elif action == 1 and places:
            slots.release(places.pop(chance.randrange(len(places))))
        elif action == 2 and places:
            renewed = slots.renew(places.pop(), now)
            places += [renewed] if isinstance(renewed, Place) else []
        elif action == 3 and circuits:
            slots.end(circuits.pop(chance.randrange(len(circuits))))
        elif action == 4:
            slots.forget(chance.choice(peers))
        else:
            source, target = chance.sample(peers, 2)
            connected = slots.connect(source, target, now)
            circuits += [connected] if isinstance(connected, Circuit) else []
        ends = Counter(peer for one in circuits for peer in (one.source, one.target))
        assert list(slots.circuits) == sorted(circuits, key=lambda one: one.number)
        assert len(circuits) <= limits.circuits
        assert max(ends.values(), default=0) <= limits.circuits_per_peer
        assert len(slots.peers) <= limits.reservations
    for one in circuits:
        slots.end(one)
    place(slots, A, now=now + 10)
    assert slots.peers == (A,)
    for _ in range(MAX_PER_PAIR):
        circuit(slots, B, A, now + 10)


@pytest.mark.parametrize(
    "wrong",
    [
        {"reservations": 0},
        {"circuits": 0},
        {"circuits_per_peer": 65537},
        {"reservation_s": 9.0},
        {"reservation_s": float("nan")},
        {"bytes_per_s": 1000},
        {"circuit_bytes": -1},
        {"circuit_s": float("nan")},
    ],
)
def test_limits_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        RelayLimits(**wrong)  # type: ignore[arg-type]


def test_allowance_passes_no_more_than_its_rate_and_everyone_in_turn() -> None:
    allowance = Allowance(1024 * 1024)
    waiting = {"greedy": 0.0, "other": 0.0}
    passed: Counter[str] = Counter()
    last = 0.0
    while last < 10:
        name = min(waiting, key=lambda who: waiting[who])
        waiting[name] = last = allowance.take(PIECE_BYTES, waiting[name])
        passed[name] += PIECE_BYTES
    assert passed["greedy"] + passed["other"] <= 1024 * 1024 * 10.1
    assert passed["greedy"] == pytest.approx(passed["other"], rel=0.01)


def test_unused_allowance_is_not_saved_up() -> None:
    allowance = Allowance(1024 * 1024)
    at = [allowance.take(PIECE_BYTES, 1000.0) for _ in range(64)]
    assert at[0] == 1000.0
    assert at[-1] >= 1000.9


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.77", "192.0.2.0/24"),
        ("2001:db8:1:2::3", "2001:db8:1::/48"),
        ("fe80::1%eth0", "fe80::/48"),
        ("peer.example", "peer.example"),
    ],
)
def test_network_of_an_address(host: str, network: str) -> None:
    assert network_of((host, 4001)) == network
    assert network_of(None) == ""
