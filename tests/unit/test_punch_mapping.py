from __future__ import annotations

import random

import pytest

from shardp2p.host.addresses import Endpoint
from shardp2p.host.punch.dialable import MAX_HOSTS, dialable, offerable
from shardp2p.host.punch.mapping import MAX_OBSERVERS, MAX_PORTS, OBSERVED_S, Mapping

ONE: Endpoint = ("45.45.1.1", 4001)
OTHER: Endpoint = ("45.45.1.2", 4001)
HOME = "45.45.0.7"


def test_nothing_is_known_before_anybody_is_asked() -> None:
    mapping = Mapping()
    assert mapping.kind(0.0) == "unknown"
    assert mapping.current(0.0) == ()
    assert mapping.advertised(0.0) == ()


def test_one_observer_cannot_tell_on_what_a_mapping_depends() -> None:
    mapping = Mapping()
    mapping.observe(4001, ONE, (HOME, 50000), 0.0)
    mapping.observe(4001, (ONE[0], 5), (HOME, 50000), 0.0)
    assert mapping.kind(0.0) == "unknown"
    assert mapping.current(0.0) == ((HOME, 50000),)


def test_two_that_see_the_same_say_independent_and_otherwise_dependent() -> None:
    mapping = Mapping()
    mapping.observe(4001, ONE, (HOME, 50000), 0.0)
    mapping.observe(4001, OTHER, (HOME, 50000), 1.0)
    assert mapping.kind(1.0) == "independent"
    mapping.observe(4001, OTHER, (HOME, 50001), 2.0)
    assert mapping.kind(2.0) == "dependent"


def test_the_port_we_listen_on_is_told_as_well_since_many_routers_preserve_it() -> None:
    mapping = Mapping()
    mapping.observe(4001, ONE, (HOME, 50000), 0.0)
    assert mapping.advertised(0.0) == ((HOME, 50000), (HOME, 4001))


def test_what_most_see_comes_first_then_what_was_seen_last() -> None:
    mapping = Mapping()
    mapping.observe(4001, ONE, (HOME, 1), 0.0)
    mapping.observe(4001, OTHER, (HOME, 2), 1.0)
    assert mapping.current(1.0) == ((HOME, 2), (HOME, 1))
    mapping.observe(4001, ("45.45.1.3", 1), (HOME, 1), 0.5)
    assert mapping.current(1.0) == ((HOME, 1), (HOME, 2))


def test_observations_expire_and_go_with_their_observer() -> None:
    mapping = Mapping()
    mapping.observe(4001, ONE, (HOME, 1), 0.0)
    mapping.observe(4001, OTHER, (HOME, 2), 10.0)
    assert mapping.kind(OBSERVED_S) == "dependent"
    assert mapping.kind(OBSERVED_S + 1) == "unknown"
    assert mapping.current(OBSERVED_S + 1) == ((HOME, 2),)
    mapping.forget(OTHER)
    assert mapping.current(OBSERVED_S + 1) == ()


def test_a_new_mapping_after_a_reboot_is_no_sign_of_dependence_once_both_said_so() -> None:
    mapping = Mapping()
    for observer in (ONE, OTHER):
        mapping.observe(4001, observer, (HOME, 1), 0.0)
    mapping.observe(4001, ONE, (HOME, 2), 5.0)
    assert mapping.kind(5.0) == "dependent"
    mapping.observe(4001, OTHER, (HOME, 2), 6.0)
    assert mapping.kind(6.0) == "independent"


def test_both_families_of_one_port_are_told_apart() -> None:
    mapping = Mapping()
    mapping.observe(4001, ONE, (HOME, 4001), 0.0)
    mapping.observe(4001, OTHER, (HOME, 4001), 0.0)
    mapping.observe(4001, ("2a00:1450::1", 1), ("2a00:1450::7", 4001), 0.0)
    assert mapping.kind(0.0) == "independent"
    assert set(mapping.advertised(0.0)) == {(HOME, 4001), ("2a00:1450::7", 4001)}


@pytest.mark.parametrize(
    ("observer", "seen"),
    [
        (ONE, ("127.0.0.1", 22)),
        (ONE, ("0.0.0.0", 1)),
        (ONE, ("224.0.0.1", 1)),
        (ONE, ("169.254.1.1", 1)),
        (ONE, ("2a00:1450::7", 1)),
        (ONE, (HOME, 0)),
        (("127.0.0.1", 1), (HOME, 1)),
    ],
)
def test_what_cannot_be_is_not_believed(observer: Endpoint, seen: Endpoint) -> None:
    mapping = Mapping()
    assert not mapping.observe(4001, observer, seen, 0.0)
    assert mapping.current(0.0) == ()


def test_observers_and_ports_are_bounded() -> None:
    mapping = Mapping()
    chance = random.Random(1)
    for number in range(3000):
        port = chance.randrange(1, 40)
        mapping.observe(port, (f"45.45.{number % 200}.1", 1), (HOME, chance.randrange(1, 9)), number / 100)
        assert len(mapping._ports) <= MAX_PORTS
        assert all(len(observations) <= MAX_OBSERVERS for observations in mapping._ports.values())
        assert len(mapping.current(number / 100)) <= 8


SEEN: tuple[Endpoint, ...] = ((HOME, 50000),)
BOUND: tuple[Endpoint, ...] = (("192.168.1.2", 4001), ("127.0.0.1", 4001))


def test_public_addresses_are_dialled_and_nothing_that_leads_elsewhere() -> None:
    offered = (
        ("45.45.0.9", 4001),
        ("127.0.0.1", 22),
        ("0.0.0.0", 4001),
        ("10.0.0.1", 80),
        ("192.168.1.1", 80),
        ("100.64.0.1", 80),
        ("224.0.0.1", 80),
        ("169.254.169.254", 80),
        ("255.255.255.255", 80),
        ("::1", 80),
        ("fe80::1", 80),
        ("fc00::1", 80),
        ("45.45.0.9", 4001),
    )
    assert dialable(offered, SEEN, BOUND) == (("45.45.0.9", 4001),)


def test_private_addresses_are_dialled_of_who_shares_our_public_one() -> None:
    near = (HOME, 50001), ("192.168.1.3", 4001), ("127.0.0.1", 4001)
    assert dialable(near, SEEN, BOUND) == ((HOME, 50001), ("192.168.1.3", 4001))


def test_a_peer_cannot_send_us_to_many_machines() -> None:
    offered = tuple((f"45.45.1.{number}", port) for number in range(8) for port in (1, 2))
    assert dialable(offered, SEEN, BOUND) == offered[: 2 * MAX_HOSTS]


def test_we_are_never_dialled_ourselves() -> None:
    assert dialable((*SEEN, *BOUND), SEEN, BOUND) == ()


def test_where_others_see_us_at_a_private_or_loopback_address_such_are_dialled() -> None:
    assert dialable((("10.0.0.5", 1),), (("10.0.0.4", 1),), ()) == (("10.0.0.5", 1),)
    assert dialable((("127.0.0.3", 1), ("10.0.0.5", 1)), (("127.0.0.2", 1),), ()) == (("127.0.0.3", 1),)


def test_of_our_announced_addresses_those_are_offered_that_can_work() -> None:
    announced = ((HOME, 4001), ("192.168.1.2", 4001), ("172.17.0.1", 4001), ("127.0.0.1", 4001), ("45.45.0.7", 0))
    assert offerable(announced, SEEN) == ((HOME, 4001),)
    assert offerable(announced, (("192.168.1.2", 4001),)) == ((HOME, 4001), ("192.168.1.2", 4001), ("172.17.0.1", 4001))
