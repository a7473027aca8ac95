"""TCP for libp2p: a buffered stream, and listeners that live in our own nursery.

libp2p's own listener runs in a trio system task, where any exception ends the whole program, and sets SO_REUSEPORT
before it binds, so that a port in use goes unnoticed. Ours sets it afterwards: nobody else's port is shared, and yet
connections can be dialled from the port we listen on, which is what punching holes takes.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Sequence
from typing import Final

import trio
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.io.trio import TrioTCPStream

from shardp2p.errors import ConfigError
from shardp2p.host.addresses import Endpoint, TcpAddress

TAKEN: Final = frozenset({errno.EADDRINUSE, errno.EADDRNOTAVAIL})
"""`dial_from` fails so while another connection of ours, alive or just closed, has the same two ends."""

_ABORT_ON_CLOSE: Final = struct.pack("ii", 1, 0)

_RECEIVE_BYTES: Final = 256 * 1024
"""One system call takes whatever the kernel holds, up to a few Noise messages."""


class BufferedTcpStream(TrioTCPStream):
    """libp2p's TCP stream with a read buffer, since a Noise message is read in two parts, and without locks.

    Our muxer has one reader and one writer task, and the handshake before it is a single task. trio sets TCP_NODELAY.
    """

    def __init__(self, stream: trio.SocketStream) -> None:
        super().__init__(stream)
        self._buffer = memoryview(b"")
        self._is_drained = True

    async def read(self, n: int | None = None) -> bytes:
        """At least one and at most `n` bytes. Raises: ConnectionClosedError at the end as well as on a failure."""
        if not self._buffer:
            try:
                if self._is_drained and self.stream.socket.fileno() >= 0:
                    # trio would first ask the kernel for what it does not have.
                    await trio.lowlevel.wait_readable(self.stream.socket)
                data = await self.stream.receive_some(_RECEIVE_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise ConnectionClosedError(_reason(error), transport="tcp") from error
            if not data:
                raise ConnectionClosedError("closed by the peer", transport="tcp")
            self._is_drained = len(data) < _RECEIVE_BYTES
            self._buffer = memoryview(data)
        taken = self._buffer[:n]
        self._buffer = self._buffer[len(taken) :]
        return bytes(taken)

    async def write(self, data: bytes) -> None:
        """Send all of `data`. Raises: ConnectionClosedError."""
        try:
            await self.stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionClosedError(_reason(error), transport="tcp") from error

    def get_remote_address(self) -> tuple[str, int] | None:
        """The remote host and port, for IPv6 as well."""
        try:
            host, port = self.stream.socket.getpeername()[:2]
        except OSError:
            return None
        return str(host), int(port)


def _reason(error: trio.BrokenResourceError | trio.ClosedResourceError) -> str:
    if isinstance(error, trio.ClosedResourceError):
        return "closed by us"
    cause = error.__cause__
    return (cause.strerror if isinstance(cause, OSError) else None) or "closed by the peer"


async def open_listeners(addresses: Sequence[TcpAddress]) -> list[trio.SocketListener]:
    """A listening socket for each address. Raises: ConfigError that says what to do; none is left open then."""
    listeners: list[trio.SocketListener] = []
    try:
        for address in addresses:
            listeners.append(await _open_listener(address))  # noqa: PERF401 - the list is needed when one fails
    except BaseException:
        for listener in listeners:
            listener.socket.close()
        raise
    return listeners


async def _open_listener(address: TcpAddress) -> trio.SocketListener:
    family = trio.socket.AF_INET6 if address.is_ipv6 else trio.socket.AF_INET
    listening = trio.socket.socket(family, trio.socket.SOCK_STREAM)
    try:
        listening.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_REUSEADDR, 1)
        if address.is_ipv6:
            listening.setsockopt(trio.socket.IPPROTO_IPV6, trio.socket.IPV6_V6ONLY, 1)
        await listening.bind((address.host, address.port))
        listening.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_REUSEPORT, 1)
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise ConfigError(f"cannot listen on {address}: {_listen_advice(error)}") from error
    except BaseException:
        listening.close()
        raise
    return trio.SocketListener(listening)


async def dial_from(source: Endpoint, remote: Endpoint) -> trio.SocketStream:
    """A connection to `remote` that leaves from `source`, where a socket of ours listens.

    Raises: OSError, with an errno of TAKEN when another connection already has these two ends.
    """
    family = socket.AF_INET6 if ":" in remote[0] else socket.AF_INET
    dialling = trio.socket.socket(family, socket.SOCK_STREAM)
    try:
        dialling.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        dialling.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        abort_on_close(dialling)
        await dialling.bind(source)
        await dialling.connect(remote)
    except BaseException:
        dialling.close()
        raise
    return trio.SocketStream(dialling)


def abort_on_close(connected: trio.socket.SocketType) -> None:
    """Have closing `connected` free its two ends at once: a port that we listen on has only one way to each remote."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT_ON_CLOSE)


def source_for(family: int, listening: Sequence[Endpoint]) -> Endpoint | None:
    """From which of the endpoints that we listen on a connection of that address family can leave."""
    return next((at for at in listening if (":" in at[0]) == (family == socket.AF_INET6)), None)


def _listen_advice(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another program already uses this port; choose another, or 0 for any free one"
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine does not have that address; use /ip4/0.0.0.0/tcp/PORT for all it has"
    if error.errno == errno.EACCES:
        return "the port needs privileges; choose one above 1023"
    return error.strerror or str(error)
