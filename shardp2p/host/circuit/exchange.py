"""Messages on streams, and streams over connections that no relay carries: what relays and their clients share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import trio

from shardp2p.errors import PeerUnavailableError, RemoteProtocolError
from shardp2p.host.circuit.messages import LengthPrefix
from shardp2p.host.failures import NEGOTIATION_FAILURES
from shardp2p.host.host import Host
from shardp2p.host.muxer import GOODBYE, Muxer
from shardp2p.host.negotiation import negotiated_stream, negotiation_failure
from shardp2p.host.stream import HostStream
from shardp2p.vocabulary import PeerId
from shardp2p.wire.stream import Stream

_ENDED: Final = "it ended the stream without an answer"


async def receive_message(stream: Stream) -> bytes | None:
    """The next message, without its length and not a byte more; None at the stream's end.

    Raises: PeerUnavailableError when the stream fails or ends within a message; RemoteProtocolError for a wrong length.
    """
    prefix = LengthPrefix()
    length: int | None = None
    is_first = True
    while length is None:
        byte = await stream.receive_some(1)
        if not byte:
            if is_first:
                return None
            raise PeerUnavailableError(_ENDED, stream.peer)
        is_first = False
        length = prefix.feed(byte[0])
    message = bytearray()
    while len(message) < length:
        piece = await stream.receive_some(length - len(message))
        if not piece:
            raise PeerUnavailableError(_ENDED, stream.peer)
        message += piece
    return bytes(message)


async def receive_answer(stream: Stream) -> bytes:
    """The message that must come now. Raises: PeerUnavailableError, RemoteProtocolError, as above."""
    message = await receive_message(stream)
    if message is None:
        raise PeerUnavailableError(_ENDED, stream.peer)
    return message


def over_direct_connection(stream: Stream) -> HostStream:
    """`stream` as one of a connection without a relay. Raises: RemoteProtocolError for any other."""
    if not isinstance(stream, HostStream) or not stream.connection.path.is_direct:
        raise RemoteProtocolError("circuits run over direct connections only", stream.peer)
    return stream


def direct_connection(host: Host, peer: PeerId, *, from_listen_port: bool = False) -> Muxer | None:
    """The newest live connection to `peer` that no relay carries, a silent one last; one that left from a port that we
    listen on.
    """
    ports = {port for _, port in host.listen_endpoints()} if from_listen_port else set()
    straight = (muxer for muxer in host.connections(peer) if muxer.path.is_direct)
    return next((muxer for muxer in straight if not ports or muxer.local_port in ports), None)


async def open_over(muxer: Muxer, peer: PeerId, protocol: str) -> HostStream:
    """A stream of `protocol` over this very connection. Raises: PeerUnavailableError."""
    try:
        return HostStream(await negotiated_stream(muxer, protocol), peer)
    except NEGOTIATION_FAILURES as error:
        raise PeerUnavailableError(negotiation_failure(peer, protocol, muxer, error), peer) from error


class RelayLinks:
    """Our connections to relays; whoever wants the same relay at the same time shares one."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._dialling: dict[PeerId, trio.Lock] = {}

    def newest(self, relay: PeerId) -> Muxer | None:
        """The newest live connection to `relay`."""
        return direct_connection(self._host, relay)

    async def wait_arrival(self) -> None:
        """Wait for the next new connection, to whomever."""
        await self._host.wait_arrival()

    async def open_stream(
        self, relay: PeerId, protocol: str, addresses: Sequence[str], *, from_listen_port: bool = False
    ) -> HostStream:
        """A stream to `relay` over a live direct connection, else by dialling.

        One over a connection `from_listen_port`, if we listen, has the relay see the mapping that others can punch.
        Raises: PeerUnavailableError, ConfigError.
        """
        muxer = await self._connection(relay, addresses, from_listen_port)
        try:
            return await open_over(muxer, relay, protocol)
        except PeerUnavailableError:
            if muxer.failure != GOODBYE:
                raise
        # The relay closed a connection that it had long not used, in the moment in which we wanted it.
        return await open_over(await self._connection(relay, addresses, from_listen_port), relay, protocol)

    async def _connection(self, relay: PeerId, addresses: Sequence[str], from_listen_port: bool) -> Muxer:
        lock = self._dialling.setdefault(relay, trio.Lock())
        try:
            async with lock:
                found = direct_connection(self._host, relay, from_listen_port=from_listen_port)
                if found is None or found.link.is_troubled:
                    found = await self._host.connect(relay, addresses, ways="straight", from_listen_port=True)
                found.link.watch()
                return found
        finally:
            if not lock.locked():
                self._dialling.pop(relay, None)
