"""The process that is the Internet of a network: it holds the namespaces, and passes packets from TUN to TUN.

It has one thread, for namespaces' sake, and talks with its owner over a Unix socket: a message is a JSON object,
answered by one. When the owner is gone it ends the network's processes, and itself.
"""

from __future__ import annotations

import gc
import json
import os
import random
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from shardp2p.errors import ConfigError, LocalProtocolError
from shardp2p.lab.network.addressing import Addresses, plan_addresses
from shardp2p.lab.network.commands import HOST_DEVICE, LAN_DEVICE, WAN_DEVICE, host_up, kernel_router_up
from shardp2p.lab.network.description import Description
from shardp2p.lab.network.internet import Internet
from shardp2p.lab.network.leftovers import end_marked
from shardp2p.lab.network.namespaces import (
    enter,
    enter_new_namespace,
    forget_connections,
    gain_rights,
    let_router_forward,
    open_tun,
    run_ip,
    wake_punctually,
)
from shardp2p.lab.network.reading import parse_description

MAX_MESSAGE_BYTES: Final = 4096
"""Of an order: a few names."""

PASSING_S: Final = 0.0002
"""What waking up for a packet, writing it and waking its reader takes at the least: taken off every delay."""

_PACKET_BYTES: Final = 65_536
_PACKETS_IN_A_ROW: Final = 64
"""From one device, before the others have their turn."""


@dataclass(frozen=True, slots=True)
class Built:
    """What was made: namespaces by node, TUN descriptors by port."""

    namespaces: Mapping[str, int]
    tuns: Mapping[str, int]
    has_user_namespace: bool


def main() -> None:
    """Serve the owner at the other end of a socket. Arguments: its descriptor, seed, mark; stdin: the description."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the owner ends us, after its processes
    control = socket.socket(fileno=int(sys.argv[1]))
    seed, mark = int(sys.argv[2]), sys.argv[3]
    try:
        description = parse_description(sys.stdin.buffer.read())
        addresses = plan_addresses(description)
        built = _build(description, addresses)
    except ConfigError as error:
        control.send(json.dumps({"error": error.message}).encode())
        return
    answer = {"namespaces": built.namespaces, "has_user_namespace": built.has_user_namespace}
    control.send(json.dumps(answer).encode())
    gc.disable()  # nothing here makes circles, and a collection is a pause that everybody's round trips would have
    wake_punctually()
    try:
        _serve(control, Internet(description, addresses, random.Random(seed).random), built)
    finally:
        end_marked(mark)


def _build(description: Description, addresses: Addresses) -> Built:
    has_user_namespace = gain_rights()
    namespaces: dict[str, int] = {}
    tuns: dict[str, int] = {}
    for host in description.hosts.values():
        namespaces[host.name] = enter_new_namespace()
        tuns[host.name] = open_tun(HOST_DEVICE)
        lan = addresses.lans[host.behind] if host.behind is not None else None
        mtu = description.link_of(host.name).mtu if lan is None else 1500
        run_ip(host_up(addresses.outside[host.name], lan, mtu, has_docker=host.has_docker))
    for router in description.routers.values():
        if router.has_upnp:
            namespaces[router.name] = enter_new_namespace()
            tuns[f"{router.name}.lan"] = open_tun(LAN_DEVICE)
            tuns[f"{router.name}.wan"] = open_tun(WAN_DEVICE)
            outer = addresses.lans[router.behind] if router.behind is not None else None
            run_ip(kernel_router_up(addresses.outside[router.name], outer, addresses.lans[router.name], 1500))
            let_router_forward()
    return Built(namespaces, tuns, has_user_namespace)


def _serve(control: socket.socket, internet: Internet, built: Built) -> None:
    """Pass packets and obey, until the owner closes the socket."""
    by_descriptor = {descriptor: port for port, descriptor in built.tuns.items()}
    sources = [control.fileno(), *by_descriptor]
    clock, read, write = time.monotonic, os.read, os.write
    while True:
        due = internet.next_at()
        # select() takes microseconds, epoll() whole milliseconds.
        ready, _, _ = select.select(sources, (), (), None if due is None else max(0.0, due - PASSING_S - clock()))
        for descriptor in ready:
            port = by_descriptor.get(descriptor)
            if port is None:
                if not _obey(control, internet, built):
                    return
                continue
            for _ in range(_PACKETS_IN_A_ROW):
                try:
                    data = read(descriptor, _PACKET_BYTES)
                except BlockingIOError:
                    break
                internet.receive(clock(), port, data)
        for port, data in internet.advance(clock() + PASSING_S):
            try:
                write(built.tuns[port], data)
            except OSError:
                continue  # a device that is full or down loses packets


def _obey(control: socket.socket, internet: Internet, built: Built) -> bool:
    """Carry out one order; says whether the owner is still there."""
    try:
        message = control.recv(MAX_MESSAGE_BYTES)
    except ConnectionError:
        message = b""
    if not message:
        return False
    order = json.loads(message)
    name, arguments = order["do"], order["with"]
    descriptors: list[int] = []
    answer: dict[str, Any] = {}
    if name == "socket":
        host, kind = arguments
        enter(built.namespaces[host])
        made = socket.socket(socket.AF_INET, kind)
        descriptors.append(made.detach())
    else:
        orders: Mapping[str, Callable[..., object]] = {
            "cut": internet.cuts.cut,
            "cut_one_way": internet.cuts.cut_one_way,
            "restore": internet.cuts.restore,
            "forget_mappings": partial(_forget_mappings, internet, built),
            "open_port": internet.open_port,
            "readdress": lambda node: str(internet.readdress(node)),
        }
        if name not in orders:
            raise LocalProtocolError(f"the lab's Internet was told to {name}, which it cannot")
        answer["result"] = orders[name](*arguments)
    try:
        socket.send_fds(control, [json.dumps(answer).encode()], descriptors)
    except ConnectionError:
        return False
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return True


def _forget_mappings(internet: Internet, built: Built, router: str) -> None:
    internet.forget_mappings(router)
    if router in built.namespaces:
        enter(built.namespaces[router])
        forget_connections()


if __name__ == "__main__":
    main()
