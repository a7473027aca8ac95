"""Which addresses lie so near to each other that one operator is to be assumed. Pure."""

from __future__ import annotations

import ipaddress
from typing import Final

_PREFIX: Final = {4: 24, 6: 48}
"""The smallest networks that are announced on the internet."""


def network_of(remote: tuple[str, int] | None) -> str:
    """The network of a remote host and port; "" for one without an IP address."""
    return "" if remote is None else network_of_host(remote[0])


def network_of_host(host: str) -> str:
    """The network in which the IP address `host` lies; a name is a network of its own."""
    try:
        ip = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    return str(ipaddress.ip_network((ip, _PREFIX[ip.version]), strict=False))
