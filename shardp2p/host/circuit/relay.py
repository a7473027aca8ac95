"""What a relay does for others: it keeps places for those who cannot be dialled, and passes bytes on to them.

Circuits are made and end in the host's own tasks, one for each stream of HOP; leaving ends them all.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from shardp2p.config import RelayLimits
from shardp2p.errors import PeerUnavailableError, RemoteProtocolError
from shardp2p.host.circuit.allowance import Allowance
from shardp2p.host.circuit.exchange import (
    direct_connection,
    open_over,
    over_direct_connection,
    receive_answer,
    receive_message,
)
from shardp2p.host.circuit.messages import decode_hop, decode_stop, encode_hop, encode_stop
from shardp2p.host.circuit.networks import network_of
from shardp2p.host.circuit.slots import Circuit, Place, Slots
from shardp2p.host.circuit.splice import Splice
from shardp2p.host.circuit.values import (
    STOP,
    Connect,
    HopAnswer,
    HopMessage,
    Incoming,
    Limit,
    Reserve,
    Status,
    StopAnswer,
)
from shardp2p.host.host import Host
from shardp2p.host.muxer import Muxer
from shardp2p.host.stream import HostStream
from shardp2p.vocabulary import PeerId
from shardp2p.wire.stream import Stream

REQUEST_S: Final = 5.0
"""How long a peer that opens a stream may take to say what it wants."""
STOP_S: Final = 5.0
"""How long the wanted peer may take to answer: it is connected and has only to say yes."""
SPARE_STREAMS: Final = 8
"""Streams of HOP that a peer may have beside its circuits: its reservation, and requests under way."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Relaying:
    """What this peer lends to others at the moment; `passed_bytes` since it began, both directions."""

    reservations: int
    circuits: int
    passed_bytes: int
    refused: int


class Relay:
    """Serves HOP on `host`, within `limits`."""

    def __init__(self, host: Host, limits: RelayLimits) -> None:
        self._host = host
        self._limits = limits
        self._slots = Slots(limits)
        self._allowance = Allowance(limits.bytes_per_s)
        self._limit = Limit(math.ceil(limits.circuit_s), limits.circuit_bytes)
        self._streams: Counter[PeerId] = Counter()
        self._scopes: set[trio.CancelScope] = set()  # one for each stream, so at most that many
        self._splices: dict[int, Splice] = {}
        self._passed_bytes = 0
        self._refused = 0

    @property
    def state(self) -> Relaying:
        """What is lent now."""
        running = sum(splice.passed_bytes for splice in self._splices.values())
        return Relaying(len(self._slots.peers), len(self._slots.circuits), self._passed_bytes + running, self._refused)

    def end(self) -> None:
        """End every reservation and every circuit."""
        for scope in self._scopes:
            scope.cancel()

    async def serve(self, stream: Stream) -> None:
        """Do what the peer asks for on a stream of HOP. Raises: RemoteProtocolError, PeerUnavailableError."""
        with trio.CancelScope() as scope, self._counted(stream.peer):
            self._scopes.add(scope)
            try:
                await self._answer(stream)
            finally:
                self._scopes.discard(scope)
                if scope.cancel_called:
                    await stream.close()

    @contextmanager
    def _counted(self, peer: PeerId) -> Iterator[None]:
        self._streams[peer] += 1
        try:
            yield
        finally:
            self._streams[peer] -= 1
            if not self._streams[peer]:
                del self._streams[peer]

    async def _answer(self, anyones: Stream) -> None:
        # Read before all else: an answer on a stream that is closed with unread bytes in it would be lost.
        message = await self._asked(anyones)
        try:
            stream = over_direct_connection(anyones)
        except RemoteProtocolError:
            await self._refuse(anyones, Status.PERMISSION_DENIED)
            return
        if self._streams[stream.peer] > self._limits.circuits_per_peer + SPARE_STREAMS:
            await self._refuse(stream, Status.RESOURCE_LIMIT_EXCEEDED)
            return
        match message:
            case Reserve():
                await self._keep_place(stream)
            case Connect(target):
                await self._connect(stream, target)
            case _:
                await self._refuse(stream, Status.UNEXPECTED_MESSAGE)

    async def _asked(self, stream: Stream) -> HopMessage:
        try:
            with trio.fail_after(REQUEST_S):
                return decode_hop(await receive_answer(stream))
        except RemoteProtocolError:
            await self._refuse(stream, Status.MALFORMED_MESSAGE)
            raise
        except trio.TooSlowError as error:
            raise PeerUnavailableError(f"it did not say what it wants within {REQUEST_S:.0f} s", stream.peer) from error

    async def _refuse(self, stream: Stream, status: Status) -> None:
        self._refused += 1
        log.debug("relay_refused", peer=stream.peer, status=status.name)
        await stream.send_all(encode_hop(HopAnswer(status)))

    # Reservations.

    async def _keep_place(self, stream: HostStream) -> None:
        """Keep a place while the stream stays open, and after its end until it expires or the peer is gone."""
        place = self._reserve(stream, None)
        while True:
            if isinstance(place, Status):
                await self._refuse(stream, place)
                return
            expires_at_s = int(time.time() + self._limits.reservation_s)
            await stream.send_all(encode_hop(HopAnswer(Status.OK, expires_at_s, self._limit)))
            if not await self._is_asked_again(stream, place):
                return
            place = self._reserve(stream, place)

    def _reserve(self, stream: HostStream, held: Place | None) -> Place | Status:
        now = trio.current_time()
        if held is not None:
            return self._slots.renew(held, now)
        network = network_of(stream.connection.get_remote_address())
        place = self._slots.reserve(stream.peer, network, now)
        if isinstance(place, Status):
            for peer in self._slots.peers:
                if direct_connection(self._host, peer) is None:
                    self._slots.forget(peer)
            place = self._slots.reserve(stream.peer, network, now)
        return place

    async def _is_asked_again(self, stream: HostStream, place: Place) -> bool:
        """Whether the holder asks for more time; False when the place expires, or the stream ends in order and the
        place is kept.

        Raises: PeerUnavailableError when the place is given up or lost with the connection; RemoteProtocolError.
        """
        try:
            with trio.move_on_at(place.expires_at) as lifetime:
                data = await receive_message(stream)
                if data is None:
                    return False
                if not isinstance(decode_hop(data), Reserve):
                    raise RemoteProtocolError("it asked for something else on the stream of a reservation", stream.peer)
        except BaseException:
            self._slots.release(place)
            raise
        if lifetime.cancelled_caught:
            self._slots.release(place)
        return not lifetime.cancelled_caught

    # Circuits.

    async def _connect(self, stream: HostStream, target: PeerId) -> None:
        circuit = self._slots.connect(stream.peer, target, trio.current_time())
        if isinstance(circuit, Status):
            await self._refuse(stream, circuit)
            return
        try:
            other = await self._ask_target(circuit)
            if isinstance(other, Status):
                await self._refuse(stream, other)
                return
            try:
                await stream.send_all(encode_hop(HopAnswer(Status.OK, limit=self._limit)))
            except BaseException:
                await other.reset()
                raise
            await self._pass_on(circuit, stream, other)
        finally:
            self._slots.end(circuit)

    async def _ask_target(self, circuit: Circuit) -> HostStream | Status:
        """A stream of STOP to the wanted peer, which takes the circuit; else what to tell the one that asked."""
        with trio.move_on_after(STOP_S):
            while (muxer := direct_connection(self._host, circuit.target)) is not None:
                answers: list[HostStream | None] = []
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._ask_over, muxer, circuit, answers, nursery.cancel_scope)
                    # Who lost its line comes back by another, before the end of the first is noticed.
                    while direct_connection(self._host, circuit.target) is muxer:
                        await self._host.wait_arrival()
                    if not answers:
                        nursery.cancel_scope.cancel()
                if answers:
                    return answers[0] or Status.CONNECTION_FAILED
            self._slots.forget(circuit.target)
            return Status.NO_RESERVATION
        log.debug("relay_target_silent", peer=circuit.target)
        return Status.CONNECTION_FAILED

    async def _ask_over(
        self, muxer: Muxer, circuit: Circuit, answers: list[HostStream | None], scope: trio.CancelScope
    ) -> None:
        """Put the stream of STOP that the target took into `answers`, None when it does not want to or cannot."""
        stream: HostStream | None = None
        try:
            stream = await open_over(muxer, circuit.target, STOP)
            await stream.send_all(encode_stop(Incoming(circuit.source, self._limit)))
            answer = decode_stop(await receive_answer(stream))
            if isinstance(answer, StopAnswer) and answer.status is Status.OK:
                answers.append(stream)
        except (PeerUnavailableError, RemoteProtocolError) as error:
            log.debug("relay_target_failed", peer=circuit.target, error=str(error))
        finally:
            if stream is not None and not answers:
                await stream.reset()
        answers += [] if answers else [None]
        scope.cancel()

    async def _pass_on(self, circuit: Circuit, stream: HostStream, other: HostStream) -> None:
        splice = self._splices[circuit.number] = Splice(stream, other, self._limits, self._allowance)
        began = trio.current_time()
        try:
            reason = await splice.run()
        finally:
            del self._splices[circuit.number]
            self._passed_bytes += splice.passed_bytes
        log.info(
            "circuit_ended",
            source=circuit.source,
            target=circuit.target,
            passed_bytes=splice.passed_bytes,
            lasted_s=round(trio.current_time() - began, 1),
            reason=reason,
        )
