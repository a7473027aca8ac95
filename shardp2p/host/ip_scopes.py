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
_NOWHERE: Final[tuple[IpNetwork, ...]] = tuple(
    ipaddress.ip_network(text) for text in ("fec0::/10", "2002::/16", "3fff::/20", "::ffff:0:0/96")
)
"""Given up (RFC 3879, RFC 7526), for documentation (RFC 9637), and IPv4 in another form: not all Pythons know."""
_HOME_BITS: Final = 64
"""A home has an IPv6 network, and each machine many addresses in it; of IPv4 it has one address."""


def home_of(ip: IpAddress) -> IpNetwork:
    """The addresses that one home has beside the public address `ip`."""
    return ipaddress.ip_network((ip, 32 if ip.version == 4 else _HOME_BITS), strict=False)


def place_of(host: str) -> str:
    """The home of an IP address, with or without a zone, as a text; a name is a place of its own."""
    try:
        return str(home_of(ipaddress.ip_address(host.partition("%")[0])))
    except ValueError:
        return host


def scope_of(ip: IpAddress) -> Scope:
    """From where `ip` can be dialled."""
    if ip.is_loopback:
        return "loopback"
    if _is_in(ip, _PRIVATE):
        return "private"
    is_special = ip.is_unspecified or ip.is_multicast or ip.is_link_local or ip.is_reserved
    return "public" if ip.is_global and not is_special and not _is_in(ip, _NOWHERE) else "none"


def _is_in(ip: IpAddress, networks: tuple[IpNetwork, ...]) -> bool:
    return any(ip.version == network.version and ip in network for network in networks)
