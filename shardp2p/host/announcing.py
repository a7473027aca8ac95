"""Which addresses of a machine may leave it, and which of a peer's addresses are worth dialling from here. Pure.

A record goes to everybody, so it names private addresses beside the public one under which the internet sees its peer;
whoever reads it dials the private ones only where it is seen under the same public address, that is, in the same home.
A peer that nobody can dial at its public address still names it, with port 0: it says where, and nothing to dial.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from shardp2p.host.addresses import Address, CircuitAddress, TcpAddress, parse_address
from shardp2p.host.ip_scopes import IpAddress, IpNetwork, Scope, home_of, scope_of
from shardp2p.vocabulary import PeerId

MAX_ANNOUNCED: Final = 8
"""Of one peer; what address_book.py keeps of it. Every wrong one costs whoever dials some seconds."""
MAX_PUBLIC: Final = 3
MAX_CIRCUITS: Final = 2
MAX_DECLARED: Final = 3

_OF_CONTAINERS: Final = re.compile(
    r"docker\w*|docker_gwbridge|br-[0-9a-f]{12}|veth\w*|virbr\d+(-nic)?|vnet\d+|cni\w*|flannel\S*|cali\w*|podman\d+"
    r"|lxcbr\d+|lxdbr\d+|vboxnet\d+|vmnet\d+|vEthernet \(.*\)"
)
"""Interfaces to containers and virtual machines of this very machine."""


@dataclass(frozen=True, slots=True)
class Interface:
    """An address of this machine, and how long the prefix of its network is."""

    name: str
    address: IpAddress
    prefix_length: int

    @property
    def network(self) -> IpNetwork:
        """The network on this interface."""
        return ipaddress.ip_network((self.address, self.prefix_length), strict=False)

    @property
    def is_of_containers(self) -> bool:
        """Whether only containers or virtual machines of this machine are there: by its name and its range."""
        return _OF_CONTAINERS.fullmatch(self.name) is not None and scope_of(self.address) == "private"


@dataclass(frozen=True, slots=True)
class Standing:
    """Where this machine stands: under which public addresses others see it, and in which private networks it is."""

    seen_as: frozenset[IpAddress] = frozenset()
    networks: tuple[IpNetwork, ...] = ()
    is_on_loopback: bool = False
    """Whether it listens on loopback alone."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What decides which addresses we tell. `sockets` are bound as they are, wildcards included.

    `opened` are public addresses beyond our interfaces at which we are, or should be, reached: mapped by a router or
    proved by a dial-back. `closed` are those at which others tried and failed, of the `declared` ones too.
    """

    sockets: tuple[TcpAddress, ...]
    interfaces: tuple[Interface, ...] = ()
    seen_as: frozenset[IpAddress] = frozenset()
    opened: tuple[TcpAddress, ...] = ()
    closed: frozenset[TcpAddress] = frozenset()
    declared: tuple[TcpAddress, ...] = ()
    circuits: tuple[CircuitAddress, ...] = ()


def is_private(address: TcpAddress) -> bool:
    """Whether it is an address inside some network that is not the internet."""
    ip = _ip_of(address)
    return ip is not None and scope_of(ip) == "private"


def standing_of(situation: Situation) -> Standing:
    """What the same says of where we stand."""
    real = [one for one in situation.interfaces if not one.is_of_containers]
    networks = (one.network for one in real if scope_of(one.address) == "private")
    bound = [ipaddress.ip_address(socket.host) for socket in situation.sockets]
    own = (one.address for one in real if scope_of(one.address) == "public")
    return Standing(
        seen_as=situation.seen_as | frozenset(own),
        networks=tuple(dict.fromkeys(networks)),
        is_on_loopback=bool(bound) and all(ip.is_loopback for ip in bound),
    )


def announced(peer: PeerId, situation: Situation) -> tuple[str, ...]:
    """The multiaddrs that others may have of us, the most useful first, at most MAX_ANNOUNCED."""
    listening = tuple(_listening(situation))
    of_scope = {
        scope: [at for at in listening if scope_of(ipaddress.ip_address(at.host)) == scope]
        for scope in ("public", "private", "loopback")
    }
    known = (*situation.declared, *situation.opened, *of_scope["public"])
    usable = (at for at in known if at not in situation.closed)
    # An address under which nobody sees us may be another machine's: it is not what others should try first.
    likely_first = sorted(usable, key=lambda at: _is_strange(at, situation.seen_as))
    public = list(dict.fromkeys(likely_first))[:MAX_PUBLIC]
    markers = list(_markers(standing_of(situation).seen_as, public)) if listening else []
    circuits = _circuits(situation.circuits)[:MAX_CIRCUITS]
    room = MAX_ANNOUNCED - len(public) - len(circuits) - len(markers)
    found: list[Address] = [*public, *circuits, *of_scope["private"][:room], *markers]
    if all(_is_loopback(circuit.relay) for circuit in circuits) and len(found) == len(circuits):
        found += of_scope["loopback"][: MAX_ANNOUNCED - len(found)]  # a swarm on this machine, or no network
    return tuple(_text(address, peer) for address in found)


def is_alone(peer: PeerId, situation: Situation) -> bool:
    """Whether all that others may have of us are addresses at which only this machine reaches us."""
    found = [parse_address(text) for text in announced(peer, situation)]
    return bool(found) and all(_is_loopback(at.relay if isinstance(at, CircuitAddress) else at) for at in found)


def public_listeners(situation: Situation) -> tuple[TcpAddress, ...]:
    """The public addresses of our own interfaces at which a socket listens."""
    return tuple(at for at in _listening(situation) if scope_of(ipaddress.ip_address(at.host)) == "public")


def dialable_from(own: Standing, addresses: Sequence[Address]) -> tuple[Address, ...]:
    """Those of a peer's `addresses` that can work from where we stand, in the order to try them, MAX_ANNOUNCED at most.

    The peer's network first where it is ours as well, then the internet, then relays. Private addresses of another
    home are left out. So is loopback of a peer that names anything else, unless we are on loopback ourselves.
    """
    by_scope: dict[Scope, list[Address]] = {"public": [], "private": [], "loopback": [], "none": []}
    homes: set[IpNetwork] = set()
    circuits: list[CircuitAddress] = []
    for address in dict.fromkeys(addresses):
        if isinstance(address, CircuitAddress):
            circuits.append(address)
            continue
        ip = _ip_of(address)
        scope: Scope = "public" if ip is None else scope_of(ip)
        if ip is not None and scope == "public":
            homes.add(home_of(ip))
        if address.port > 0:
            by_scope[scope].append(address)
    near, far = _private_ones(own, by_scope["private"], homes)
    loopback = by_scope["loopback"]
    straight = [*near, *sorted(by_scope["public"], key=_is_ipv6), *far]
    if own.is_on_loopback:
        straight = [*loopback, *straight]
    elif not straight and all(_is_loopback(circuit.relay) for circuit in circuits):
        # A user who names such an address knows why; and it is all there is.
        straight = [*loopback, *(by_scope["private"] if not homes else [])]
    return (*straight[: MAX_ANNOUNCED - len(circuits[:MAX_CIRCUITS])], *circuits[:MAX_CIRCUITS])


def is_same_home(own: Standing, addresses: Iterable[Address]) -> bool:
    """Whether a peer with these addresses is seen under a public address of ours: behind the same router."""
    ips = (_ip_of(address) for address in addresses if isinstance(address, TcpAddress))
    theirs = {home_of(ip) for ip in ips if ip is not None and scope_of(ip) == "public"}
    return not theirs.isdisjoint(map(home_of, own.seen_as))


def _private_ones(
    own: Standing, private: Sequence[Address], homes: set[IpNetwork]
) -> tuple[list[Address], list[Address]]:
    """The private addresses to try before the public ones, and those to try after them."""
    inside = [address for address in private if _is_inside(own, address)]
    others = [address for address in private if address not in inside]
    ours = {home_of(ip) for ip in own.seen_as}
    if not ours.isdisjoint(homes):
        return [*inside, *others], []
    if not homes:
        # Nobody outside has seen that peer yet, or ever will: its network may be ours, or routed to ours.
        return inside, [] if ours else others
    return [], [] if ours else inside


def _is_inside(own: Standing, address: Address) -> bool:
    ip = _ip_of(address) if isinstance(address, TcpAddress) else None
    return ip is not None and any(ip.version == network.version and ip in network for network in own.networks)


def _is_strange(address: TcpAddress, seen_as: frozenset[IpAddress]) -> bool:
    ip = _ip_of(address)
    homes = {home_of(seen) for seen in seen_as if ip is not None and seen.version == ip.version}
    return ip is not None and bool(homes) and scope_of(ip) == "public" and home_of(ip) not in homes


def _is_loopback(address: TcpAddress) -> bool:
    ip = _ip_of(address)
    return ip is not None and ip.is_loopback


def _is_ipv6(address: Address) -> bool:
    return isinstance(address, TcpAddress) and address.is_ipv6


def _listening(situation: Situation) -> Iterable[TcpAddress]:
    """Every address at which a socket of ours can be dialled from somewhere, the longest prefixes of IPv6 included."""
    for socket in situation.sockets:
        bound = ipaddress.ip_address(socket.host)
        if not bound.is_unspecified:
            if scope_of(bound) != "none":
                yield socket
            continue
        for interface in situation.interfaces:
            ip = interface.address
            if ip.version == bound.version and scope_of(ip) != "none" and not interface.is_of_containers:
                yield TcpAddress(socket.protocol, str(ip), socket.port)


def _circuits(circuits: Sequence[CircuitAddress]) -> list[CircuitAddress]:
    """One of each relay first, lest one relay takes all places; none into the home of a relay that has another."""
    outside = {circuit.relay_peer for circuit in circuits if not is_private(circuit.relay)}
    usable = [one for one in circuits if one.relay_peer not in outside or not is_private(one.relay)]
    best = {one.relay_peer: one for one in reversed(usable)}.values()
    return sorted(usable, key=lambda one: one not in best)


def _markers(seen_as: Iterable[IpAddress], public: Sequence[TcpAddress]) -> Iterable[TcpAddress]:
    """One address without a port for each version of IP under which we are seen and cannot be dialled."""
    told = {home_of(ip) for ip in map(_ip_of, public) if ip is not None}
    for version in (4, 6):
        ours = sorted(ip for ip in seen_as if ip.version == version)
        if ours and told.isdisjoint(map(home_of, ours)):
            yield TcpAddress(f"ip{version}", str(ours[0]), 0)


def _ip_of(address: TcpAddress) -> IpAddress | None:
    """The address if it is one, None for a name."""
    return ipaddress.ip_address(address.host) if address.protocol in ("ip4", "ip6") else None


def _text(address: Address, peer: PeerId) -> str:
    return f"{address}/p2p/{peer}" if address.peer is None else str(address)
