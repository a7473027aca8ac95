"""Names the connections that can move, moves them to others, and answers peers that move them."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from shardp2p.errors import PeerUnavailableError, RemoteProtocolError, ShardError
from shardp2p.host.carry.exchange import receive, send
from shardp2p.host.failures import NEGOTIATION_FAILURES
from shardp2p.host.link import GONE_S, RESUME_S
from shardp2p.host.muxed_stream import MuxedStream
from shardp2p.host.muxer import Muxer
from shardp2p.host.negotiation import negotiated_stream, negotiation_failure, stream_with
from shardp2p.host.peer_ids import peer_of
from shardp2p.host.stream import HostStream
from shardp2p.vocabulary import PeerId
from shardp2p.wire.carrying import Name, Named, Refused, Resume, Resumed
from shardp2p.wire.codec import encode
from shardp2p.wire.codec_carry import NAME_BYTES
from shardp2p.wire.protocols import CARRY
from shardp2p.wire.stream import Stream

MAX_CONNECTIONS: Final = 1024
"""Connections that may be waiting to be guarded; more than a host has at once."""
NAME_S: Final = 10.0
"""How long a connection keeps what it sends before both sides have agreed that it can move."""
HOLD_S: Final = 1.0
"""How long, beside four round trips, a move may hold back what the old path still delivers."""
AFTER_YOU_S: Final = 0.3
"""Of the two sides that notice a lost path at once, who dialled the connection moves it first."""
RETRY_S: Final = 0.2
"""How soon a connection without a path looks for another again."""

Reconnect = Callable[[Muxer], Awaitable[Muxer | None]]
"""Gives a connection to the same peer that can carry one whose path is suspect or lost; None when there is none. It may
dial; it is asked again while there is trouble. Raises: PeerUnavailableError when the peer is gone for good."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A move under way: over which connection, and what calls it off."""

    over: Muxer
    scope: trio.CancelScope


class Carrier:
    """The moves of one host's connections. `reconnect` is asked where no other live connection can take over."""

    def __init__(self, connections: Callable[[PeerId], Sequence[Muxer]]) -> None:
        self.reconnect: Reconnect | None = None
        self._connections = connections
        self._arriving, self._arrivals = trio.open_memory_channel[Muxer](MAX_CONNECTIONS)
        self._named: dict[tuple[PeerId, bytes], Muxer] = {}
        self._names: dict[Muxer, bytes] = {}
        self._unnamed: dict[Muxer, trio.Event] = {}
        self._attempts: dict[Muxer, _Attempt] = {}

    def add(self, muxer: Muxer) -> None:
        """Have a connection be movable from now on, if the peer agrees; adding it twice changes nothing.

        Direct ones are added by who needs that: it costs a message now, what is kept, and pings.
        """
        if muxer.link.ledger is None or muxer in self._unnamed or muxer in self._names:
            return
        self._unnamed[muxer] = trio.Event()
        try:
            self._arriving.send_nowait(muxer)
        except trio.WouldBlock:
            del self._unnamed[muxer]
            muxer.link.settle()

    async def run(self) -> None:
        """Guard connections, for ever."""
        async with trio.open_nursery() as nursery:
            async for muxer in self._arrivals:
                nursery.start_soon(self._guard, muxer)

    # The life of a connection that can move.

    async def _guard(self, muxer: Muxer) -> None:
        try:
            with trio.move_on_after(NAME_S):
                await (self._name(muxer) if muxer.is_initiator else self._unnamed[muxer].wait())
            del self._unnamed[muxer]
            if not muxer.link.is_movable:
                muxer.link.settle()
                return
            while muxer.failure is None:
                await muxer.link.wait_trouble()
                self._call_off_over(muxer)
                if not muxer.is_initiator:
                    await trio.sleep(AFTER_YOU_S)
                if muxer.failure is None:
                    await self._rescue(muxer)
                    await trio.sleep(RETRY_S)
        finally:
            self._unnamed.pop(muxer, None)
            name = self._names.pop(muxer, None)
            if name is not None:
                self._named.pop((peer_of(muxer.peer_id), name), None)

    async def _name(self, muxer: Muxer) -> None:
        """Agree with the peer that `muxer` can move, if it can."""
        name = secrets.token_bytes(NAME_BYTES)
        try:
            stream = await self._open(muxer)
        except PeerUnavailableError:
            return
        try:
            muxer.link.keep()
            await send(stream, Name(name))
            if isinstance(await receive(stream), Named):
                self._know(muxer, name)
            await stream.close()
        except ShardError as error:
            log.debug("connection_not_named", error=error.message)
        finally:
            await stream.reset()

    def _know(self, muxer: Muxer, name: bytes) -> None:
        self._names[muxer] = name
        self._named[peer_of(muxer.peer_id), name] = muxer
        muxer.link.be_named()

    async def _rescue(self, muxer: Muxer) -> None:
        """Move `muxer` to the first connection that can take over, while it is in trouble."""
        for over in self._others(muxer):
            if await self._try_move(muxer, over):
                return
        # Whom a machine that is busy keeps waiting answers soon: a straight path is replaced only once it is lost.
        is_worth_dialling = muxer.link.lost is not None if muxer.is_as_dialled else muxer.link.is_troubled
        if self.reconnect is not None and is_worth_dialling:
            await self._try_another(muxer, self.reconnect)

    async def _try_another(self, muxer: Muxer, reconnect: Reconnect) -> None:
        fresh = None
        try:
            with trio.move_on_after(GONE_S):
                fresh = await reconnect(muxer)
        except PeerUnavailableError as error:
            log.debug("peer_gone", peer=peer_of(muxer.peer_id), reason=error.message)
            muxer.link.give_up()
        if fresh is not None:
            await self._try_move(muxer, fresh)

    def _others(self, muxer: Muxer) -> list[Muxer]:
        """Those that can take over: all of whose way is sound, relays included, and not the way of `muxer` itself."""
        own = _way(muxer)[-1]
        ways = {other: _way(other) for other in self._connections(peer_of(muxer.peer_id))}
        return [
            other for other, way in ways.items() if way[-1] is not own and muxer not in way and not other.is_doubtful
        ]

    async def _try_move(self, muxer: Muxer, over: Muxer) -> bool:
        """Whether `muxer` is out of trouble."""
        if muxer.failure is None and muxer.link.is_troubled:
            try:
                await self.move(muxer, over)
            except PeerUnavailableError as error:
                log.debug("move_failed", peer=peer_of(muxer.peer_id), error=error.message)
        return not muxer.link.is_troubled

    # Moving.

    async def move(self, muxer: Muxer, over: Muxer) -> None:
        """Have `over`, another connection to the same peer, carry `muxer` from now on; its streams do not notice.

        Cancelled, it may have moved or not, and the streams go on either way.
        Raises: PeerUnavailableError with the reason for which it stays where it is.
        """
        peer = peer_of(muxer.peer_id)
        if muxer in self._attempts or rides_on(over, muxer) or over.peer_id != muxer.peer_id:
            raise PeerUnavailableError("the connection is being moved already, or would carry itself", peer)
        if any(rides_on(attempt.over, muxer) for attempt in self._attempts.values()):
            raise PeerUnavailableError("another connection is about to move to this one", peer)
        with trio.CancelScope(deadline=trio.current_time() + RESUME_S) as scope:
            self._attempts[muxer] = _Attempt(over, scope)
            try:
                await self._ask(muxer, over)
            finally:
                del self._attempts[muxer]
        if scope.cancelled_caught:
            raise PeerUnavailableError("the move was called off, or the peer did not answer in time", peer)
        log.info("connection_moved", peer=peer, path=str(over.path))

    async def _ask(self, muxer: Muxer, over: Muxer) -> None:
        link, peer = muxer.link, peer_of(muxer.peer_id)
        with link.holding(), trio.move_on_after(HOLD_S + 4 * over.round_trip_s):
            ledger = link.ledger
            if ledger is None or not link.is_movable:
                raise PeerUnavailableError("the connection cannot move", peer)
            turn = ledger.ask()
            try:
                stream = await self._open_with(over, Resume(self._names[muxer], turn, ledger.received))
                try:
                    answer = await receive(stream)
                    if not isinstance(answer, Resumed):
                        raise PeerUnavailableError(f"the peer did not move the connection: {answer}", peer)
                    self._switch(muxer, stream, turn, answer.received)
                except BaseException:
                    await stream.reset()
                    raise
            except RemoteProtocolError as error:
                raise PeerUnavailableError(f"the peer answered wrongly: {error}", peer) from error
            else:
                return
            finally:
                ledger.give_up(turn)
        raise PeerUnavailableError("the peer did not answer in time", peer)

    def _switch(self, muxer: Muxer, stream: HostStream, turn: int, received: int) -> None:
        ledger = muxer.link.ledger
        if ledger is None or not (muxer.link.is_movable and ledger.is_current(turn)):
            raise PeerUnavailableError("the connection has moved otherwise, or ended", stream.peer)
        if rides_on(stream.connection, muxer):
            raise PeerUnavailableError("the connection would carry itself", stream.peer)
        try:
            muxer.link.switch(stream.muxed, received)
        except RemoteProtocolError as error:
            muxer.link.refuse(error)
            raise
        for moving, attempt in self._attempts.items():
            if moving is not muxer and rides_on(attempt.over, moving):
                attempt.scope.cancel()  # it holds back the connection over which its answer would come

    def _call_off_over(self, muxer: Muxer) -> None:
        """End attempts whose answer would come over `muxer`, which is in trouble: they hold back paths that live."""
        for attempt in self._attempts.values():
            if rides_on(attempt.over, muxer):
                attempt.scope.cancel()

    async def _open(self, muxer: Muxer) -> HostStream:
        return await self._opened(muxer, negotiated_stream(muxer, CARRY))

    async def _open_with(self, over: Muxer, resume: Resume) -> HostStream:
        """A peer that named the connection speaks the protocol: it is asked without waiting for its consent."""
        return await self._opened(over, stream_with(over, CARRY, encode(CARRY, resume)))

    async def _opened(self, muxer: Muxer, opening: Awaitable[MuxedStream]) -> HostStream:
        peer = peer_of(muxer.peer_id)
        try:
            return HostStream(await opening, peer)
        except NEGOTIATION_FAILURES as error:
            raise PeerUnavailableError(negotiation_failure(peer, CARRY, muxer, error), peer) from error

    # Peers that name or move.

    async def serve(self, stream: Stream) -> None:
        """Answer a peer. Raises: RemoteProtocolError, PeerUnavailableError."""
        assert isinstance(stream, HostStream)
        message = None
        with trio.move_on_after(NAME_S):
            message = await receive(stream)
        match message:
            case Name(name):
                await self._accept_name(stream, name)
            case Resume() as resume:
                muxer = await self._accept_move(stream, resume)
                if muxer is not None:
                    await muxer.link.wait_left(stream.muxed)
            case _:
                raise RemoteProtocolError("an exchange opens with Name or Resume, and at once", stream.peer)

    async def _accept_name(self, stream: HostStream, name: bytes) -> None:
        muxer = stream.connection
        self.add(muxer)
        waiting = self._unnamed.get(muxer)
        if waiting is None or muxer.is_initiator or muxer in self._names or (stream.peer, name) in self._named:
            await send(stream, Refused("this connection does not move"))
            return
        self._know(muxer, name)
        waiting.set()
        await send(stream, Named())

    async def _accept_move(self, stream: HostStream, resume: Resume) -> Muxer | None:
        """The connection that goes on over `stream`; None when it was refused."""
        muxer = self._named.get((stream.peer, resume.name))
        ledger = muxer.link.ledger if muxer is not None and muxer.link.is_movable else None
        if muxer is None or ledger is None or rides_on(stream.connection, muxer):
            await send(stream, Refused("no such connection can move here"))
            return None
        if not ledger.take_turn(resume.turn):
            await send(stream, Refused("another move came first"))
            return None
        if muxer in self._attempts:
            self._attempts[muxer].scope.cancel()
        with muxer.link.holding(), trio.move_on_after(HOLD_S):
            await send(stream, Resumed(ledger.received))
            self._switch(muxer, stream, resume.turn, resume.received)
            return muxer
        raise PeerUnavailableError("the other connection takes no answer", stream.peer)


def rides_on(muxer: Muxer, other: Muxer) -> bool:
    """Whether `muxer` is `other` or is carried by it, through however many."""
    return other in _way(muxer)


def _way(muxer: Muxer) -> list[Muxer]:
    """`muxer`, what carries it, what carries that, and so on: the last has a path of its own."""
    way = [muxer]
    while (carrier := way[-1].carrier) is not None:
        way.append(carrier)
    return way
