"""Serve a layer range to coordinators: admission, sessions, and the ring streams that belong to them.

Start at `StageService.serve_control`; the tasks of one session are in live.py, its decisions in session.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

import structlog
import trio

from shardp2p.errors import (
    ConfigError,
    OverloadedError,
    PeerUnavailableError,
    RemoteProtocolError,
    ShardError,
    blaming,
    first_of,
)
from shardp2p.stage.live import Compute, LiveSession
from shardp2p.vocabulary import DType, LayerRange, PeerId, SessionId
from shardp2p.wire.channel import MessageChannel, open_channel
from shardp2p.wire.credit import INITIAL_CREDITS, CreditReceiver, CreditSender
from shardp2p.wire.messages import Failure, Hello, Open, Opened
from shardp2p.wire.protocols import CONTROL, RING
from shardp2p.wire.stream import Network, Stream

log = structlog.get_logger()

MAX_SESSIONS = 64
"""Sessions at once: each holds a few tasks and streams beside its cache rows."""

HELLO_WAIT_S = 10.0
"""How long an incoming ring stream waits for its session: the coordinator opens all stages at once."""

OPEN_WAIT_S = 10.0
"""How long a control stream may stay without its Open."""

FAREWELL_S = 2.0
"""How long a failed session keeps its streams up, so that the coordinator hears the reason before the neighbours
notice the loss and blame us."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What this stage serves. `cache_rows` is what all sessions together may keep."""

    model_digest: str
    dtype: DType
    cache_rows: int


OpenCompute = Callable[[Open], Awaitable[Compute]]
"""Takes what a new session needs on the device and gives what computes there; worker.py has it."""


class StageService:
    """Control and ring protocols of one block of layers."""

    def __init__(self, network: Network, layers: LayerRange, holding: Holding, open_compute: OpenCompute) -> None:
        self._network = network
        self._layers = layers
        self._holding = holding
        self._open_compute = open_compute
        self._sessions: dict[SessionId, LiveSession | None] = {}  # None while it is being opened
        self._opened = trio.Condition()
        self.free_cache_rows = holding.cache_rows

    async def serve_control(self, stream: Stream) -> None:
        """Serve one coordinator's session, from Open to Closed."""
        async with open_channel(stream, CONTROL) as control:
            try:
                await self._serve_session(control, await _receive_open(control))
            except* ShardError as group:
                await self._report(control, first_of(group))

    async def _serve_session(self, control: MessageChannel, request: Open) -> None:
        self._admit(request)
        self._sessions[request.session] = None
        self.free_cache_rows -= request.cache_rows
        try:
            async with AsyncExitStack() as stack:
                compute = await self._open_compute(request)
                live = LiveSession(request, control=control, compute=compute)
                ring = await self._open_next(control, request, stack)
                self._sessions[request.session] = live
                try:
                    await self._announce(control, request)
                    await live.run(CreditSender(ring), request.next.peer_id)
                except* ShardError as group:
                    await self._report(control, first_of(group))
                finally:
                    live.close()
        finally:
            del self._sessions[request.session]
            self.free_cache_rows += request.cache_rows
            log.info("session_closed", session=request.session)

    async def _open_next(self, control: MessageChannel, request: Open, stack: AsyncExitStack) -> MessageChannel:
        """The ring stream to the next peer. A coordinator that leaves while it is dialled frees its rows at once."""
        peer = request.next.peer_id
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_expect_silence, control)
            with blaming(peer):
                stream = await self._network.open_stream(peer, RING, request.next.addresses)
                ring = await stack.enter_async_context(open_channel(stream, RING))
                await ring.send(Hello(request.session, request.layers.stop))
            nursery.cancel_scope.cancel()
        return ring

    async def _announce(self, control: MessageChannel, request: Open) -> None:
        """Let in a previous peer that waits already, and tell the coordinator that the session stands."""
        async with self._opened:
            self._opened.notify_all()
        await control.send(Opened(self._layers, request.cache_rows))
        log.info("session_opened", session=request.session, coordinator=control.peer)

    def _admit(self, request: Open) -> None:
        """Raises: ConfigError for what this stage does not hold, OverloadedError for what does not fit."""
        for what, asked, held in (
            ("model", request.model_digest, self._holding.model_digest),
            ("dtype", request.dtype, self._holding.dtype),
            ("layers", str(request.layers), str(self._layers)),
        ):
            if asked != held:
                raise ConfigError(f"the {what} asked for is {asked}; this stage serves {held}")
        if request.session in self._sessions:
            raise RemoteProtocolError("the session is open already")
        if request.max_chunks > INITIAL_CREDITS:
            raise ConfigError(f"{request.max_chunks} chunks at once are too many; ask for at most {INITIAL_CREDITS}")
        if request.cache_rows > self.free_cache_rows:
            raise OverloadedError(
                f"{request.cache_rows} cache rows are asked for and {self.free_cache_rows} of "
                f"{self._holding.cache_rows} are free; try again later, or ask for fewer tokens"
            )
        if len(self._sessions) >= MAX_SESSIONS:
            raise OverloadedError(f"{MAX_SESSIONS} sessions are open; try again later")

    async def serve_ring(self, session: SessionId, receiver: CreditReceiver, peer: PeerId) -> None:
        """Serve the ring stream that `peer` opened for `session`, until it ends."""
        live = await self._wait_session(session, peer)
        await live.serve_ring(receiver, peer)

    async def _wait_session(self, session: SessionId, peer: PeerId) -> LiveSession:
        with trio.move_on_after(HELLO_WAIT_S):
            async with self._opened:
                while (live := self._sessions.get(session)) is None:
                    await self._opened.wait()
                return live
        # No fault of the peer's: its coordinator may have left, or have been refused here.
        raise PeerUnavailableError(f"{peer} opened a ring stream for a session that nobody opened here")

    async def _report(self, control: MessageChannel, error: ShardError) -> None:
        """Tell the coordinator why the session ends, and wait (bounded) until it lets go."""
        if isinstance(error, PeerUnavailableError) and error.peer == control.peer:
            log.info("session_abandoned", coordinator=control.peer)
            return
        log.warning("session_failed", status=error.wire_status, reason=error.message)
        peer = PeerId(error.peer) if error.peer else None
        with trio.move_on_after(FAREWELL_S):
            try:
                await control.send(Failure(error.wire_status, error.message, peer))
                while True:
                    await control.receive()
            except ShardError:
                return


async def _receive_open(control: MessageChannel) -> Open:
    try:
        with trio.fail_after(OPEN_WAIT_S):
            request = await control.receive()
    except trio.TooSlowError:
        raise RemoteProtocolError(f"a control stream without Open for {OPEN_WAIT_S:.0f} s", control.peer) from None
    if not isinstance(request, Open):
        raise RemoteProtocolError(f"a control stream began with {type(request).__name__}", control.peer)
    return request


async def _expect_silence(control: MessageChannel) -> None:
    """Raises when the coordinator goes away, or sends anything before it is answered."""
    message = await control.receive()
    raise RemoteProtocolError(f"{type(message).__name__} before the answer to Open", control.peer)
