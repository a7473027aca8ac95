"""What a network is to be: hosts, routers and links. Pure. It is read from JSON by reading.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from shardp2p.lab.network.nat import NAT_KINDS

Unsolicited = Literal["drop", "reset"]


@dataclass(frozen=True, slots=True)
class Host:
    """A machine. `behind` is its router; without one it has a public address."""

    name: str
    behind: str | None = None
    has_docker: bool = False


@dataclass(frozen=True, slots=True)
class Router:
    """A router of one of the NAT_KINDS. `behind` is a router further out, a carrier's for example.

    `lan` is the network inside, else one is chosen. `allow_out` are the only TCP ports that may be dialled. With `upnp`
    it is a kernel's router with a real miniupnpd.
    """

    name: str
    nat: str
    behind: str | None = None
    has_hairpin: bool = False
    unsolicited: Unsolicited = "drop"
    mapping_timeout_s: float | None = None
    has_upnp: bool = False
    allow_out: tuple[int, ...] | None = None
    lan: str | None = None
    lan_rtt_ms: float = 0.0

    @property
    def is_translating(self) -> bool:
        """Whether those inside have addresses of their own."""
        return NAT_KINDS[self.nat].is_translating


@dataclass(frozen=True, slots=True)
class Link:
    """How a node with a public address is joined to the Internet.

    A path has the larger jitter and loss of its two ends, and the smaller MTU. Rates are in Mbit/s; None is unlimited.
    `queue_ms` is how long a packet waits at most for its turn before it is dropped.
    """

    up_mbit_s: float | None = None
    down_mbit_s: float | None = None
    jitter_ms: float = 0.0
    loss: float = 0.0
    queue_ms: float = 200.0
    mtu: int = 1500


@dataclass(frozen=True, slots=True)
class Description:
    """A network. Pairs in `one_way_ms` are ordered: from the first to the second."""

    hosts: Mapping[str, Host]
    routers: Mapping[str, Router] = field(default_factory=dict)
    one_way_ms: Mapping[tuple[str, str], float] = field(default_factory=dict)
    default_rtt_ms: float = 0.0
    link: Link = Link()
    links: Mapping[str, Link] = field(default_factory=dict)
    is_reordering: bool = False
    about: str = ""

    def site(self, name: str) -> str:
        """The node with the public address that this one is reached by: its outermost router, or itself."""
        while (behind := self.behind(name)) is not None:
            name = behind
        return name

    def behind(self, name: str) -> str | None:
        """The router that this host or router is behind."""
        return self.hosts[name].behind if name in self.hosts else self.routers[name].behind

    def link_of(self, site: str) -> Link:
        """The link of a node with a public address."""
        return self.links.get(site, self.link)

    def rtt_ms(self, a: str, b: str) -> float:
        """The round trip between two hosts that is asked for, without queues and jitter."""
        site_a, site_b = self.site(a), self.site(b)
        if site_a == site_b:
            return self.routers[site_a].lan_rtt_ms if site_a in self.routers else 0.0
        return sum(self.one_way_ms.get(pair, self.default_rtt_ms / 2) for pair in ((site_a, site_b), (site_b, site_a)))

    def hosts_at(self, name: str) -> Iterator[str]:
        """The host of that name, or all hosts behind the router of that name."""
        for host in self.hosts:
            node: str | None = host
            while node is not None:
                if node == name:
                    yield host
                node = self.behind(node)
