"""Descriptions of networks as JSON. Pure.

docs/lab.md has the format. A profile of the benchmarks is a description too: its `peers` are hosts with public
addresses, and what it says of their work is left to the benchmarks.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, get_args

from shardp2p.errors import ConfigError
from shardp2p.lab.network.description import Description, Host, Link, Router, Unsolicited
from shardp2p.lab.network.fields import Fields, shown
from shardp2p.lab.network.nat import NAT_KINDS

MAX_NODES: Final = 128
"""Hosts and routers: each has a descriptor, and select() takes 1024 of them."""

_PRIVATE: Final = tuple(
    ipaddress.IPv4Network(text) for text in ("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16")
)
"""What may be inside a router that translates: of homes (RFC 1918), and of carriers (RFC 6598)."""

_OF_BENCHMARKS: Final = (
    "layers",
    "hidden_size",
    "activation_bytes",
    "stage_ms",
    "draft_ms_per_level",
    "published_tok_s",
    "measured_elsewhere_tok_s",
)


def parse_description(text: str | bytes) -> Description:
    """The network that a JSON text describes. Raises: ConfigError, one line that names the bad value."""
    try:
        read = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the network is not JSON: {error}") from None
    fields = Fields("the network", read)
    fields.ignore(_OF_BENCHMARKS)
    hosts = {name: Host(name) for name in fields.names("peers")}
    hosts |= {name: _host(name, value) for name, value in fields.named("hosts").items()}
    routers = {name: _router(name, value) for name, value in fields.named("routers").items()}
    _check_nodes(hosts, routers)
    link = _link(fields, Link())
    links = {}
    for name, value in fields.named("links").items():
        own = Fields(f"link {name}", value)
        links[name] = _link(own, link)
        own.finish()
    description = Description(
        hosts,
        routers,
        default_rtt_ms=fields.number("default_rtt_ms", 0.0, 0.0, 10_000.0),
        link=link,
        links=links,
        is_reordering=fields.flag("reorder"),
        about=fields.text("about", ""),
    )
    for name in links:
        if name not in hosts and name not in routers:
            fields.fail(f"links names {name!r}, which is neither a host nor a router")
        if (site := description.site(name)) != name:
            fields.fail(f"links names {name!r}, which is behind {site}; the line to the Internet is that one's")
    one_way_ms = _one_way_ms(description, fields)
    fields.finish()
    return replace(description, one_way_ms=one_way_ms)


def _host(name: str, value: object) -> Host:
    fields = Fields(f"host {name}", value)
    host = Host(name, fields.optional_name("behind"), fields.flag("docker"))
    fields.finish()
    return host


def _router(name: str, value: object) -> Router:
    fields = Fields(f"router {name}", value)
    unsolicited: Mapping[str, Unsolicited] = {word: word for word in get_args(Unsolicited)}
    router = Router(
        name,
        nat=fields.one_of("nat", "cone", tuple(NAT_KINDS)),
        behind=fields.optional_name("behind"),
        has_hairpin=fields.flag("hairpin"),
        unsolicited=unsolicited[fields.one_of("unsolicited", "drop", tuple(unsolicited))],
        mapping_timeout_s=fields.optional_number("mapping_timeout_s", None, 0.1, 1e6),
        has_upnp=fields.flag("upnp"),
        allow_out=fields.ports("allow_out"),
        lan=fields.text("lan", "") or None,
        lan_rtt_ms=fields.number("lan_rtt_ms", 0.0, 0.0, 1000.0),
    )
    fields.finish()
    if router.lan is not None:
        try:
            lan = ipaddress.IPv4Network(router.lan)
            is_fitting = lan.prefixlen == 24 and any(lan.subnet_of(private) for private in _PRIVATE)
        except ValueError:
            is_fitting = False
        if not is_fitting:
            fields.fail(f"lan is {shown(router.lan)}; it must be a private IPv4 network like 192.168.1.0/24")
    if router.has_upnp and router.nat != "cone":
        fields.fail(f"upnp goes with nat cone, not with {router.nat}: it is the kernel that translates there")
    if router.has_upnp and (router.has_hairpin or router.mapping_timeout_s is not None or router.allow_out is not None):
        fields.fail(
            "upnp goes without hairpin, mapping_timeout_s and allow_out: it is the kernel that translates there"
        )
    if router.nat in ("open", "firewall") and (router.lan is not None or router.behind is not None):
        fields.fail(
            f"nat {router.nat} translates nothing: leave out lan and behind, and it has public addresses inside"
        )
    return router


def _check_nodes(hosts: Mapping[str, Host], routers: Mapping[str, Router]) -> None:
    """Raises: ConfigError where names clash, are missing, or lead in a circle."""
    if not hosts:
        raise ConfigError("the network has no hosts; name them in hosts, or in peers")
    if len(hosts) + len(routers) > MAX_NODES:
        raise ConfigError(
            f"the network has {len(hosts) + len(routers)} hosts and routers; at most {MAX_NODES} are possible"
        )
    for name in hosts.keys() & routers.keys():
        raise ConfigError(f"{name} is both a host and a router; give one another name")
    outwards = {name: host.behind for name, host in hosts.items()}
    outwards |= {name: router.behind for name, router in routers.items()}
    for name in outwards:
        seen = {name}
        behind = outwards[name]
        while behind is not None:
            if behind not in routers:
                raise ConfigError(f"{name} is behind {behind}, which is no router; add it to routers")
            if behind in seen:
                raise ConfigError(f"router {behind} is behind itself; let one in that circle be behind nothing")
            seen.add(behind)
            behind = outwards[behind]


def _link(fields: Fields, default: Link) -> Link:
    both = fields.optional_number("mbit_s", None, 0.001, 100_000.0)
    return Link(
        up_mbit_s=fields.optional_number("up_mbit_s", both or default.up_mbit_s, 0.001, 100_000.0),
        down_mbit_s=fields.optional_number("down_mbit_s", both or default.down_mbit_s, 0.001, 100_000.0),
        jitter_ms=fields.number("jitter_ms", default.jitter_ms, 0.0, 10_000.0),
        loss=fields.number("loss", default.loss, 0.0, 1.0),
        queue_ms=fields.number("queue_ms", default.queue_ms, 1.0, 10_000.0),
        mtu=int(fields.number("mtu", default.mtu, 576, 9000)),
    )


def _one_way_ms(description: Description, fields: Fields) -> dict[tuple[str, str], float]:
    """Delays between sites, from `rtt_ms` (`a-b`, half each way) and `one_way_ms` (`a>b`, which wins)."""
    delays: dict[tuple[str, str], float] = {}
    names = {*description.hosts, *description.routers}
    for pair, rtt in fields.pairs("rtt_ms").items():
        splits = [(pair[:at], pair[at + 1 :]) for at, letter in enumerate(pair) if letter == "-"]
        fitting = [(a, b) for a, b in splits if a in names and b in names]
        if len(fitting) != 1:
            fields.fail(f"rtt_ms has {pair!r}; it must be two names that are known here, with a - between them")
        for ends in (fitting[0], fitting[0][::-1]):
            _set_delay(description, fields, delays, ends, rtt / 2)
    directed: dict[tuple[str, str], float] = {}
    for pair, delay in fields.pairs("one_way_ms").items():
        a, _, b = pair.partition(">")
        if a not in names or b not in names:
            fields.fail(f"one_way_ms has {pair!r}; it must be two names with a > between them")
        _set_delay(description, fields, directed, (a, b), delay)
    return delays | directed


def _set_delay(
    description: Description, fields: Fields, delays: dict[tuple[str, str], float], ends: tuple[str, str], delay: float
) -> None:
    a, b = ends
    sites = description.site(a), description.site(b)
    if sites[0] == sites[1]:
        fields.fail(f"{a} and {b} share one line to the Internet; set lan_rtt_ms of {sites[0]} instead")
    if delays.setdefault(sites, delay) != delay:
        fields.fail(
            f"{a} and {b} are reached by {sites[0]} and {sites[1]}, which have another delay already; leave one out"
        )
