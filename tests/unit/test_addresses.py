"""Multiaddrs that are wrong name the part that is."""

from __future__ import annotations

import pytest

from shardp2p.errors import ConfigError
from shardp2p.host.addresses import CircuitAddress, parse_address, parse_tcp_address

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
