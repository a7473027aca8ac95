"""Serve layer ranges to coordinators: admission, sessions, and the ring streams that belong to them.

Start at `StageService.serve_control`; the tasks of one session are in live.py, its decisions in session.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

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
from shardp2p.stage.holding import HeldBlock
from shardp2p.stage.live import END_S, LiveSession
from shardp2p.vocabulary import PeerId, SessionId
from shardp2p.wire.channel import MessageChannel, open_channel
from shardp2p.wire.credit import CreditReceiver, CreditSender
from shardp2p.wire.messages import Failure, Hello, Open, Opened
from shardp2p.wire.protocols import CONTROL, INITIAL_CREDITS, RING
from shardp2p.wire.stream import Network, Stream

log = structlog.get_logger()

MAX_SESSIONS = 64
"""Sessions at once, of all that is held: each has a few tasks and streams beside its cache rows."""

HELLO_WAIT_S = 10.0
"""How long an incoming ring stream waits for its session: the coordinator opens all stages at once."""

OPEN_WAIT_S = 10.0
"""How long a control stream may stay without its Open."""

FAREWELL_S = 2.0
"""How long a failed session keeps its streams up, so that the coordinator hears the reason before the neighbours
notice the loss and blame us."""

Place = tuple[SessionId, int]
"""A session and the first layer that it runs: one peer may be several stages of a ring."""


class StageService:
    """Control and ring protocols of all the blocks of layers that a peer holds."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._held: list[HeldBlock] = []
        self._sessions: dict[Place, LiveSession | None] = {}  # None while it is being opened
        self._opened = trio.Condition()
        self.keeps_rows = True
        """Whether rows of sessions that have ended may serve later ones."""

    @property
    def open_sessions(self) -> int:
        """How many sessions are open or being opened."""
        return len(self._sessions)

    @property
    def held(self) -> tuple[HeldBlock, ...]:
        """What is served or draining, in the order of holding."""
        return tuple(self._held)

    def hold(self, held: HeldBlock) -> None:
        """Serve `held`, beside what is served already, from now on."""
        self._held.append(held)

    async def release(self, held: HeldBlock) -> None:
        """Let go of `held`: no new sessions; returns when those that run have ended.

        When it is cancelled they are ended at once, and their coordinators told why.
        """
        held.is_draining = True
        try:
            await held.wait_idle()
        finally:
            held.evicted.set()
            with trio.CancelScope(shield=True), trio.move_on_after(FAREWELL_S + END_S):
                await held.wait_idle()
            held.budget.kept.drop(held)
            self._held = [other for other in self._held if other is not held]

    async def serve_control(self, stream: Stream) -> None:
        """Serve one coordinator's session, from Open to Closed."""
        async with open_channel(stream, CONTROL) as control:
            try:
                await self._serve_session(control, await _receive_open(control))
            except* ShardError as group:
                await self._report(control, first_of(group))

    async def _serve_session(self, control: MessageChannel, request: Open) -> None:
        place = (request.session, request.layers.start)
        held = self._choose(request)
        found = held.find_rows(request, control.peer)  # before memory is taken, so that it is the last to be dropped
        taken_bytes = held.open_session(request.layers, request.cache_rows)
        self._sessions[place] = None
        if found is not None and not held.is_there(found):
            found = None  # its memory is the new session's
        try:
            async with AsyncExitStack() as stack:
                compute = await held.open_compute(request)
                stack.callback(held.let_go, compute)
                shared_rows = await held.share(compute, found)
                del found  # or its memory would stay taken after it is dropped
                keep = held.keeper(request, control.peer, compute, taken_bytes) if self.keeps_rows else None
                live = LiveSession(request, control=control, compute=compute, shared_rows=shared_rows, keep=keep)
                ring = await self._open_next(control, request, stack)
                self._sessions[place] = live
                try:
                    opened = Opened(request.layers, request.cache_rows, shared_rows, keeps_rows=keep is not None)
                    await self._announce(control, request.session, opened)
                    with held.running(request, control.peer, compute, live):
                        await _run_until_evicted(live, held, CreditSender(ring), request.next.peer_id)
                except* ShardError as group:
                    await self._report(control, first_of(group))
                finally:
                    live.close()
        finally:
            del self._sessions[place]
            held.close_session(taken_bytes)
            log.info("session_closed", session=request.session, layers=str(request.layers))

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

    async def _announce(self, control: MessageChannel, session: SessionId, opened: Opened) -> None:
        """Let in a previous peer that waits already, and tell the coordinator that the session stands."""
        async with self._opened:
            self._opened.notify_all()
        await control.send(opened)
        log.info("session_opened", session=session, coordinator=control.peer, shared_rows=opened.shared_rows)

    def _choose(self, request: Open) -> HeldBlock:
        """The block that is to run a new session.

        Raises: ConfigError for what is not held here; PeerUnavailableError for what is not held any more;
        OverloadedError when too many sessions are open.
        """
        serving = [held for held in self._held if not held.is_draining]
        if not serving:
            raise PeerUnavailableError("this peer lets go of its layers and takes no new sessions")
        serving = _only("model", request.model_digest, serving, lambda held: held.holding.model_digest)
        serving = _only("dtype", request.dtype, serving, lambda held: held.holding.dtype)
        fitting = [held for held in serving if held.can_run(request.layers)]
        if not fitting:
            raise _not_held("layers", str(request.layers), [str(held.layers) for held in serving])
        if (request.session, request.layers.start) in self._sessions:
            raise RemoteProtocolError("the session is open already")
        if request.max_chunks > INITIAL_CREDITS:
            raise ConfigError(f"{request.max_chunks} chunks at once are too many; ask for at most {INITIAL_CREDITS}")
        if len(self._sessions) >= MAX_SESSIONS:
            raise OverloadedError(f"{MAX_SESSIONS} sessions are open; try again in some seconds")
        return max(fitting, key=lambda held: held.free_cache_rows)

    async def serve_ring(self, hello: Hello, receiver: CreditReceiver, peer: PeerId) -> None:
        """Serve the ring stream that `peer` opened with `hello`, until it ends."""
        live = await self._wait_session((hello.session, hello.layer), peer)
        await live.serve_ring(receiver, peer)

    async def _wait_session(self, place: Place, peer: PeerId) -> LiveSession:
        with trio.move_on_after(HELLO_WAIT_S):
            async with self._opened:
                while (live := self._sessions.get(place)) is None:
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


def _only(what: str, asked: str, serving: Sequence[HeldBlock], value_of: Callable[[HeldBlock], str]) -> list[HeldBlock]:
    """Those of `serving` whose value is the one asked for. Raises: ConfigError when there is none."""
    fitting = [held for held in serving if value_of(held) == asked]
    if not fitting:
        raise _not_held(what, asked, [value_of(held) for held in serving])
    return fitting


def _not_held(what: str, asked: str, held: Sequence[str]) -> ConfigError:
    return ConfigError(f"the {what} asked for is {asked}; this stage serves {' and '.join(sorted(set(held)))}")


async def _run_until_evicted(live: LiveSession, held: HeldBlock, sender: CreditSender, next_peer: str) -> None:
    """Run a session to its end. Raises what ended it early, in an exception group."""

    async def watch() -> None:
        await held.evicted.wait()
        raise PeerUnavailableError(f"this peer lets go of the layers {held.layers}")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        await live.run(sender, next_peer)
        nursery.cancel_scope.cancel()


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
