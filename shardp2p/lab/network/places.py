"""Where each address of a network leads, and how one moves. Pure."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Address

from shardp2p.lab.network.addressing import Addresses, next_address
from shardp2p.lab.network.description import Description
from shardp2p.lab.network.gate import Gate


class Places:
    """`outside` has the address of each node where it is joined to the rest, `sites` who has a public one."""

    def __init__(self, description: Description, addresses: Addresses, chance: Callable[[], float]) -> None:
        self._description = description
        self._lans = addresses.lans
        self.outside = dict(addresses.outside)
        self.gates = {name: Gate(router, addresses, chance) for name, router in description.routers.items()}
        self.sites: dict[int, str] = {}
        for name in self.outside:
            self._enter(name)

    def readdress(self, name: str) -> IPv4Address:
        """Give a host or a router another address outside; what its old one had is lost."""
        new, old = next_address(self._description, name, self.outside, self._lans), int(self.outside[name])
        behind = self._description.behind(name)
        self.sites.pop(old, None)
        if behind is not None:
            del self.gates[behind].members[old]
        self.outside[name] = new
        self._enter(name)
        if name in self.gates:
            self.gates[name].table.move_to(int(new))
        return new

    def _enter(self, name: str) -> None:
        """Let packets for the address of `name` find it."""
        address = int(self.outside[name])
        behind = self._description.behind(name)
        if behind is None:
            self.sites[address] = name
            return
        self.gates[behind].members[address] = name
        if not self.gates[behind].router.is_translating:
            self.sites[address] = self._description.site(behind)
