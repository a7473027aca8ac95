from __future__ import annotations

import contextlib
import json
from ipaddress import IPv4Address
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardp2p.errors import ConfigError
from shardp2p.lab.network.addressing import plan_addresses
from shardp2p.lab.network.catalog import read_network, shipped_networks
from shardp2p.lab.network.commands import entering, host_up, kernel_router_up, marked, readdress
from shardp2p.lab.network.description import Description
from shardp2p.lab.network.reading import parse_description
from shardp2p.lab.network.writing import description_to_json

HOMES: dict[str, Any] = {
    "hosts": {"relay": {}, "alice": {"behind": "home"}, "bob": {"behind": "inner"}},
    "routers": {"home": {"nat": "cone"}, "carrier": {}, "inner": {"nat": "symmetric", "behind": "carrier"}},
}


def described(**more: Any) -> Description:
    return parse_description(json.dumps(HOMES | more))


def test_a_host_is_reached_by_its_outermost_router() -> None:
    description = described()
    assert [description.site(name) for name in ("relay", "alice", "bob")] == ["relay", "home", "carrier"]
    assert list(description.hosts_at("carrier")) == ["bob"]
    assert list(description.hosts_at("relay")) == ["relay"]


def test_round_trips_are_halved_and_belong_to_sites() -> None:
    description = described(rtt_ms={"alice-relay": 60, "bob-alice": 100}, default_rtt_ms=10)
    assert description.one_way_ms["home", "relay"] == description.one_way_ms["relay", "home"] == 30
    assert [description.rtt_ms(*pair) for pair in (("alice", "relay"), ("alice", "bob"), ("bob", "relay"))] == [
        60,
        100,
        10,
    ]


def test_a_directed_delay_wins_over_half_a_round_trip() -> None:
    description = described(rtt_ms={"alice-relay": 60}, one_way_ms={"alice>relay": 50})
    assert description.rtt_ms("relay", "alice") == 80


def test_a_link_says_only_what_is_special_about_it() -> None:
    description = described(mbit_s=20, loss=0.01, links={"home": {"up_mbit_s": 5, "mtu": 1280}})
    link = description.link_of("home")
    assert (link.up_mbit_s, link.down_mbit_s, link.loss, link.mtu) == (5, 20, 0.01, 1280)
    assert description.link_of("relay").up_mbit_s == 20


@pytest.mark.parametrize(
    ("more", "names"),
    [
        ({"hosts": {}}, "no hosts"),
        ({"hosts": []}, "hosts is []"),
        ({"hosts": {"Alice": {}}}, '"Alice" is no name'),
        ({"hosts": {"a": {"behind": "nowhere"}}}, "a is behind nowhere"),
        ({"hosts": {"a": {"beside": "home"}}}, "'beside' is not known"),
        ({"hosts": {"a": 1}}, "host a is 1"),
        ({"hosts": {"home": {}}}, "home is both"),
        ({"hosts": {f"h{at}": {} for at in range(126)}}, "129 hosts and routers"),
        ({"routers": {"home": {"nat": "conical"}}}, 'nat is "conical"; it must be one of open,'),
        ({"routers": {"home": {"nat": ["cone"]}}}, 'nat is ["cone"]'),
        ({"routers": {"home": {"behind": "home"}}}, "home is behind itself"),
        ({"routers": {"home": {"unsolicited": "shout"}}}, "one of drop, reset"),
        ({"routers": {"home": {"lan": "192.168.1.5/24"}}}, "like 192.168.1.0/24"),
        ({"routers": {"home": {"lan": "192.168.0.0/16"}}}, "like 192.168.1.0/24"),
        ({"routers": {"home": {"lan": "45.45.0.0/24"}}}, "a private IPv4 network"),
        ({"routers": {"home": {"lan": "127.0.0.0/24"}}}, "a private IPv4 network"),
        ({"routers": {"home": {"allow_out": [0]}}}, "list of TCP ports"),
        ({"routers": {"home": {"mapping_timeout_s": True}}}, "mapping_timeout_s is true"),
        ({"routers": {"home": {"upnp": True, "nat": "symmetric"}}}, "upnp goes with nat cone"),
        ({"routers": {"home": {"upnp": True, "hairpin": True}}}, "upnp goes without hairpin"),
        ({"routers": {"home": {"nat": "open", "lan": "10.0.0.0/24"}}}, "leave out lan"),
        ({"loss": 1.5}, "loss is 1.5; it must be a number from 0 to 1"),
        ({"mbit_s": 0}, "mbit_s is 0"),
        ({"mtu": 100}, "mtu is 100"),
        ({"jitter_ms": "6"}, 'jitter_ms is "6"'),
        ({"reorder": 1}, "reorder is 1"),
        ({"rtt_ms": {"alice-nobody": 1}}, "'alice-nobody'"),
        ({"rtt_ms": {"alice-relay": -1}}, "alice-relay is -1"),
        ({"rtt_ms": {"alice-relay": 1, "relay-alice": 2}}, "another delay already"),
        ({"one_way_ms": {"alice-relay": 1}}, "a > between"),
        ({"links": {"alice": {}}}, "behind home"),
        ({"links": {"nobody": {}}}, "neither a host nor a router"),
        ({"peers": ["x", "x"]}, "peers has a name twice"),
        ({"speed": 1}, "'speed' is not known here"),
    ],
)
def test_a_bad_value_is_named_in_one_line(more: dict[str, Any], names: str) -> None:
    if "routers" in more:
        more = more | {"hosts": {"alice": {"behind": "home"}}}
    with pytest.raises(ConfigError) as raised:
        parse_description(json.dumps(HOMES | more))
    assert names in raised.value.message
    assert "\n" not in raised.value.message


def test_neighbours_have_a_lan_and_no_path() -> None:
    hosts = {"alice": {"behind": "home"}, "bob": {"behind": "home"}}
    with pytest.raises(ConfigError, match="lan_rtt_ms of home"):
        parse_description(json.dumps({"hosts": hosts, "routers": {"home": {}}, "rtt_ms": {"alice-bob": 1}}))
    description = parse_description(json.dumps({"hosts": hosts, "routers": {"home": {"lan_rtt_ms": 2}}}))
    assert description.rtt_ms("alice", "bob") == 2


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"hosts": NaN}', "[" * 100_000, " " * 70_000, b"\xff\xfe", '"\ud800"']
)
def test_what_is_no_description_is_refused(text: str | bytes) -> None:
    with pytest.raises(ConfigError):
        parse_description(text)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=40)
@given(st.dictionaries(st.sampled_from(["hosts", "routers", "links", "rtt_ms", "peers", "mtu", "loss"]), values))
def test_any_json_is_a_description_or_a_config_error(value: dict[str, Any]) -> None:
    with contextlib.suppress(ConfigError):
        parse_description(json.dumps(value))


@pytest.mark.parametrize("name", shipped_networks())
def test_a_shipped_network_is_the_same_once_written_and_read(name: str) -> None:
    description = read_network(name)
    assert description.about
    assert parse_description(description_to_json(description)) == description


def test_an_unknown_network_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match="lab list"):
        read_network("no-such-network")


def test_a_file_without_an_end_is_not_read_to_it() -> None:
    with pytest.raises(ConfigError, match="too many for the description"):
        read_network("/dev/zero")


@pytest.mark.parametrize("name", shipped_networks())
def test_addresses_differ_and_public_ones_could_be_announced(name: str) -> None:
    description = read_network(name)
    addresses = plan_addresses(description)
    assert len(set(addresses.outside.values())) == len(addresses.outside)
    for node, address in addresses.outside.items():
        behind = description.behind(node)
        is_public = behind is None or not description.routers[behind].is_translating
        assert address.is_global == is_public
    assert plan_addresses(description) == addresses


def test_a_carrier_has_shared_addresses_inside_and_a_home_private_ones() -> None:
    addresses = plan_addresses(described())
    assert addresses.outside["inner"] == IPv4Address("100.64.2.2")
    assert addresses.outside["alice"] == IPv4Address("192.168.1.2")
    assert addresses.gateway("home") == IPv4Address("192.168.1.1")


def test_two_homes_may_have_the_same_addresses_inside() -> None:
    routers = {"one": {"lan": "192.168.1.0/24"}, "two": {"lan": "192.168.1.0/24"}}
    hosts = {"a": {"behind": "one"}, "b": {"behind": "two"}}
    addresses = plan_addresses(parse_description(json.dumps({"hosts": hosts, "routers": routers})))
    assert addresses.outside["a"] == addresses.outside["b"] == IPv4Address("192.168.1.2")


def test_a_host_behind_a_router_is_set_up_with_its_gateway() -> None:
    addresses = plan_addresses(described())
    assert host_up(addresses.outside["alice"], addresses.lans["home"], 1500, has_docker=True) == [
        "link set lo up",
        "address add 192.168.1.2/24 dev eth0",
        "link set eth0 mtu 1500 txqueuelen 2000 up",
        "route add default via 192.168.1.1 dev eth0",
        "link add docker0 type bridge",
        "address add 172.17.0.1/16 dev docker0",
        "link set docker0 up",
    ]


def test_a_public_host_is_alone_in_its_network() -> None:
    addresses = plan_addresses(described())
    lines = host_up(addresses.outside["relay"], None, 1280, has_docker=False)
    assert lines[1:] == [
        "address add 45.45.0.10/32 dev eth0",
        "link set eth0 mtu 1280 txqueuelen 2000 up",
        "route add default dev eth0",
    ]


def test_a_kernels_router_has_two_sides() -> None:
    addresses = plan_addresses(described())
    lines = kernel_router_up(addresses.outside["inner"], addresses.lans["carrier"], addresses.lans["inner"], 1500)
    assert "address add 192.168.3.1/24 dev lan0" in lines
    assert "address add 100.64.2.2/24 dev wan0" in lines
    assert lines[-1] == "route add default via 100.64.2.1 dev wan0"


def test_a_new_address_takes_the_place_of_the_old_one() -> None:
    assert readdress(IPv4Address("45.45.0.10"), IPv4Address("45.45.0.99"), None) == [
        "address del 45.45.0.10/32 dev eth0",
        "address add 45.45.0.99/32 dev eth0",
        "route replace default dev eth0",
    ]


def test_a_command_enters_the_user_namespace_first_and_carries_the_mark() -> None:
    assert entering(["/proc/7/fd/3"]) == ["nsenter", "--net=/proc/7/fd/3", "--"]
    assert entering(["/proc/7/ns/user", "/proc/7/fd/3"]) == [
        "nsenter",
        "--preserve-credentials",
        "--user=/proc/7/ns/user",
        "--net=/proc/7/fd/3",
        "--",
    ]
    assert marked("1-2-3", ["ls"]) == ["env", "SHARDP2P_LAB=1-2-3", "ls"]
