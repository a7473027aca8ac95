"""A router at work. Pure."""

from __future__ import annotations

from collections.abc import Callable

from shardp2p.lab.network.addressing import Addresses
from shardp2p.lab.network.description import Router
from shardp2p.lab.network.nat import NAT_KINDS, NatTable
from shardp2p.lab.network.packets import TCP, Packet


class Gate:
    """Who is inside a router, by address, and what it translates; a kernel's router has a table of its own instead."""

    def __init__(self, router: Router, addresses: Addresses, chance: Callable[[], float]) -> None:
        self.name = router.name
        self.router = router
        self.inside = int(addresses.gateway(router.name))
        self.broadcast = int(addresses.lans[router.name].broadcast_address)
        self.members: dict[int, str] = {}
        external = int(addresses.outside[router.name])
        self.table = NatTable(NAT_KINDS[router.nat], external, chance=chance, timeout_s=router.mapping_timeout_s)
        self.hop_s = router.lan_rtt_ms / 2e3

    def lets_out(self, packet: Packet) -> bool:
        """Whether a firewall that allows some ports alone lets the packet out."""
        allowed = self.router.allow_out
        return allowed is None or (packet.protocol == TCP and packet.destination_port in allowed)
