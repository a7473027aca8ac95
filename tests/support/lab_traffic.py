"""Traffic between hosts of a lab network, without processes of its own."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

import trio

from shardp2p.lab.network.description import Description
from shardp2p.lab.network.lab import LabHost, Network
from shardp2p.lab.network.reading import parse_description

PORT = 4001
Address = tuple[str, int]


def described(**description: Any) -> Description:
    return parse_description(json.dumps(description))


async def udp_socket(host: LabHost, port: int = 0) -> trio.socket.SocketType:
    made = await host.open_socket(socket.SOCK_DGRAM)
    await made.bind(("0.0.0.0", port))
    return made


async def tcp_socket(host: LabHost, port: int = 0) -> trio.socket.SocketType:
    """A socket whose port others may have as well, as hole punching needs it."""
    made = await host.open_socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    await made.bind(("0.0.0.0", port))
    return made


async def tell_senders(host: LabHost, port: int, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    """Answer each datagram with the endpoint that it came from."""
    with await udp_socket(host, port) as made:
        task_status.started()
        while True:
            _, sender = await made.recvfrom(2048)
            await made.sendto(json.dumps(sender).encode(), sender)


async def seen_by(server: Address, client: trio.socket.SocketType) -> Address:
    """The endpoint that a server in `tell_senders` sees of the client; asked again while packets are lost."""
    while True:
        await client.sendto(b"?", server)
        with trio.move_on_after(1.0):
            answer, _ = await client.recvfrom(2048)
            host, port = json.loads(answer)
            return host, port


async def accepted(listener: trio.socket.SocketType, client: trio.socket.SocketType, to: Address) -> Address:
    """The endpoint that the listener sees of a client that dials it."""
    listener.listen(8)
    await client.connect(to)
    connection, peer = await listener.accept()
    connection.close()
    return peer[0], peer[1]


async def dial(host: LabHost, to: Address, port: int = 0, within_s: float = 2.0) -> str:
    """How dialling ends: connected, refused or silent."""
    with await tcp_socket(host, port) as made:
        try:
            with trio.fail_after(within_s):
                await made.connect(to)
        except ConnectionRefusedError:
            return "refused"
        except trio.TooSlowError:
            return "silent"
        return "connected"


async def punch(network: Network, a: str, b: str, relay: str) -> bool:
    """Whether two hosts get a TCP connection by dialling each other's mapping at once, again and again."""
    mapped: dict[str, Address] = {}
    for name in (a, b):
        host = network.hosts[name]
        with await tcp_socket(network.hosts[relay]) as listener, await tcp_socket(host, PORT) as client:
            to = (network.hosts[relay].address, listener.getsockname()[1])
            mapped[name] = await accepted(listener, client, to)
    connected: list[str] = []

    async def keep_dialling(source: str, to: Address, stop: Callable[[], None]) -> None:
        for _ in range(5):
            if await dial(network.hosts[source], to, PORT, within_s=1.0) == "connected":
                connected.append(source)
                stop()
                return
            await trio.sleep(0.05)

    async with trio.open_nursery() as nursery:
        for source, target in ((a, b), (b, a)):
            nursery.start_soon(keep_dialling, source, mapped[target], nursery.cancel_scope.cancel)
    return bool(connected)
