"""Both ends of a circuit: dialling a peer over a relay, and being dialled over one where we have a place.

Who only dials needs no place and takes none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog
import trio
from libp2p.network.connection.raw_connection import RawConnection

from shardp2p.errors import PeerUnavailableError, RemoteProtocolError
from shardp2p.host.addresses import CircuitAddress
from shardp2p.host.circuit.circuit_bytes import raw_circuit
from shardp2p.host.circuit.exchange import RelayLinks, over_direct_connection, receive_answer
from shardp2p.host.circuit.keeping import Keeping
from shardp2p.host.circuit.messages import decode_hop, decode_stop, encode_hop, encode_stop
from shardp2p.host.circuit.values import HOP, Connect, HopAnswer, Incoming, Limit, Status, StopAnswer
from shardp2p.host.host import Host
from shardp2p.host.muxer import Muxer
from shardp2p.host.path import relayed
from shardp2p.host.peer_ids import peer_of
from shardp2p.host.stream import HostStream
from shardp2p.vocabulary import PeerId
from shardp2p.wire.stream import Stream

REACH_S: Final = 8.0
"""For a stream to the relay, dialling included."""
ANSWER_S: Final = 8.0
"""For the relay's answer: it waits some seconds for the wanted peer, and says so itself when that one is silent."""
REQUEST_S: Final = 5.0
"""How long a relay that opens a stream may take to say for whom."""
MAX_INCOMING: Final = 32
"""Circuits over which peers are shaking hands with us at the same time."""

_REFUSALS: Final = {
    Status.RESERVATION_REFUSED: "the relay has no room",
    Status.RESOURCE_LIMIT_EXCEEDED: "the relay has no room for another circuit; try again later or over another relay",
    Status.PERMISSION_DENIED: "the relay refuses us",
    Status.CONNECTION_FAILED: "the relay got no answer from that peer",
    Status.NO_RESERVATION: "that peer has no reservation there; it may have moved to another relay",
    Status.MALFORMED_MESSAGE: "the relay did not understand us; it may run another version",
    Status.UNEXPECTED_MESSAGE: "the relay did not understand us; it may run another version",
}

log = structlog.get_logger()


def refusal(status: Status) -> str:
    """A relay's answer other than OK, in words."""
    return _REFUSALS[status]


class CircuitClient:
    """Implements `Circuits` of host/dialer.py, and serves STOP.

    Only relays at which `keeping` has a place may bring circuits, and it hears which of them broke; then it is stirred.
    """

    def __init__(self, host: Host, links: RelayLinks, keeping: Keeping, stir: Callable[[], None]) -> None:
        self._host = host
        self._links = links
        self._keeping = keeping
        self._stir = stir
        self._incoming = 0
        self._taken: dict[Muxer, PeerId] = {}  # connections over circuits to us, and over which relay each came

    async def connect(self, address: CircuitAddress, peer: PeerId) -> RawConnection:
        """The bytes of a circuit to `peer`, not yet secured. Raises: PeerUnavailableError that says why not."""
        relay = address.relay_peer
        if relay == peer:
            raise PeerUnavailableError("a relay is not reached over itself; dial its own address", peer)
        if relay == self._host.peer_id:
            raise PeerUnavailableError("we are that relay, and the peer is not connected to us", peer)
        try:
            with trio.fail_after(REACH_S):
                stream = await self._links.open_stream(relay, HOP, [str(address.relay)])
        except trio.TooSlowError as error:
            raise PeerUnavailableError(f"the relay does not answer within {REACH_S:.0f} s", relay) from error
        try:
            with trio.fail_after(ANSWER_S):
                limit = await _ask(stream, peer)
        except trio.TooSlowError as error:
            await stream.reset()
            raise PeerUnavailableError(f"the relay does not answer within {ANSWER_S:.0f} s", relay) from error
        except BaseException:
            await stream.reset()
            raise
        return raw_circuit(stream, peer, limit, is_dialler=True)

    async def serve_stop(self, anyones: Stream) -> None:
        """Take a circuit that a relay of ours brings, and hold it while it lasts."""
        stream = over_direct_connection(anyones)
        incoming = await _incoming(stream)
        status = self._admission(stream.peer)
        await stream.send_all(encode_stop(StopAnswer(status)))
        if status is not Status.OK:
            return
        muxer = await self._shake_hands(stream, incoming)
        if muxer is None:
            return
        self._began(muxer, stream.peer)
        try:
            await muxer.event_closed.wait()
        finally:
            # The host closes the stream when this returns: first let what is queued leave.
            with trio.CancelScope(shield=True):
                await muxer.close()
            self._ended(muxer)

    def _began(self, muxer: Muxer, relay: PeerId) -> None:
        """Its peer lives, so that whatever circuit of its was lost lately was lost by a relay."""
        now, peer = trio.current_time(), peer_of(muxer.peer_id)
        self._keeping.came(peer, now)
        for other in self._host.connections(peer):
            lost_by = self._taken.pop(other, None) if other.link.lost is not None else None
            if lost_by is not None:
                self._keeping.distrust(lost_by, now)
        self._taken[muxer] = relay
        self._stir()

    def _ended(self, muxer: Muxer) -> None:
        relay = self._taken.pop(muxer, None)
        has_moved = muxer.carrier is not None
        if relay is not None and not has_moved and not muxer.ended_in_order:
            peer = peer_of(muxer.peer_id)
            log.info("circuit_broken", relay=relay, peer=peer, reason=muxer.failure)
            self._keeping.broke(relay, peer, trio.current_time())

    def _admission(self, relay: PeerId) -> Status:
        if not self._keeping.is_ours(relay):
            return Status.PERMISSION_DENIED
        return Status.OK if self._incoming < MAX_INCOMING else Status.RESOURCE_LIMIT_EXCEEDED

    async def _shake_hands(self, stream: HostStream, incoming: Incoming) -> Muxer | None:
        """The connection over the circuit; its peer is who the handshake proves, whatever the relay said."""
        self._incoming += 1
        try:
            raw = raw_circuit(stream, incoming.peer, incoming.limit, is_dialler=False)
            muxer = await self._host.adopt_accepted(raw, relayed(stream.peer))
            if muxer is not None:
                muxer.line = stream.connection
            return muxer
        finally:
            self._incoming -= 1


async def _ask(stream: HostStream, peer: PeerId) -> Limit:
    """Have the relay connect us to `peer`; what it lets the circuit take. Raises: PeerUnavailableError."""
    await stream.send_all(encode_hop(Connect(peer)))
    try:
        answer = decode_hop(await receive_answer(stream))
    except RemoteProtocolError as error:
        raise PeerUnavailableError(f"the relay broke the circuit protocol: {error.message}", stream.peer) from error
    if not isinstance(answer, HopAnswer):
        raise PeerUnavailableError("the relay broke the circuit protocol: it asked instead of answering", stream.peer)
    if answer.status is not Status.OK:
        raise PeerUnavailableError(refusal(answer.status), stream.peer)
    return answer.limit


async def _incoming(stream: HostStream) -> Incoming:
    """For whom a relay opened the stream. Raises: PeerUnavailableError, RemoteProtocolError."""
    try:
        with trio.fail_after(REQUEST_S):
            message = decode_stop(await receive_answer(stream))
    except trio.TooSlowError as error:
        raise PeerUnavailableError(f"the relay did not say for whom within {REQUEST_S:.0f} s", stream.peer) from error
    if not isinstance(message, Incoming):
        raise RemoteProtocolError("the relay answers where it should ask", stream.peer)
    return message
