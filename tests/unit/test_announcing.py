"""Which addresses leave a machine, and which of a peer's are dialled, as tables."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardp2p.host.addresses import CircuitAddress, TcpAddress, parse_address
from shardp2p.host.announcing import (
    MAX_ANNOUNCED,
    Interface,
    Situation,
    Standing,
    announced,
    dialable_from,
    is_same_home,
    standing_of,
)
from shardp2p.host.ip_scopes import scope_of
from shardp2p.identity.keys import Identity

PEER = Identity.from_seed(b"a" * 32).peer_id
RELAY = Identity.from_seed(b"r" * 32).peer_id
OTHER_RELAY = Identity.from_seed(b"o" * 32).peer_id
ANYWHERE = (TcpAddress("ip4", "0.0.0.0", 4001), TcpAddress("ip6", "::", 4001))
LO = (Interface("lo", ip_address("127.0.0.1"), 8), Interface("lo", ip_address("::1"), 128))
HOME = (
    *LO,
    Interface("wlan0", ip_address("192.168.1.5"), 24),
    Interface("wlan0", ip_address("fe80::5"), 64),
    Interface("docker0", ip_address("172.17.0.1"), 16),
    Interface("br-0123456789ab", ip_address("172.18.0.1"), 16),
    Interface("virbr0", ip_address("192.168.122.1"), 24),
    Interface("veth1a2b3c", ip_address("169.254.7.7"), 16),
)
WAN = ip_address("45.45.0.7")
CIRCUIT = CircuitAddress(TcpAddress("ip4", "45.45.0.99", 4001, RELAY))


def told(*, sockets: tuple[TcpAddress, ...] = ANYWHERE, **situation: object) -> list[str]:
    """What is announced, without our id."""
    return [text.removesuffix(f"/p2p/{PEER}") for text in announced(PEER, Situation(sockets, **situation))]  # type: ignore[arg-type]


def addresses(*texts: str) -> list[TcpAddress | CircuitAddress]:
    return [parse_address(text) for text in texts]


def dialled(own: Standing, *texts: str) -> list[str]:
    return [str(address) for address in dialable_from(own, addresses(*texts))]


def at_home(seen_as: str | None = "45.45.0.7", network: str = "192.168.1.0/24") -> Standing:
    seen = frozenset() if seen_as is None else frozenset({ip_address(seen_as)})
    return Standing(seen, (ip_network(network),))


@pytest.mark.parametrize(
    ("text", "scope"),
    [
        ("8.8.8.8", "public"), ("2a00:1450::1", "public"), ("45.45.0.7", "public"),
        ("10.1.2.3", "private"), ("172.31.255.255", "private"), ("172.17.0.1", "private"), ("192.168.1.1", "private"),
        ("100.64.0.1", "private"), ("100.127.255.255", "private"), ("fd00::1", "private"), ("fc00::1", "private"),
        ("127.0.0.1", "loopback"), ("127.255.0.1", "loopback"), ("::1", "loopback"),
        ("0.0.0.0", "none"), ("::", "none"), ("169.254.1.1", "none"), ("fe80::1", "none"), ("224.0.0.1", "none"),
        ("ff02::1", "none"), ("255.255.255.255", "none"), ("240.0.0.1", "none"), ("192.0.2.1", "none"),
        ("2001:db8::1", "none"), ("100.128.0.1", "public"), ("172.32.0.1", "public"), ("::ffff:10.0.0.1", "none"),
        ("2a00:1450:1:2:3:4:5:6", "public"), ("fdff::1", "private"), ("febf::1", "none"), ("fec0::1", "none"),
        ("::ffff:8.8.8.8", "none"), ("2002:808:808::1", "none"), ("2001:0:1::1", "none"), ("3fff::1", "none"),
        ("ff0e::1", "none"), ("100::1", "none"),
    ],
)  # fmt: skip
def test_from_where_an_address_can_be_dialled(text: str, scope: str) -> None:
    assert scope_of(ip_address(text)) == scope


def test_containers_loopback_and_link_local_addresses_leave_no_trace() -> None:
    assert told(interfaces=HOME) == ["/ip4/192.168.1.5/tcp/4001"]
    assert standing_of(Situation(ANYWHERE, HOME)).networks == (ip_network("192.168.1.0/24"),)


@pytest.mark.parametrize("name", ["docker0", "docker_gwbridge", "br-0123456789ab", "veth12", "virbr0", "vmnet8"])
def test_an_interface_of_containers_is_known_by_name_and_range(name: str) -> None:
    assert Interface(name, ip_address("172.17.0.1"), 16).is_of_containers
    assert Interface(name, ip_address("fd00::1"), 64).is_of_containers
    assert not Interface(name, ip_address("45.45.0.7"), 24).is_of_containers


@pytest.mark.parametrize("name", ["eth0", "br-lan", "br0", "wg0", "tailscale0"])
def test_a_network_of_containers_on_a_real_interface_is_just_private(name: str) -> None:
    interfaces = (*LO, Interface(name, ip_address("172.17.0.5"), 16))
    assert told(interfaces=interfaces, seen_as=frozenset({WAN})) == [
        "/ip4/172.17.0.5/tcp/4001",
        "/ip4/45.45.0.7/tcp/0",
    ]


def test_a_private_address_goes_with_the_public_one_that_is_shared() -> None:
    closed = frozenset({TcpAddress("ip4", "45.45.0.7", 4001)})
    for opened, public in (((), []), ((TcpAddress("ip4", "45.45.0.7", 4001),), [])):
        found = told(interfaces=HOME, seen_as=frozenset({WAN}), opened=opened, closed=closed)
        assert found == [*public, "/ip4/192.168.1.5/tcp/4001", "/ip4/45.45.0.7/tcp/0"]


def test_a_public_address_that_works_needs_no_second_mention() -> None:
    opened = (TcpAddress("ip4", "45.45.0.7", 4001),)
    assert told(interfaces=HOME, seen_as=frozenset({WAN}), opened=opened) == [
        "/ip4/45.45.0.7/tcp/4001",
        "/ip4/192.168.1.5/tcp/4001",
    ]


def test_a_public_address_of_our_own_is_told_until_others_fail_there() -> None:
    interfaces = (*LO, Interface("eth0", WAN, 24))
    assert told(interfaces=interfaces) == ["/ip4/45.45.0.7/tcp/4001"]
    closed = frozenset({TcpAddress("ip4", "45.45.0.7", 4001)})
    assert told(interfaces=interfaces, closed=closed) == ["/ip4/45.45.0.7/tcp/0"]


def test_what_a_carrier_gives_is_not_public() -> None:
    assert told(interfaces=(Interface("wwan0", ip_address("100.64.3.4"), 30),)) == ["/ip4/100.64.3.4/tcp/4001"]
    assert standing_of(Situation(ANYWHERE, (Interface("wwan0", ip_address("100.64.3.4"), 30),))).seen_as == frozenset()


def test_ipv6_alike() -> None:
    interfaces = (
        *LO,
        Interface("eth0", ip_address("2a00:1450:1:2::5"), 64),
        Interface("eth0", ip_address("fd00::5"), 64),
        Interface("docker0", ip_address("fd01::1"), 64),
    )
    assert told(interfaces=interfaces) == ["/ip6/2a00:1450:1:2::5/tcp/4001", "/ip6/fd00::5/tcp/4001"]
    closed = frozenset({TcpAddress("ip6", "2a00:1450:1:2::5", 4001)})
    assert told(interfaces=interfaces, closed=closed) == ["/ip6/fd00::5/tcp/4001", "/ip6/2a00:1450:1:2::5/tcp/0"]


def test_who_listens_for_one_version_of_ip_tells_that_alone() -> None:
    both = (Interface("eth0", WAN, 24), Interface("eth0", ip_address("2a00:1450:1:2::5"), 64))
    for socket, at, other in (
        (ANYWHERE[0], "/ip4/45.45.0.7/tcp/4001", "/ip6/2a00:1450:1:2::5/tcp/0"),
        (ANYWHERE[1], "/ip6/2a00:1450:1:2::5/tcp/4001", "/ip4/45.45.0.7/tcp/0"),
    ):
        assert told(sockets=(socket,), interfaces=both) == [at, other]  # the other says whose home it is
    one = (TcpAddress("ip6", "2a00:1450:1:2::5", 4001),)
    assert told(sockets=one, interfaces=both[1:]) == ["/ip6/2a00:1450:1:2::5/tcp/4001"]
    link_local = (TcpAddress("ip6", "fe80::5", 4001),)
    assert told(sockets=link_local, interfaces=both) == []


def test_the_addresses_that_a_machine_changes_within_its_ipv6_network_are_its_own() -> None:
    stable, wrong = TcpAddress("ip6", "2a00:1450:1:2::5", 4001), TcpAddress("ip6", "2a00:1450:1:3::5", 4001)
    temporary = ip_address("2a00:1450:1:2:d1ce::9")
    found = told(interfaces=LO, declared=(wrong, stable), seen_as=frozenset({temporary}))
    assert found == [str(stable), str(wrong)]  # under the other, nobody sees us; and neither is a marker needed
    assert told(interfaces=LO, declared=(wrong,), seen_as=frozenset({temporary}))[-1] == f"/ip6/{temporary}/tcp/0"


def test_who_listens_on_loopback_alone_tells_that() -> None:
    on_loopback = (TcpAddress("ip4", "127.0.0.1", 4001),)
    assert told(sockets=on_loopback, interfaces=HOME) == ["/ip4/127.0.0.1/tcp/4001"]
    assert standing_of(Situation(on_loopback, HOME)).is_on_loopback
    here = CircuitAddress(TcpAddress("ip4", "127.0.0.1", 4002, RELAY))
    assert told(sockets=on_loopback, interfaces=HOME, circuits=(here,)) == [str(here), "/ip4/127.0.0.1/tcp/4001"]
    assert told(sockets=on_loopback, interfaces=HOME, circuits=(CIRCUIT,), seen_as=frozenset({WAN})) == [
        str(CIRCUIT),
        "/ip4/45.45.0.7/tcp/0",
    ]


def test_a_machine_without_a_network_has_loopback_alone() -> None:
    assert told(interfaces=LO) == ["/ip4/127.0.0.1/tcp/4001", "/ip6/::1/tcp/4001"]


def test_who_only_dials_tells_nothing() -> None:
    assert told(sockets=(), interfaces=HOME, seen_as=frozenset({WAN})) == []


def test_what_the_user_declares_comes_first_whatever_it_is() -> None:
    declared = (TcpAddress("dns4", "home.example.org", 4001), TcpAddress("ip4", "10.8.0.3", 4001))
    found = told(interfaces=HOME, declared=declared, circuits=(CIRCUIT,))
    assert found == [*map(str, declared), str(CIRCUIT), "/ip4/192.168.1.5/tcp/4001"]


def test_a_declared_address_under_which_nobody_sees_us_is_told_last() -> None:
    wrong, forwarded = TcpAddress("ip4", "45.45.0.200", 4001), TcpAddress("ip4", str(WAN), 4001)
    named = TcpAddress("dns4", "home.example.org", 4001)
    found = told(
        interfaces=HOME, declared=(wrong, named), opened=(forwarded,), seen_as=frozenset({WAN}), circuits=(CIRCUIT,)
    )
    assert found[:3] == [str(named), str(forwarded), str(wrong)]
    assert told(interfaces=HOME, declared=(wrong,))[0] == str(wrong)


def test_a_declared_address_where_others_failed_is_not_told() -> None:
    forwarded, other = TcpAddress("ip4", str(WAN), 4001), TcpAddress("ip4", str(WAN), 443)
    situation = {"interfaces": HOME, "seen_as": frozenset({WAN}), "closed": frozenset({forwarded})}
    assert told(declared=(forwarded, other), **situation) == [str(other), "/ip4/192.168.1.5/tcp/4001"]
    assert told(declared=(forwarded,), **situation) == ["/ip4/192.168.1.5/tcp/4001", f"/ip4/{WAN}/tcp/0"]


def test_circuits_lead_over_two_relays_and_into_no_home_of_a_relay() -> None:
    inside = CircuitAddress(TcpAddress("ip4", "192.168.2.2", 4001, RELAY))
    again = CircuitAddress(TcpAddress("ip6", "2a00::99", 4001, RELAY))
    other = CircuitAddress(TcpAddress("ip4", "45.45.0.98", 4001, OTHER_RELAY))
    assert told(interfaces=LO, circuits=(inside, CIRCUIT, again, other)) == [str(CIRCUIT), str(other)]
    assert told(interfaces=LO, circuits=(inside,)) == [str(inside)]


def test_there_are_never_more_than_others_keep() -> None:
    interfaces = tuple(Interface(f"eth{n}", ip_address(f"192.168.{n}.1"), 24) for n in range(30))
    interfaces += tuple(Interface(f"wan{n}", ip_address(f"2a00:0:{n}::1"), 64) for n in range(30))
    found = told(interfaces=interfaces, seen_as=frozenset({WAN}), circuits=(CIRCUIT,) * 2)
    assert len(found) == MAX_ANNOUNCED
    assert found.count(str(CIRCUIT)) == 2
    assert found[-1] == "/ip4/45.45.0.7/tcp/0"


LAN = "/ip4/192.168.1.5/tcp/4001"
PUBLIC = "/ip4/45.45.0.7/tcp/4001"
MARKER = "/ip4/45.45.0.7/tcp/0"
RELAYED = f"/ip4/45.45.0.99/tcp/4001/p2p/{RELAY}/p2p-circuit"
RELAYED_HERE = f"/ip4/127.0.0.1/tcp/4002/p2p/{RELAY}/p2p-circuit"
LOOPBACK = "/ip4/127.0.0.1/tcp/4001"


@pytest.mark.parametrize(
    ("own", "given_texts", "expected"),
    [
        # The same home: the LAN first, whatever the subnet; then the internet (hairpin); then relays.
        (at_home(), (PUBLIC, RELAYED, LAN), (LAN, PUBLIC, RELAYED)),
        (at_home(), (RELAYED, LAN, MARKER), (LAN, RELAYED)),
        (at_home(network="192.168.7.0/24"), (RELAYED, LAN, MARKER), (LAN, RELAYED)),
        # Another home, though its network has the same numbers.
        (at_home("45.45.0.8"), (PUBLIC, RELAYED, LAN), (PUBLIC, RELAYED)),
        (at_home("45.45.0.8"), (RELAYED, LAN, MARKER), (RELAYED,)),
        (at_home("45.45.0.8"), (LAN, MARKER), ()),
        # Nobody told us yet under which address we are seen: the LAN may be ours, so it comes after the internet.
        (at_home(None), (PUBLIC, RELAYED, LAN), (PUBLIC, LAN, RELAYED)),
        (at_home(None, "10.0.0.0/8"), (PUBLIC, RELAYED, LAN), (PUBLIC, RELAYED)),
        # A swarm that nobody outside has seen: our own network first, then those that may be routed.
        (at_home(None), ("/ip4/10.9.0.1/tcp/1", LAN), (LAN, "/ip4/10.9.0.1/tcp/1")),
        (at_home(), (LAN, RELAYED), (LAN, RELAYED)),
        (at_home(network="10.0.0.0/8"), (LAN, RELAYED), (RELAYED,)),
        # All there is, as a user may name it.
        (at_home(network="10.0.0.0/8"), (LAN,), (LAN,)),
        (at_home(), (LOOPBACK,), (LOOPBACK,)),
        (at_home(), (LOOPBACK, PUBLIC), (PUBLIC,)),
        (at_home(), (RELAYED_HERE, LOOPBACK), (LOOPBACK, RELAYED_HERE)),
        (at_home(), (RELAYED, LOOPBACK), (RELAYED,)),
        (Standing(is_on_loopback=True), (PUBLIC, LOOPBACK), (LOOPBACK, PUBLIC)),
        # What can be dialled from nowhere.
        (at_home(), ("/ip4/169.254.0.1/tcp/1", "/ip6/fe80::1/tcp/1", "/ip4/0.0.0.0/tcp/1", PUBLIC), (PUBLIC,)),
        (at_home(), ("/ip4/169.254.0.1/tcp/1",), ()),
        # Names and both versions of IP.
        (at_home(), ("/dns4/example.org/tcp/1", PUBLIC), ("/dns4/example.org/tcp/1", PUBLIC)),
        (at_home("45.45.0.8"), ("/ip6/2a00:1450::1/tcp/1", PUBLIC), (PUBLIC, "/ip6/2a00:1450::1/tcp/1")),
        # Unique local addresses are private, and those of another home are not dialled.
        (at_home(network="fd00:1::/64"), ("/ip6/fd00:1::9/tcp/1", MARKER), ("/ip6/fd00:1::9/tcp/1",)),
        (at_home("45.45.0.8"), ("/ip6/fd00:1::9/tcp/1", MARKER, RELAYED), (RELAYED,)),
        (at_home("45.45.0.8"), ("/ip6/fe80::1/tcp/1", "/ip6/::/tcp/1", "/ip6/ff02::1/tcp/1", RELAYED), (RELAYED,)),
        (Standing(is_on_loopback=True), ("/ip6/::1/tcp/1", PUBLIC), ("/ip6/::1/tcp/1", PUBLIC)),
        (at_home(), ("/dns6/example.org/tcp/1", "/ip6/2a00:1450::1/tcp/0"), ("/dns6/example.org/tcp/1",)),
        # One IPv6 home has many addresses.
        (
            Standing(frozenset({ip_address("2a00:1450:1:2::5")}), ()),
            ("/ip6/2a00:1450:1:2::9/tcp/1", "/ip4/192.168.1.9/tcp/1"),
            ("/ip4/192.168.1.9/tcp/1", "/ip6/2a00:1450:1:2::9/tcp/1"),
        ),
    ],
)  # fmt: skip
def test_what_is_dialled_from_where(own: Standing, given_texts: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert tuple(dialled(own, *given_texts)) == expected


def test_who_shares_a_home() -> None:
    assert is_same_home(at_home(), addresses(LAN, MARKER))
    assert is_same_home(at_home(), addresses(PUBLIC))
    assert not is_same_home(at_home("45.45.0.8"), addresses(LAN, PUBLIC))
    assert not is_same_home(at_home(), addresses(LAN))
    assert not is_same_home(at_home(), addresses(RELAYED))


IPS = st.one_of(st.ip_addresses(), st.sampled_from([one.address for one in HOME]), st.just(WAN))
INTERFACES = st.lists(
    st.builds(Interface, st.sampled_from(["eth0", "docker0", "veth1", "lo"]), IPS, st.integers(8, 32)), max_size=12
).map(tuple)


@given(INTERFACES, st.frozensets(IPS.filter(lambda ip: scope_of(ip) == "public"), max_size=4), st.integers(0, 2**32))
def test_whatever_the_interfaces_nothing_leaves_that_cannot_work_elsewhere(
    interfaces: tuple[Interface, ...], seen_as: frozenset[object], seed: int
) -> None:
    situation = Situation(ANYWHERE, interfaces, seen_as)  # type: ignore[arg-type]
    found = [parse_address(text) for text in announced(PEER, situation)]
    assert len(found) <= MAX_ANNOUNCED
    hosts = [ip_address(address.host) for address in found if isinstance(address, TcpAddress)]
    scopes = {scope_of(ip) for ip in hosts}
    assert "none" not in scopes
    assert "loopback" not in scopes or scopes == {"loopback"}
    of_containers = {one.address for one in interfaces if one.is_of_containers}
    assert not (set(hosts) & of_containers - {one.address for one in interfaces if not one.is_of_containers})
    shuffled = list(found)
    Random(seed).shuffle(shuffled)
    own = standing_of(situation)
    assert set(dialable_from(own, shuffled)) <= set(found)
