"""Names the connections that can move, moves them to others, and answers peers that move them."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog
import trio

from shardp2p.errors import PeerUnavailableError, RemoteProtocolError, ShardError
from shardp2p.host.carry.exchange import receive, send
from shardp2p.host.failures import NEGOTIATION_FAILURES
from shardp2p.host.link import GONE_S, RESUME_S
from shardp2p.host.muxer import Muxer
from shardp2p.host.negotiation import negotiated_stream, negotiation_failure
from shardp2p.host.peer_ids import peer_of
from shardp2p.host.stream import HostStream
from shardp2p.vocabulary import PeerId
from shardp2p.wire.carrying import Name, Named, Refused, Resume, Resumed
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
dial; it is asked again while there is trouble."""

log = structlog.get_logger()


class Carrier:
    """The moves of one host's connections. `reconnect` is asked where no other live connection can take over."""

    def __init__(self, connections: Callable[[PeerId], Sequence[Muxer]]) -> None:
        self.reconnect: Reconnect | None = None
        self._connections = connections
        self._arriving, self._arrivals = trio.open_memory_channel[Muxer](MAX_CONNECTIONS)
        self._named: dict[tuple[PeerId, bytes], Muxer] = {}
        self._names: dict[Muxer, bytes] = {}
        self._unnamed: dict[Muxer, trio.Event] = {}
        self._attempts: dict[Muxer, trio.CancelScope] = {}

    def add(self, muxer: Muxer) -> None:
        """Guard a new connection, if it is of a kind that moves; adding it twice changes nothing."""
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
        if self.reconnect is not None and muxer.link.is_troubled:
            fresh = None
            with trio.move_on_after(GONE_S):
                fresh = await self.reconnect(muxer)
            if fresh is not None:
                await self._try_move(muxer, fresh)

    def _others(self, muxer: Muxer) -> list[Muxer]:
        return [
            other
            for other in self._connections(peer_of(muxer.peer_id))
            if not (other.link.is_troubled or other is muxer.carrier or rides_on(other, muxer))
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
        with trio.CancelScope(deadline=trio.current_time() + RESUME_S) as scope:
            self._attempts[muxer] = scope
            try:
                stream = await self._open(over)
                try:
                    await self._ask(muxer, stream, over)
                except BaseException:
                    await stream.reset()
                    raise
            finally:
                del self._attempts[muxer]
        if scope.cancelled_caught:
            raise PeerUnavailableError("the connection was moved otherwise, or the peer did not answer in time", peer)
        log.info("connection_moved", peer=peer, path=str(over.path))

    async def _ask(self, muxer: Muxer, stream: HostStream, over: Muxer) -> None:
        link = muxer.link
        with link.holding(), trio.move_on_after(HOLD_S + 4 * over.round_trip_s):
            ledger = link.ledger
            if ledger is None or not link.is_movable:
                raise PeerUnavailableError("the connection cannot move", stream.peer)
            turn = ledger.ask()
            try:
                await send(stream, Resume(self._names[muxer], turn, ledger.received))
                answer = await receive(stream)
                if not isinstance(answer, Resumed):
                    raise PeerUnavailableError(f"the peer did not move the connection: {answer}", stream.peer)
                self._switch(muxer, stream, turn, answer.received)
            except RemoteProtocolError as error:
                raise PeerUnavailableError(f"the peer answered wrongly: {error}", stream.peer) from error
            else:
                return
            finally:
                ledger.give_up(turn)
        raise PeerUnavailableError("the peer did not answer in time", stream.peer)

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

    async def _open(self, muxer: Muxer) -> HostStream:
        peer = peer_of(muxer.peer_id)
        try:
            return HostStream(await negotiated_stream(muxer, CARRY), peer)
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
            self._attempts[muxer].cancel()
        with muxer.link.holding(), trio.move_on_after(HOLD_S):
            await send(stream, Resumed(ledger.received))
            self._switch(muxer, stream, resume.turn, resume.received)
            return muxer
        raise PeerUnavailableError("the other connection takes no answer", stream.peer)


def rides_on(muxer: Muxer, other: Muxer) -> bool:
    """Whether `muxer` is `other` or is carried by it, through however many."""
    riding: Muxer | None = muxer
    while riding is not None and riding is not other:
        riding = riding.carrier
    return riding is not None
