"""Multiaddrs that are wrong name the part that is."""

from __future__ import annotations

import pytest

from shardp2p.errors import ConfigError
from shardp2p.host.addresses import parse_address


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
