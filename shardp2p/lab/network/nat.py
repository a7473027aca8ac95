"""What a home router does to packets, in the words of RFC 4787 (UDP) and RFC 5382 (TCP). Pure.

A *mapping* gives an inner endpoint a port outside; a *session* is a remote endpoint that the mapping was used with.
Stricter than many routers in one thing: a TCP session begins with a SYN alone, and an RST ends it, so that what a
router forgot stays broken until somebody dials again.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping as Map
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from shardp2p.lab.network.packets import ICMP, RST, SYN, TCP, UDP, Endpoint, Packet

MAX_MAPPINGS: Final = 4096
"""Of one router; a new one beyond takes the place of the one that was idle longest. A home needs some hundreds."""

TIMEOUTS_S: Final[Map[int, float]] = {TCP: 7440.0, UDP: 300.0, ICMP: 60.0}
"""RFC 5382 REQ-5, RFC 4787 REQ-5, RFC 5508 REQ-1."""

MAX_SESSIONS: Final = 4096
"""Of one mapping; a listening peer meets a few hundred others."""

_PORTS: Final = range(1024, 65536)
_FIRST_OTHER_PORT: Final = 20_000


class Dependence(Enum):
    """What of the remote endpoint a mapping or a filter looks at."""

    NONE = "endpoint-independent"
    ADDRESS = "address-dependent"
    ADDRESS_AND_PORT = "address-and-port-dependent"


class Ports(Enum):
    """How a router chooses a port outside."""

    PRESERVED = "preserved"
    OTHER = "other"
    RANDOM = "random"


@dataclass(frozen=True, slots=True)
class NatBehaviour:
    """How a router maps and filters. One that does not translate is a firewall, or, without a filter, a wire."""

    mapping: Dependence = Dependence.NONE
    filtering: Dependence = Dependence.ADDRESS_AND_PORT
    ports: Ports = Ports.PRESERVED
    is_translating: bool = True

    @property
    def is_open(self) -> bool:
        """Whether every packet passes as it is."""
        return not self.is_translating and self.filtering is Dependence.NONE


NAT_KINDS: Final[Map[str, NatBehaviour]] = {
    "open": NatBehaviour(filtering=Dependence.NONE, is_translating=False),
    "firewall": NatBehaviour(is_translating=False),
    "full-cone": NatBehaviour(filtering=Dependence.NONE),
    "cone": NatBehaviour(),
    "remapping-cone": NatBehaviour(ports=Ports.OTHER),
    "symmetric": NatBehaviour(mapping=Dependence.ADDRESS_AND_PORT, ports=Ports.RANDOM),
}
"""The kinds of routers that a description names. `cone` preserves ports, `remapping-cone` does not."""


@dataclass(slots=True)
class _Mapping:
    key: tuple[int, ...]
    protocol: int
    inside: Endpoint
    outside: Endpoint
    used_at: float
    is_static: bool = False
    sessions: dict[Endpoint, float] = field(default_factory=dict)


class NatTable:
    """The state of one router. `now` goes back by less than a millisecond.

    `outbound` and `inbound` give the packet as it goes on, or None where it is refused; whether a refusal is answered
    is the router's business. `chance` gives numbers from 0 up to 1. `timeout_s` replaces TIMEOUTS_S for all.
    """

    def __init__(
        self, behaviour: NatBehaviour, external: int, *, chance: Callable[[], float], timeout_s: float | None = None
    ) -> None:
        self.external = external
        self._behaviour = behaviour
        self._timeout_s = timeout_s
        self._chance = chance
        self._next_port = _FIRST_OTHER_PORT
        self._by_inside: dict[tuple[int, ...], _Mapping] = {}
        self._by_outside: dict[tuple[int, ...], _Mapping] = {}

    def outbound(self, now: float, packet: Packet) -> Packet | None:
        """A packet from inside."""
        if self._behaviour.is_open:
            return packet
        if not packet.is_whole:
            return None
        inside, remote = (packet.source, packet.source_port), (packet.destination, packet.destination_port)
        mapping = self._find(now, self._by_inside, self._key(packet.protocol, inside, remote))
        if not self._may_begin(mapping, remote, packet):
            return None
        if mapping is None:
            mapping = self._add(now, packet.protocol, inside, remote)
        self._use(now, mapping, remote, packet)
        return packet._replace(source=mapping.outside[0], source_port=mapping.outside[1])

    def inbound(self, now: float, packet: Packet) -> Packet | None:
        """A packet from outside."""
        if self._behaviour.is_open:
            return packet
        if not packet.is_whole:
            return None
        outside, remote = (packet.destination, packet.destination_port), (packet.source, packet.source_port)
        mapping = self._find(now, self._by_outside, (packet.protocol, *outside))
        if mapping is None or not self._lets_in(mapping, remote) or not self._may_begin(mapping, remote, packet):
            return None
        self._use(now, mapping, remote, packet)
        return packet._replace(destination=mapping.inside[0], destination_port=mapping.inside[1])

    def forward(self, protocol: int, port: int, inside: Endpoint) -> None:
        """Send whatever comes for `port` to `inside`, as a user asks a router to."""
        old = self._by_outside.get((protocol, self.external, port))
        if old is not None:
            self._remove(old)
        key = (protocol, *inside)
        if (own := self._by_inside.get(key)) is not None:
            self._remove(own)
        self._insert(_Mapping(key, protocol, inside, (self.external, port), float("inf"), is_static=True))

    def forget(self) -> None:
        """Lose every mapping but the static ones, as in a reboot."""
        for mapping in list(self._by_outside.values()):
            if mapping.is_static:
                mapping.sessions.clear()
            else:
                self._remove(mapping)

    def move_to(self, external: int) -> None:
        """Have another address outside; mappings are lost, as they would be of no use."""
        static = [mapping for mapping in self._by_outside.values() if mapping.is_static]
        self._by_inside.clear()
        self._by_outside.clear()
        self.external = external
        for mapping in static:
            self.forward(mapping.protocol, mapping.outside[1], mapping.inside)

    def __len__(self) -> int:
        return len(self._by_outside)

    def _key(self, protocol: int, inside: Endpoint, remote: Endpoint) -> tuple[int, ...]:
        match self._behaviour.mapping:
            case Dependence.NONE:
                return (protocol, *inside)
            case Dependence.ADDRESS:
                return (protocol, *inside, remote[0])
            case Dependence.ADDRESS_AND_PORT:
                # A port that the user forwarded speaks from it too.
                static = self._by_inside.get((protocol, *inside))
                return (protocol, *inside) if static is not None else (protocol, *inside, *remote)

    def _timeout(self, protocol: int) -> float:
        return self._timeout_s if self._timeout_s is not None else TIMEOUTS_S.get(protocol, 60.0)

    def _find(self, now: float, among: dict[tuple[int, ...], _Mapping], key: tuple[int, ...]) -> _Mapping | None:
        """The mapping with that key, if it is not idle too long; with it go its old sessions."""
        mapping = among.get(key)
        if mapping is None:
            return None
        timeout_s = self._timeout(mapping.protocol)
        if now - mapping.used_at > timeout_s:
            self._remove(mapping)
            return None
        sessions = mapping.sessions
        while sessions and now - sessions[oldest := next(iter(sessions))] > timeout_s:
            del sessions[oldest]
        return mapping

    def _lets_in(self, mapping: _Mapping, remote: Endpoint) -> bool:
        if mapping.is_static or remote in mapping.sessions:
            return True
        match self._behaviour.filtering:
            case Dependence.NONE:
                return True
            case Dependence.ADDRESS:
                return any(address == remote[0] for address, _ in mapping.sessions)
            case Dependence.ADDRESS_AND_PORT:
                return False

    def _may_begin(self, mapping: _Mapping | None, remote: Endpoint, packet: Packet) -> bool:
        """Whether the packet belongs to a session or may begin one."""
        if packet.protocol != TCP or (mapping is not None and remote in mapping.sessions):
            return True
        return packet.flags & (SYN | RST) == SYN

    def _use(self, now: float, mapping: _Mapping, remote: Endpoint, packet: Packet) -> None:
        if not mapping.is_static:
            mapping.used_at = now
        mapping.sessions.pop(remote, None)  # so that the order is by last use
        if packet.protocol == TCP and packet.flags & RST:
            return
        if len(mapping.sessions) >= MAX_SESSIONS:
            del mapping.sessions[next(iter(mapping.sessions))]
        mapping.sessions[remote] = now

    def _add(self, now: float, protocol: int, inside: Endpoint, remote: Endpoint) -> _Mapping:
        if len(self._by_outside) >= MAX_MAPPINGS:
            self._remove(min(self._by_outside.values(), key=lambda mapping: mapping.used_at))
        outside = inside
        if self._behaviour.is_translating:
            outside = self.external, self._free_port(protocol, inside[1])
        mapping = _Mapping(self._key(protocol, inside, remote), protocol, inside, outside, now)
        self._insert(mapping)
        return mapping

    def _free_port(self, protocol: int, wanted: int) -> int:
        """A port outside that no mapping of this protocol has; MAX_MAPPINGS is far below the number of ports."""
        port = wanted
        if self._behaviour.ports is Ports.OTHER:
            port = self._next_port
            self._next_port = port + 1 if port + 1 in _PORTS else _PORTS.start
        elif self._behaviour.ports is Ports.RANDOM:
            port = _PORTS[int(self._chance() * len(_PORTS))]
        while (protocol, self.external, port) in self._by_outside:
            port = port + 1 if port + 1 in _PORTS else _PORTS.start
        return port

    def _insert(self, mapping: _Mapping) -> None:
        self._by_inside[mapping.key] = mapping
        self._by_outside[mapping.protocol, *mapping.outside] = mapping

    def _remove(self, mapping: _Mapping) -> None:
        self._by_inside.pop(mapping.key, None)
        self._by_outside.pop((mapping.protocol, *mapping.outside), None)
