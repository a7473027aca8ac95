"""The bytes of a circuit as libp2p's upgrade wants them, and why they ended."""

from __future__ import annotations

from types import TracebackType
from typing import Final

from libp2p.connection_types import ConnectionType
from libp2p.io.abc import ReadWriteCloser
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.network.connection.raw_connection import RawConnection
from multiaddr import Multiaddr

from shardp2p.errors import PeerUnavailableError
from shardp2p.host.circuit.values import Limit
from shardp2p.host.muxer import Muxer
from shardp2p.host.stream import HostStream
from shardp2p.vocabulary import PeerId

_RECEIVE_BYTES: Final = 256 * 1024
"""A Noise message is read in two parts: take what is there at once."""
_MIB: Final = 1024 * 1024


class CircuitBytes(ReadWriteCloser):
    """One end of a circuit: a stream to the relay, whose other end is a peer. One reader and one writer task."""

    def __init__(self, stream: HostStream, limit: Limit) -> None:
        self._stream = stream
        self._limit = limit
        self._buffer = memoryview(b"")
        self._passed_bytes = 0

    @property
    def line(self) -> Muxer:
        """Our connection to the relay."""
        return self._stream.connection

    async def read(self, n: int | None = None) -> bytes:
        """At least one and at most `n` bytes. Raises: ConnectionClosedError at the end as well as on a failure."""
        if not self._buffer:
            try:
                data = await self._stream.receive_some(_RECEIVE_BYTES)
            except PeerUnavailableError as error:
                raise ConnectionClosedError(self._reason(), transport="circuit") from error
            if not data:
                raise ConnectionClosedError(self._reason(), transport="circuit")
            self._passed_bytes += len(data)
            self._buffer = memoryview(data)
        taken = self._buffer[:n]
        self._buffer = self._buffer[len(taken) :]
        return bytes(taken)

    async def write(self, data: bytes) -> None:
        """Send all of `data`. Raises: ConnectionClosedError."""
        try:
            await self._stream.send_all(data)
        except PeerUnavailableError as error:
            raise ConnectionClosedError(self._reason(), transport="circuit") from error
        self._passed_bytes += len(data)

    async def close(self) -> None:
        """End the circuit; what was sent before still arrives."""
        await self._stream.close()

    def get_remote_address(self) -> tuple[str, int] | None:
        """None: the peer is somewhere behind the relay."""
        return None

    def _reason(self) -> str:
        relay, passed = self._stream.peer, f"{self._passed_bytes / _MIB:.1f} MiB"
        if self._stream.connection.failure is not None:
            return f"lost the relay {relay} after {passed}: {self._stream.connection.failure}"
        allowed = [f"{self._limit.data_bytes / _MIB:.1f} MiB"] if self._limit.data_bytes else []
        allowed += [f"{self._limit.duration_s} s"] if self._limit.duration_s else []
        hint = f", and allows {' and '.join(allowed)}" if allowed else ""
        return f"the relay {relay} ended the circuit after {passed}{hint}"

    async def __aenter__(self) -> CircuitBytes:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def raw_circuit(stream: HostStream, peer: PeerId, limit: Limit, *, is_dialler: bool) -> RawConnection:
    """The circuit over `stream` to `peer`, still to be secured."""
    address = Multiaddr(f"/p2p/{stream.peer}/p2p-circuit/p2p/{peer}")
    return RawConnection(CircuitBytes(stream, limit), is_dialler, ConnectionType.RELAYED, [address])
