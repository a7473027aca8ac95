"""The exact commands that give a namespace its interfaces, and that start a program in one. Pure.

Lines are for `ip -batch -`; the TUN device is there already.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network
from typing import Final

HOST_DEVICE: Final = "eth0"
LAN_DEVICE: Final = "lan0"
WAN_DEVICE: Final = "wan0"

MARK_VARIABLE: Final = "SHARDP2P_LAB"
"""In the environment of every process of a network, so that those that outlive it are found."""

_QUEUED_PACKETS: Final = 2000
"""That a device holds while the router is busy with others."""

_DOCKER: Final = IPv4Network("172.17.0.0/16")


def device_up(device: str, address: str, mtu: int) -> list[str]:
    """Give a device its address and start it."""
    return [
        f"address add {address} dev {device}",
        f"link set {device} mtu {mtu} txqueuelen {_QUEUED_PACKETS} up",
    ]


def host_up(address: IPv4Address, lan: IPv4Network | None, mtu: int, *, has_docker: bool) -> list[str]:
    """All of a host: behind a router where there is a `lan`, else with a public address."""
    lines = ["link set lo up", *device_up(HOST_DEVICE, prefixed(address, lan), mtu), default_route(lan)]
    if has_docker:
        lines += [
            "link add docker0 type bridge",
            f"address add {_DOCKER[1]}/{_DOCKER.prefixlen} dev docker0",
            "link set docker0 up",
        ]
    return lines


def kernel_router_up(outside: IPv4Address, outer: IPv4Network | None, inside: IPv4Network, mtu: int) -> list[str]:
    """Both sides of a router whose kernel translates. `outer` is the LAN that it is in itself."""
    return [
        "link set lo up",
        *device_up(LAN_DEVICE, prefixed(inside[1], inside), mtu),
        *device_up(WAN_DEVICE, prefixed(outside, outer), mtu),
        default_route(outer, WAN_DEVICE),
    ]


def readdress(old: IPv4Address, new: IPv4Address, lan: IPv4Network | None, device: str = HOST_DEVICE) -> list[str]:
    """Give a device another address; what used the old one is left to find out."""
    return [
        f"address del {prefixed(old, lan)} dev {device}",
        f"address add {prefixed(new, lan)} dev {device}",
        default_route(lan, device, verb="replace"),
    ]


def default_route(lan: IPv4Network | None, device: str = HOST_DEVICE, verb: str = "add") -> str:
    """The way out: by the router, or, of a public address, by the device."""
    via = f"via {lan[1]} " if lan is not None else ""
    return f"route {verb} default {via}dev {device}"


def prefixed(address: IPv4Address, lan: IPv4Network | None) -> str:
    """An address as a device has it; a public one is alone in its network."""
    return f"{address}/{lan.prefixlen if lan is not None else 32}"


def entering(namespaces: Sequence[str]) -> list[str]:
    """The beginning of a command that runs in these namespaces: a network's, after its user namespace if it has one."""
    *users, network = namespaces
    own_users = [part for user in users for part in ("--preserve-credentials", f"--user={user}")]
    return ["nsenter", *own_users, f"--net={network}", "--"]


def marked(mark: str, command: Sequence[str]) -> list[str]:
    """`command` with the mark of its network in its environment."""
    return ["env", f"{MARK_VARIABLE}={mark}", *command]
