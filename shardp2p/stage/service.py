"""Serve a layer range to coordinators: admission, sessions, and the ring streams that belong to them.

Start at `StageService.serve_control`; the tasks of one session are in live.py, its decisions in session.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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
from shardp2p.stage.live import LiveSession
from shardp2p.stage.session import Work
from shardp2p.stage.worker import SessionWorker
from shardp2p.vocabulary import DType, PeerId, SamplingParams, SessionId, Token
from shardp2p.wire.channel import MessageChannel, open_channel
from shardp2p.wire.credit import INITIAL_CREDITS, CreditReceiver, CreditSender
from shardp2p.wire.messages import Activations, Failure, Hello, Open, Opened, Verdict
from shardp2p.wire.protocols import CONTROL, RING
from shardp2p.wire.stream import Network, Stream

if TYPE_CHECKING:
    from shardp2p.runtime.block import Block
    from shardp2p.runtime.device import DeviceThread

log = structlog.get_logger()

MAX_SESSIONS = 64
"""Sessions at once: each holds a few tasks and streams beside its cache rows."""

HELLO_WAIT_S = 10.0
"""How long an incoming ring stream waits for its session: the coordinator opens all stages at once."""

FAREWELL_S = 2.0
"""How long a failed session keeps its streams up, so that the coordinator hears the reason before the neighbours
notice the loss and blame us."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What this stage serves. `cache_rows` is what all sessions together may keep."""

    model_digest: str
    dtype: DType
    cache_rows: int


class StageService:
    """Control and ring protocols of one block."""

    def __init__(self, network: Network, block: Block, device: DeviceThread, holding: Holding) -> None:
        self._network = network
        self._block = block
        self._device = device
        self._holding = holding
        self._sessions: dict[SessionId, LiveSession] = {}
        self._opened = trio.Condition()
        self.free_cache_rows = holding.cache_rows

    async def serve_control(self, stream: Stream) -> None:
        """Serve one coordinator's session, from Open to Closed."""
        async with open_channel(stream, CONTROL) as control:
            try:
                request = await control.receive()
                if not isinstance(request, Open):
                    raise RemoteProtocolError(f"a control stream began with {type(request).__name__}")
                await self._serve_session(control, request)
            except* ShardError as group:
                await self._report(control, first_of(group))

    async def _serve_session(self, control: MessageChannel, request: Open) -> None:
        self._admit(request)
        self.free_cache_rows -= request.cache_rows
        try:
            worker = await self._device.run(self._new_worker, request)

            async def compute(work: Work, tokens: tuple[Token, ...]) -> Activations | Verdict:
                return await self._device.run(worker.run, work, tokens)

            live = LiveSession(request, control=control, compute=compute)
            with blaming(request.next.peer_id):
                out = await self._network.open_stream(request.next.peer_id, RING, request.next.addresses)
            async with open_channel(out, RING) as ring:
                await ring.send(Hello(request.session))
                self._sessions[request.session] = live
                async with self._opened:
                    self._opened.notify_all()
                await control.send(Opened(self._block.layers, request.cache_rows))
                log.info("session_opened", session=request.session, coordinator=control.peer)
                try:
                    await live.run(CreditSender(ring), request.next.peer_id)
                except* ShardError as group:
                    await self._report(control, first_of(group))
                finally:
                    live.close()
        finally:
            self._sessions.pop(request.session, None)
            self.free_cache_rows += request.cache_rows
            log.info("session_closed", session=request.session)

    def _admit(self, request: Open) -> None:
        """Raises: ConfigError for what this stage does not hold, OverloadedError for what does not fit."""
        for what, asked, held in (
            ("model", request.model_digest, self._holding.model_digest),
            ("dtype", request.dtype, self._holding.dtype),
            ("layers", str(request.layers), str(self._block.layers)),
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

    def _new_worker(self, request: Open) -> SessionWorker:
        return SessionWorker(
            self._block,
            cache_rows=request.cache_rows,
            sampling=request.sampling or SamplingParams(),
            prompt_tokens=request.prompt_tokens,
            wire_scheme=request.wire_scheme,
        )

    async def serve_ring(self, session: SessionId, receiver: CreditReceiver, peer: PeerId) -> None:
        """Serve the ring stream that `peer` opened for `session`, until it ends."""
        live = await self._wait_session(session, peer)
        await live.serve_ring(receiver, peer)

    async def _wait_session(self, session: SessionId, peer: PeerId) -> LiveSession:
        with trio.move_on_after(HELLO_WAIT_S):
            async with self._opened:
                while session not in self._sessions:
                    await self._opened.wait()
                return self._sessions[session]
        raise RemoteProtocolError(f"{peer} opened a ring stream for a session that nobody opened here")

    async def _report(self, control: MessageChannel, error: ShardError) -> None:
        """Tell the coordinator why the session ends, and wait (bounded) until it lets go."""
        log.warning("session_failed", status=error.wire_status, reason=error.message)
        if isinstance(error, PeerUnavailableError) and error.peer == control.peer:
            return
        peer = PeerId(error.peer) if error.peer else None
        with trio.move_on_after(FAREWELL_S):
            try:
                await control.send(Failure(error.wire_status, error.message, peer))
                while True:
                    await control.receive()
            except ShardError:
                return
