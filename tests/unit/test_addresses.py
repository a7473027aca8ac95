"""Multiaddrs that are wrong name the part that is."""

from __future__ import annotations

import pytest

from shardp2p.errors import ConfigError
from shardp2p.host.addresses import (
    CircuitAddress,
    dialable_addresses,
    parse_address,
    parse_listen_address,
    parse_peer_id,
    parse_tcp_address,
)

RELAY = "/ip4/192.0.2.7/tcp/4001/p2p/12D3KooWGfStEZ3chzxLMVK5gGPvZ2wxoSVHBQaZoBUqBGbMRuKx"
PEER = "12D3KooWRqLLcMX8hvXWcuVHUmYjWLUA1jnhUWfbXpCk5KV8hZ4e"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("nonsense", "does not begin with /"),
        ("/ip4/300.0.0.1/tcp/1", "'300.0.0.1' is not an IPv4 address"),
        ("/ip6/zz/tcp/1", "'zz' is not an IPv6 address"),
        ("/ip4/127.0.0.1/tcp/99999", "'99999' is not a port, 0 to 65535"),
        ("/ip4/127.0.0.1/tcp", "nothing follows /tcp"),
        ("/ip4/127.0.0.1/tcpp/1", "its part /tcpp/1 is wrong"),
        ("/ip4/127.0.0.1/tcp/1/p2p/12D3bad", "'12D3bad' is not a peer id"),
        ("/ip4/127.0.0.1/udp/1", "is not plain TCP"),
    ],
)
def test_wrong_part_is_named(text: str, part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        parse_address(text)


@pytest.mark.parametrize(
    ("text", "host", "shown"),
    [
        ("/ip6/2A00:1450:0:0::7/tcp/4001", "2a00:1450::7", "/ip6/2a00:1450::7/tcp/4001"),
        ("/ip6/::/tcp/0", "::", "/ip6/::/tcp/0"),
        ("/ip6/::1/tcp/4001", "::1", "/ip6/::1/tcp/4001"),
        ("/dns6/example.org/tcp/4001", "example.org", "/dns6/example.org/tcp/4001"),
    ],
)
def test_ipv6_is_kept_in_its_shortest_form(text: str, host: str, shown: str) -> None:
    address = parse_tcp_address(f"{text}/p2p/{PEER}")
    assert (address.host, address.peer, str(address)) == (host, PEER, f"{shown}/p2p/{PEER}")
    assert address.is_ipv6 == text.startswith("/ip6/")


def test_where_to_listen_is_an_address_of_either_version_and_no_zone() -> None:
    assert parse_listen_address("/ip6/::/tcp/4001").host == "::"
    with pytest.raises(ConfigError, match="give an IP address"):
        parse_listen_address("/dns6/example.org/tcp/4001")
    for text in ("/ip6zone/eth0/ip6/fe80::1/tcp/4001", "/ip6/fe80::1%eth0/tcp/4001"):
        with pytest.raises(ConfigError):
            parse_listen_address(text)


@pytest.mark.parametrize("host", ["2a00:1450::7", "::1", "fd00::5"])
def test_others_dial_the_very_address_that_is_bound(host: str) -> None:
    peer = parse_peer_id(PEER)
    assert dialable_addresses(host, 4001, peer) == (f"/ip6/{host}/tcp/4001/p2p/{PEER}",)
    assert not any("/ip6/fe80" in address or "%" in address for address in dialable_addresses("::", 4001, peer))


def test_long_text_is_not_repeated_in_full() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_address("/ip4/127.0.0.1/tcp/x" * 1000)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("peer", [None, PEER])
def test_circuit_names_the_relay_and_the_peer(peer: str | None) -> None:
    text = f"{RELAY}/p2p-circuit" + (f"/p2p/{peer}" if peer else "")
    address = parse_address(text)
    assert isinstance(address, CircuitAddress)
    assert (str(address), str(address.relay), address.relay_peer, address.peer) == (text, RELAY, RELAY[-52:], peer)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("/ip4/192.0.2.7/tcp/4001/p2p-circuit", "names no relay"),
        (f"{RELAY}/p2p-circuit/tcp/1", "something other than a peer"),
        (f"{RELAY}/p2p-circuit/p2p/12D3bad", "is no peer id"),
        (f"/p2p-circuit/p2p/{PEER}", "names no relay"),
        (f"{RELAY}/p2p-circuit/p2p/{PEER}/p2p-circuit", "is no peer id"),
    ],
)
def test_wrong_circuit_says_what_is_wrong(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse_address(text)


def test_where_only_tcp_will_do_a_circuit_is_refused() -> None:
    with pytest.raises(ConfigError, match="not plain TCP"):
        parse_tcp_address(f"{RELAY}/p2p-circuit/p2p/{PEER}")
