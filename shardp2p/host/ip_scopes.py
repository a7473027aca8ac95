"""From where an IP address can be dialled. Pure."""

from __future__ import annotations

import ipaddress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final, Literal

IpAddress = IPv4Address | IPv6Address
IpNetwork = IPv4Network | IPv6Network
Scope = Literal["public", "private", "loopback", "none"]
"""From where an address can be dialled: anywhere, its own network, its own machine, nowhere."""

_PRIVATE: Final[tuple[IpNetwork, ...]] = tuple(
    ipaddress.ip_network(text)
    for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
)
"""RFC 1918, RFC 6598 (inside of a carrier: no more public than a home network) and RFC 4193."""


def scope_of(ip: IpAddress) -> Scope:
    """From where `ip` can be dialled."""
    if ip.is_loopback:
        return "loopback"
    if any(ip.version == network.version and ip in network for network in _PRIVATE):
        return "private"
    is_special = ip.is_unspecified or ip.is_multicast or ip.is_link_local or ip.is_reserved
    return "public" if ip.is_global and not is_special else "none"
