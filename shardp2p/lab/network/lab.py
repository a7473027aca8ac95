"""A network that runs: hosts to start programs on, and routers and paths to break.

async with open_network(parse_description(text)) as network:
    child = await network.hosts["alice"].start(["ping", network.hosts["bob"].address])
    await network.cut("alice", "bob")
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from ipaddress import IPv4Address, IPv4Network

import trio

from shardp2p.errors import ConfigError
from shardp2p.lab.children import Child, Children, open_children
from shardp2p.lab.network.addressing import Addresses, plan_addresses
from shardp2p.lab.network.commands import HOST_DEVICE, WAN_DEVICE, entering, marked, readdress
from shardp2p.lab.network.description import Description, Unsolicited
from shardp2p.lab.network.holder import Holder, open_holder
from shardp2p.lab.network.namespaces import find_program
from shardp2p.lab.network.upnp import UpnpGateway


class _Node:
    """A host, or a router that has a namespace."""

    def __init__(self, name: str, address: IPv4Address, holder: Holder, children: Children) -> None:
        self.name = name
        self._address = address
        self._holder = holder
        self._children = children

    @property
    def address(self) -> str:
        """Its address where it is joined to the rest; of a host behind a router, the private one."""
        return str(self._address)

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The files of its namespaces, to be entered in that order, as `Children.start_peer` takes them."""
        holder = f"/proc/{self._holder.pid}"
        users = (f"{holder}/ns/user",) if self._holder.has_user_namespace else ()
        return (*users, f"{holder}/fd/{self._holder.namespaces[self.name]}")

    def entering(self) -> list[str]:
        """The beginning of a command line that runs inside, also from another terminal."""
        command = entering(self.namespaces)
        return [find_program(command[0]), *command[1:]]

    def command(self, command: Sequence[str]) -> list[str]:
        """What runs `command` inside, to start in any way; it ends with the network at the latest."""
        return marked(self._holder.mark, [*self.entering(), *command])

    async def start(
        self, command: Sequence[str], *, name: str | None = None, environment: Mapping[str, str] | None = None
    ) -> Child:
        """Start a program inside, in our environment or in that one. It ends with the network at the latest."""
        return await self._children.start(name or self.name, self.command(command), environment)

    async def run(self, command: Sequence[str], stdin: bytes = b"") -> str:
        """What a program says that is run to its end inside. Raises: ConfigError with its words where it fails."""
        done = await trio.run_process(
            self.command(command), stdin=stdin, capture_stdout=True, stderr=subprocess.STDOUT, check=False
        )
        said = done.stdout.decode(errors="replace")
        if done.returncode:
            raise ConfigError(
                f"{command[0]} on {self.name} of the lab failed: {' '.join(said.split()) or done.returncode}"
            )
        return said


class LabHost(_Node):
    """A host."""

    async def start_peer(
        self, arguments: Sequence[str], *, name: str | None = None, environment: Mapping[str, str] | None = None
    ) -> Child:
        """Start `shardp2p` with these arguments inside, forked where that can be (`Children.start_peer`)."""
        return await self._children.start_peer(name or self.name, arguments, environment, self.namespaces)

    async def open_socket(self, kind: socket.SocketKind = socket.SOCK_STREAM) -> trio.socket.SocketType:
        """A socket inside, for a test that needs no process there."""
        return trio.socket.from_stdlib_socket(await self.open_stdlib_socket(kind))

    async def open_stdlib_socket(self, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
        """As open_socket, for a thread: it blocks."""
        return await self._holder.open_socket(self.name, kind)


class LabRouter(_Node):
    """A router. It has a namespace, to start programs in, only where its kernel translates (UPnP)."""

    _gateway: UpnpGateway | None = None

    async def start_upnp(self, lan: IPv4Network, unsolicited: Unsolicited) -> None:
        """Start what makes a kernel a router with UPnP. Raises: ConfigError."""
        self._gateway = UpnpGateway(self, lan, unsolicited, self._children.directory)
        await self._gateway.start()

    async def forget_mappings(self) -> None:
        """Lose all mappings, and ports opened by UPnP, as in a reboot; ports that its owner opened stay."""
        await self._holder.order("forget_mappings", self.name)
        if self._gateway is not None:
            await self._gateway.start()

    async def open_port(self, port: int, host: LabHost, host_port: int | None = None) -> None:
        """Forward a TCP port to a host behind it, as its owner would set it up."""
        if self._gateway is not None:
            raise ConfigError(f"router {self.name} has UPnP: ask that for a port")
        await self._holder.order("open_port", self.name, port, host.name, port if host_port is None else host_port)


class Network:
    """A network that runs. Made by `open_network`; names are those of its description."""

    def __init__(self, description: Description, addresses: Addresses, holder: Holder, children: Children) -> None:
        self.description = description
        self.addresses = addresses
        self._holder = holder
        self.hosts = {name: LabHost(name, addresses.outside[name], holder, children) for name in description.hosts}
        self.routers = {
            name: LabRouter(name, addresses.outside[name], holder, children) for name in description.routers
        }

    def public_address(self, host: str) -> str:
        """The address that others see of a host when it dials them."""
        node, behind = host, self.description.behind(host)
        while behind is not None and self.description.routers[behind].is_translating:
            node, behind = behind, self.description.behind(behind)
        return (self.hosts | self.routers)[node].address

    async def cut(self, a: str, b: str | None = None, *, is_one_way: bool = False) -> None:
        """Let nothing pass between two hosts or routers, or from the first to the second only.

        Of one alone: pull its cable, which leaves what is behind a router connected among itself. What is on its way
        is lost as well.
        """
        self._check(a, b)
        if is_one_way:
            if b is None:
                raise ConfigError("a cut in one way needs two names: from the first to the second")
            await self._holder.order("cut_one_way", a, b)
        else:
            await self._holder.order("cut", a, b)

    async def restore(self, a: str | None = None, b: str | None = None) -> None:
        """Undo cuts: that of one cable, those between two, or, without names, all."""
        self._check(a, b)
        await self._holder.order("restore", a, b)

    async def readdress(self, name: str) -> str:
        """Give a host or a router another address where it is joined to the rest, and say which.

        Connections by the old one hear nothing of it, as in reality.
        """
        self._check(name)
        node = (self.hosts | self.routers)[name]
        old, new = IPv4Address(node.address), IPv4Address(await self._holder.order("readdress", name))
        node._address = new
        if name in self._holder.namespaces:
            behind = self.description.behind(name)
            lan = self.addresses.lans[behind] if behind is not None else None
            lines = readdress(old, new, lan, HOST_DEVICE if name in self.hosts else WAN_DEVICE)
            script = "".join(line + "\n" for line in lines)
            await node.run([find_program("ip"), "-batch", "-"], script.encode())
        return str(new)

    def _check(self, *names: str | None) -> None:
        for name in names:
            if name is not None and name not in self.hosts and name not in self.routers:
                raise ConfigError(
                    f"{name} is no host or router of this network; it has {', '.join(self.hosts | self.routers)}"
                )


@asynccontextmanager
async def open_network(description: Description, *, seed: int = 0) -> AsyncIterator[Network]:
    """A network as described. When the context is left, however that comes, nothing of it is left.

    Raises: ConfigError, why this machine cannot have one.
    """
    addresses = plan_addresses(description)
    find_program("nsenter")
    async with open_holder(description, seed) as holder, open_children() as children:
        network = Network(description, addresses, holder, children)
        for name, router in description.routers.items():
            if router.has_upnp:
                await network.routers[name].start_upnp(addresses.lans[name], router.unsolicited)
        yield network
