"""Which addresses a network has: the same description gives the same ones. Pure.

Public addresses are globally routable ones (addresses for documentation would be refused, rightly, by whoever checks
what is announced); they are seen inside the namespaces alone, and no packet leaves these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from typing import Final

from shardp2p.errors import ConfigError
from shardp2p.lab.network.description import Description

PUBLIC: Final = IPv4Network("45.45.0.0/16")
"""Of hosts without a router, and of routers."""

_PUBLIC_LANS: Final = IPv4Network("45.46.0.0/16")
"""Inside routers that do not translate."""

_HOMES: Final = IPv4Network("192.168.0.0/16")
_CARRIERS: Final = IPv4Network("100.64.0.0/16")
"""Inside routers that have routers behind them (RFC 6598)."""

_FIRST_PUBLIC: Final = 10


@dataclass(frozen=True, slots=True)
class Addresses:
    """`outside` is the address of each host and router where it is joined to the rest; `lans` are the networks inside
    routers, whose first address is the router's.
    """

    outside: Mapping[str, IPv4Address]
    lans: Mapping[str, IPv4Network]

    def gateway(self, router: str) -> IPv4Address:
        """The address of a router inside."""
        return self.lans[router][1]


def plan_addresses(description: Description) -> Addresses:
    """The addresses of every host and router. Raises: ConfigError where a network of routers is full."""
    lans: dict[str, IPv4Network] = {}
    outer = {router.behind for router in description.routers.values()}
    for at, router in enumerate(description.routers.values(), 1):
        if router.lan is not None:
            lans[router.name] = IPv4Network(router.lan)
            continue
        pool = _CARRIERS if router.name in outer else _HOMES
        if not router.is_translating:
            pool = _PUBLIC_LANS
        lans[router.name] = IPv4Network((int(pool.network_address) + 256 * at, 24))
    outside: dict[str, IPv4Address] = {}
    used: dict[str | None, int] = {}
    for name in (*description.hosts, *description.routers):
        behind = description.behind(name)
        place = used[behind] = used.get(behind, _FIRST_PUBLIC - 1 if behind is None else 1) + 1
        outside[name] = _place(lans[behind] if behind is not None else PUBLIC, place, name)
    return Addresses(outside, lans)


def next_address(
    description: Description, name: str, used: Mapping[str, IPv4Address], lans: Mapping[str, IPv4Network]
) -> IPv4Address:
    """An address for `name` in its network that is above all that are used there."""
    behind = description.behind(name)
    network = lans[behind] if behind is not None else PUBLIC
    highest = max(int(address) for node, address in used.items() if description.behind(node) == behind)
    return _place(network, highest - int(network.network_address) + 1, name)


def _place(network: IPv4Network, place: int, name: str) -> IPv4Address:
    if place >= network.num_addresses - 1:
        raise ConfigError(f"{network} has no address left for {name}; spread the hosts over more routers")
    return network[place]
