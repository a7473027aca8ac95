"""Runs one attempt: the talk over the relay, the dials from the port we listen on, and the handshakes over what opens.

The first connection that stands ends it. Where several open at once the starter decides: it keeps its first and drops
what has not come about, while the other side lets every handshake under way end by itself. If each dropped what it
likes less, nothing might be left.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

import trio
from libp2p.network.connection.raw_connection import RawConnection

from shardp2p.errors import PeerUnavailableError, RemoteProtocolError
from shardp2p.host.addresses import TcpAddress
from shardp2p.host.dialer import AddressError
from shardp2p.host.host import Host
from shardp2p.host.muxer import Muxer
from shardp2p.host.path import PUNCHED, Path
from shardp2p.host.peer_ids import peer_of
from shardp2p.host.punch.attempt import TRY_S, Action, Answer, Ask, Attempt, Dial, End, SaySync, StopDials
from shardp2p.host.punch.messages import Connect, PunchMessage, Sync, encode, receive
from shardp2p.host.stream import HostStream
from shardp2p.host.tcp import TAKEN, BufferedTcpStream, abort_on_close, dial_from, source_for
from shardp2p.vocabulary import PeerId

HANDSHAKE_S: Final = 5.0
"""For a connection that opened: some six round trips, with losses. Two sides in the same role wait for each other."""
LOOK_S: Final = 0.05
"""How often to look whether the peer has meanwhile reached us in another way."""
MAX_EVENTS: Final = 64
"""Undigested ones: more than the dials and the talk have under way at once."""


@dataclass(frozen=True, slots=True)
class _Said:
    talk: int
    message: PunchMessage | str  # a text says why the talk ended


@dataclass(frozen=True, slots=True)
class _Failed:
    dial: Dial
    reason: str


class AttemptRun:
    """One run of `attempt` with `peer`. `open_talk` opens a stream over the relay; `talk` is one of the peer."""

    def __init__(
        self,
        host: Host,
        peer: PeerId,
        attempt: Attempt,
        open_talk: Callable[[], Awaitable[HostStream]],
        talk: HostStream | None = None,
    ) -> None:
        self._host = host
        self._peer = peer
        self._attempt = attempt
        self._open_talk = open_talk
        self._talk = talk
        self._talks = 0
        self._reason = ""
        self._events, self._inbox = trio.open_memory_channel[_Said | _Failed](MAX_EVENTS)
        self._dialling: set[trio.CancelScope] = set()
        self._shaking: set[trio.CancelScope] = set()
        self._ended = trio.lowlevel.ParkingLot()
        self._claims = ExitStack()

    async def run(self) -> Path | str:
        """The path of the connection that came about, or in words why none did. Leaves no socket and no task."""
        try:
            async with trio.open_nursery() as nursery:
                if self._talk is not None:
                    nursery.start_soon(self._listen, self._talk, self._talks)
                self._perform(self._attempt.begin(trio.current_time()), nursery)
                while not self._attempt.is_ended:
                    await self._step(nursery)
                self._stop_dials()
                while self._shaking and self._straight() is not None and not self._attempt.is_starter:
                    await self._ended.park()
                nursery.cancel_scope.cancel()
        finally:
            self._stop_dials()
            for scope in self._shaking:
                scope.cancel()
            if self._talk is not None:
                await self._talk.reset()
        return self._straight() or self._reason or "the connection that came about was lost at once"

    async def _step(self, nursery: trio.Nursery) -> None:
        now = trio.current_time()
        event: _Said | _Failed | None = None
        with trio.move_on_at(min(self._attempt.wake_at, now + LOOK_S)):
            event = await self._inbox.receive()
        if self._straight() is not None:
            self._attempt.finish()
            return
        now = trio.current_time()
        if event is not None:
            self._perform(self._digest(event, now), nursery)
        self._perform(self._attempt.advance(now), nursery)

    def _straight(self) -> Path | None:
        return next((path for path in self._host.paths(self._peer) if path.is_direct), None)

    def _digest(self, event: _Said | _Failed, now: float) -> tuple[Action, ...]:
        if isinstance(event, _Failed):
            return self._attempt.fail_dial(event.dial, event.reason, now)
        if event.talk != self._talks:
            return ()
        if isinstance(event.message, Connect):
            actions = self._attempt.receive_connect(event.message.addresses, now)
            # The other side may dial a moment before we do.
            self._claims.enter_context(self._host.expecting(self._attempt.remotes, self._accept))
            return actions
        if isinstance(event.message, Sync):
            return self._attempt.receive_sync(now)
        return self._attempt.fail_talk(event.message, now)

    def _perform(self, actions: tuple[Action, ...], nursery: trio.Nursery) -> None:
        for action in actions:
            if isinstance(action, Ask):
                self._talks += 1
                nursery.start_soon(self._ask, action, self._talks)
            elif isinstance(action, Answer):
                nursery.start_soon(self._say, Connect(action.addresses))
            elif isinstance(action, SaySync):
                nursery.start_soon(self._say, Sync())
            elif isinstance(action, Dial):
                nursery.start_soon(self._dial, action)
            elif isinstance(action, StopDials):
                self._stop_dials()
            elif isinstance(action, End):
                self._reason = action.reason

    # The talk over the relay.

    async def _ask(self, action: Ask, number: int) -> None:
        if self._talk is not None:
            await self._talk.reset()
            self._talk = None
        try:
            talk = await self._open_talk()
        except PeerUnavailableError as error:
            await self._events.send(_Said(number, error.message))
            return
        self._talk = talk
        await self._say(Connect(action.addresses))
        self._attempt.note_asked(trio.current_time())
        await self._listen(talk, number)

    async def _say(self, message: PunchMessage) -> None:
        assert self._talk is not None
        number = self._talks
        try:
            await self._talk.send_all(encode(message))
        except PeerUnavailableError as error:
            await self._events.send(_Said(number, error.message))

    async def _listen(self, talk: HostStream, number: int) -> None:
        while True:
            try:
                message = await receive(talk)
            except (PeerUnavailableError, RemoteProtocolError) as error:
                await self._events.send(_Said(number, error.message))
                return
            await self._events.send(_Said(number, message))

    # The dials.

    async def _dial(self, dial: Dial) -> None:
        reason = await (self._dial_plainly(dial) if dial.is_plain else self._dial_from_listen_port(dial))
        # Wakes the loop, which looks for itself whether there is a connection now.
        await self._events.send(_Failed(dial, reason or "the connection was lost at once"))

    async def _dial_plainly(self, dial: Dial) -> str | None:
        host, port = dial.remote
        address = str(TcpAddress("ip6" if ":" in host else "ip4", host, port))
        try:
            await self._host.connect(self._peer, [address])
        except PeerUnavailableError as error:
            return error.message
        return None

    async def _dial_from_listen_port(self, dial: Dial) -> str | None:
        family = trio.socket.AF_INET6 if ":" in dial.remote[0] else trio.socket.AF_INET
        source = source_for(family, self._host.listen_endpoints())
        if source is None:
            return "we listen on no port from which it could be dialled"
        stream: trio.SocketStream | None = None
        try:
            with _member_of(self._dialling), trio.fail_after(TRY_S):
                stream = await dial_from(source, dial.remote)
            if stream is not None:
                await self._upgrade(stream)
        except trio.TooSlowError:
            return "no answer"
        except OSError as error:
            return _dial_reason(error)
        except AddressError as error:
            return str(error)
        return None

    async def _accept(self, stream: trio.SocketStream) -> Muxer | None:
        """What the peer's dial opened on our listening socket, in a task of the host."""
        try:
            abort_on_close(stream.socket)
            return await self._upgrade(stream)
        except AddressError:
            return None

    async def _upgrade(self, stream: trio.SocketStream) -> Muxer | None:
        """The connection over an open socket, in the role that both sides agreed on; None when it is dropped.

        Raises: AddressError.
        """
        muxer: Muxer | None = None
        try:
            with _member_of(self._shaking), trio.fail_after(HANDSHAKE_S):
                if self._attempt.is_starter:
                    muxer = await self._host.adopt_accepted(_raw(stream, is_initiator=False), PUNCHED)
                else:
                    muxer = await self._host.adopt_dialled(_raw(stream, is_initiator=True), self._peer, PUNCHED)
        except trio.TooSlowError as error:
            raise AddressError("it opened, but nobody shook hands") from error
        finally:
            self._ended.unpark_all()
            if muxer is None:
                stream.socket.close()
        if muxer is not None and peer_of(muxer.peer_id) != self._peer:
            await muxer.close()
            raise AddressError("another peer answers there")
        return muxer

    def _stop_dials(self) -> None:
        self._claims.close()
        for scope in self._dialling:
            scope.cancel()


@contextmanager
def _member_of(scopes: set[trio.CancelScope]) -> Iterator[None]:
    """While inside, whoever has `scopes` can cancel what is going on."""
    with trio.CancelScope() as scope:
        scopes.add(scope)
        try:
            yield
        finally:
            scopes.discard(scope)


def _raw(stream: trio.SocketStream, *, is_initiator: bool) -> RawConnection:
    return RawConnection(BufferedTcpStream(stream), initiator=is_initiator)


_DIAL_REASONS: Final = {
    errno.ECONNREFUSED: "refused",
    errno.EHOSTUNREACH: "no route",
    errno.ENETUNREACH: "no route",
    errno.ETIMEDOUT: "no answer",
    errno.ECONNRESET: "the other side hung up",
}


def _dial_reason(error: OSError) -> str:
    if error.errno in TAKEN:
        return "another connection of ours has these two ends"
    return _DIAL_REASONS.get(error.errno or 0, error.strerror or str(error))
