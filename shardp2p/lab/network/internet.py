"""The Internet, and the routers at its edge, as one machine: packets in, packets out. Pure.

A *port* is where packets enter and leave: the interface of a host, or one of the two of a kernel's router (`NAME.lan`
and `NAME.wan`). wan.py pumps it with TUN devices. A router filters what arrives when it arrives, so that a hole that
is not punched yet is closed.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from ipaddress import IPv4Address
from typing import Final

from shardp2p.lab.network.addressing import Addresses
from shardp2p.lab.network.cuts import Cuts
from shardp2p.lab.network.description import Description
from shardp2p.lab.network.gate import Gate
from shardp2p.lab.network.packets import TCP, Packet, may_not_be_fragmented, parse, reset_for, rewritten, too_big
from shardp2p.lab.network.paths import Line, Path, path_between
from shardp2p.lab.network.places import Places

MAX_IN_FLIGHT: Final = 65_536
"""Packets on their way, all together: 1 Gbit/s over half a second. Those beyond are dropped."""

_MULTICAST: Final = range(224 << 24, 240 << 24)
_LIMITED_BROADCAST: Final = 0xFFFFFFFF

Sent = tuple[str, bytes]
"""A port and the packet that leaves there."""


class Internet:
    """The state of a network.

    `now` goes back by less than a millisecond, if at all. `chance` gives numbers from 0 up to 1, seeded.
    """

    def __init__(self, description: Description, addresses: Addresses, chance: Callable[[], float]) -> None:
        self._description = description
        self._chance = chance
        self.cuts = Cuts(description)
        self._places = Places(description, addresses, chance)
        self._gates = self._places.gates
        self._sites = self._places.sites
        self._up: dict[str, Line] = {}
        self._down: dict[str, Line] = {}
        self._site_of = {name: description.site(name) for name in (*description.hosts, *description.routers)}
        for site in set(self._site_of.values()):
            link = description.link_of(site)
            self._up[site] = Line(link.up_mbit_s, link.queue_ms / 1e3)
            self._down[site] = Line(link.down_mbit_s, link.queue_ms / 1e3)
        self._paths: dict[tuple[str, str], Path] = {}
        self._heap: list[tuple[float, int, Callable[[float], None]]] = []
        self._count = 0
        self._out: list[Sent] = []

    def receive(self, now: float, port: str, data: bytes) -> None:
        """Take a packet that came out of `port`."""
        packet = parse(data)
        if packet is None:
            return
        name, _, side = port.partition(".")
        if self.cuts.is_off(name) and side != "lan":
            return
        if side == "lan":
            self._inside(now, self._gates[name], name, data, packet)
            return
        behind = self._description.behind(name)
        if self._is_too_big(now, port, name, data, packet):
            return
        if behind is None:
            self._to_site(now, name, name, data, packet)
        else:
            self._from_member(now, self._gates[behind], name, data, packet)

    def next_at(self) -> float | None:
        """When something is next due."""
        return self._heap[0][0] if self._heap else None

    def advance(self, now: float) -> Iterable[Sent]:
        """The packets that leave by now, in order."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            at, _, step = heapq.heappop(heap)
            step(at)
        out, self._out = self._out, []
        return out

    def forget_mappings(self, router: str) -> None:
        """Let a router lose its mappings, as in a reboot."""
        self._gates[router].table.forget()

    def open_port(self, router: str, port: int, host: str, host_port: int) -> None:
        """Let a router forward a TCP port to a host behind it, as its owner would set it up."""
        self._gates[router].table.forward(TCP, port, (int(self._places.outside[host]), host_port))

    def readdress(self, name: str) -> IPv4Address:
        """Give a host or a router another address outside; what its old one had is lost."""
        return self._places.readdress(name)

    def _after(self, now: float, delay_s: float, step: Callable[[float], None]) -> None:
        if len(self._heap) >= MAX_IN_FLIGHT:
            return
        self._count += 1  # keeps the order of what is due together
        heapq.heappush(self._heap, (now + delay_s, self._count, step))

    def _is_too_big(self, now: float, port: str, name: str, data: bytes, packet: Packet) -> bool:
        """Whether the packet does not fit the path; its sender hears so (RFC 1191), from its side of any router."""
        source, destination = self._site_of[name], self._sites.get(packet.destination)
        if destination is None or destination == source:
            return False
        mtu = self._path(source, destination).mtu
        if len(data) <= mtu:
            return False
        if may_not_be_fragmented(data):
            behind = self._description.behind(name)
            router = self._gates[behind].inside if behind is not None else packet.destination
            self._out.append((port, too_big(data, packet, router, mtu)))
        return True

    def _path(self, source: str, destination: str) -> Path:
        path = self._paths.get((source, destination))
        if path is None:
            path = self._paths[source, destination] = path_between(self._description, source, destination)
        return path

    def _from_member(self, now: float, gate: Gate, origin: str, data: bytes, packet: Packet) -> None:
        """A packet that somebody inside sends: to the others there, or through the router."""
        if self._inside(now, gate, origin, data, packet):
            return
        if gate.router.has_upnp:
            self._after(now, gate.hop_s, partial(self._to_port, gate.name + ".lan", data))
        elif packet.destination == gate.inside or not gate.lets_out(packet):
            self._refuse(now, gate, data, packet, partial(self._to_member, gate, origin))
        else:
            self._through(now, gate, origin, data, packet)

    def _inside(self, now: float, gate: Gate, origin: str, data: bytes, packet: Packet) -> bool:
        """Hand over a packet that is for somebody inside, or for all there; says whether it was."""
        if packet.destination in gate.members:
            self._after(now, gate.hop_s, partial(self._to_member, gate, origin, data, packet))
            return True
        if packet.destination not in _MULTICAST and packet.destination not in (gate.broadcast, _LIMITED_BROADCAST):
            return False
        for member in gate.members.values():
            if member != origin and member in self._description.hosts:
                self._after(now, gate.hop_s, partial(self._to_host, member, origin, data))
        if gate.router.has_upnp and origin != gate.name:
            self._after(now, gate.hop_s, partial(self._to_port, gate.name + ".lan", data))
        return True

    def _through(self, now: float, gate: Gate, origin: str, data: bytes, packet: Packet) -> None:
        """A packet that a router translates on its way out."""
        going = gate.table.outbound(now, packet)
        if going is None:
            self._refuse(now, gate, data, packet, partial(self._to_member, gate, origin))
            return
        data = rewritten(data, packet, going) if going is not packet and going != packet else data
        if going.destination == gate.table.external:
            if gate.router.has_hairpin:
                self._inwards(now, gate.name, origin, data, going)
            return
        behind = gate.router.behind
        if behind is not None:
            self._from_member(now, self._gates[behind], origin, data, going)
        elif not self.cuts.is_off(gate.name):
            self._to_site(now, gate.name, origin, data, going)

    def _to_site(self, now: float, source: str, origin: str, data: bytes, packet: Packet) -> None:
        """A packet that leaves a site: up its line and along the path."""
        destination = self._sites.get(packet.destination)
        if destination is None or destination == source:
            return
        sent_at = self._up[source].sent_at(now, len(data))
        if sent_at is None:
            return
        arrives_at = self._path(source, destination).arrives_at(sent_at, self._chance)
        if arrives_at is not None:
            self._after(arrives_at, 0.0, partial(self._at_site, destination, origin, data, packet))

    def _at_site(self, site: str, origin: str, data: bytes, packet: Packet, now: float) -> None:
        """A packet that has come to a site's line."""
        received_at = self._down[site].sent_at(now, len(data))
        if received_at is None or self.cuts.is_off(site):
            return
        if received_at > now:
            self._after(received_at, 0.0, lambda at: self._inwards(at, site, origin, data, packet))
        else:
            self._inwards(now, site, origin, data, packet)

    def _inwards(self, now: float, name: str, origin: str, data: bytes, packet: Packet) -> None:
        """A packet that comes to a host or a router from outside."""
        gate = self._gates.get(name)
        if gate is None:
            self._to_host(name, origin, data, now)
        elif self.cuts.is_off(name):
            return
        elif gate.router.has_upnp:
            self._to_port(name + ".wan", data, now)
        else:
            coming = gate.table.inbound(now, packet)
            if coming is None or coming.destination not in gate.members:
                self._refuse(now, gate, data, packet, partial(self._back_out, gate, origin))
                return
            data = rewritten(data, packet, coming) if coming is not packet and coming != packet else data
            self._after(now, gate.hop_s, partial(self._to_member, gate, origin, data, coming))

    def _refuse(
        self, now: float, gate: Gate, data: bytes, packet: Packet, answer: Callable[[bytes, Packet, float], None]
    ) -> None:
        """A packet that a router does not let pass: it says nothing, or answers as a closed port would."""
        reset = reset_for(data, packet) if gate.router.unsolicited == "reset" else None
        read = parse(reset) if reset is not None else None
        if reset is not None and read is not None:
            answer(reset, read, now)

    def _back_out(self, gate: Gate, origin: str, data: bytes, packet: Packet, now: float) -> None:
        """An answer of the router itself, on the side of the Internet."""
        del origin
        if packet.destination == gate.table.external:
            return  # of a hairpin: nobody listens
        if gate.router.behind is None:
            self._to_site(now, gate.name, gate.name, data, packet)
        else:
            self._from_member(now, self._gates[gate.router.behind], gate.name, data, packet)

    def _to_member(self, gate: Gate, origin: str, data: bytes, packet: Packet, now: float) -> None:
        """A packet on the inside of a router, for one there. An answer of the router goes to whoever sent it."""
        member = gate.members.get(packet.destination)
        if member is not None:
            self._inwards(now, member, origin, data, packet)

    def _to_host(self, host: str, origin: str, data: bytes, now: float) -> None:
        if not self.cuts.are_cut(origin, host):
            self._to_port(host, data, now)

    def _to_port(self, port: str, data: bytes, now: float) -> None:
        del now
        self._out.append((port, data))


def ports_of(description: Description) -> Iterator[str]:
    """The ports of a network."""
    yield from description.hosts
    for name, router in description.routers.items():
        if router.has_upnp:
            yield from (f"{name}.lan", f"{name}.wan")
