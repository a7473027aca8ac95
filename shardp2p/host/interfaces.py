"""The addresses of this machine's interfaces that are up."""

from __future__ import annotations

import ipaddress
import socket

import psutil

from shardp2p.host.announcing import Interface

_FAMILIES = (socket.AF_INET, socket.AF_INET6)


def read_interfaces() -> tuple[Interface, ...]:
    """Every IP address that this machine has now, by interface name and address: two calls differ if they do."""
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    found = [
        Interface(name, ipaddress.ip_address(one.address.partition("%")[0]), _prefix_length(one.family, one.netmask))
        for name, addresses in psutil.net_if_addrs().items()
        if name in up
        for one in addresses
        if one.family in _FAMILIES
    ]
    return tuple(sorted(found, key=lambda one: (one.name, one.address.version, int(one.address))))


def _prefix_length(family: int, netmask: str | None) -> int:
    longest = 32 if family == socket.AF_INET else 128
    if netmask is None:
        return longest
    return int(ipaddress.ip_address(netmask)).bit_count()
