"""Drive generations for clients that hold none of the first layers. Protocol: docs/protocols/generate.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from math import inf
from typing import Final

import structlog
import trio

from shardp2p.coordinator.commands import Finish, Limits, Proposer
from shardp2p.coordinator.driver import open_generation
from shardp2p.coordinator.inbound import VerdictInbox
from shardp2p.coordinator.prefix import PrefixKeys
from shardp2p.coordinator.remote_request import from_message
from shardp2p.coordinator.request import GenerationRequest, Result
from shardp2p.coordinator.stream import GenerationStream
from shardp2p.coordinator.waiting import Line
from shardp2p.errors import (
    ConfigError,
    LocalProtocolError,
    OverloadedError,
    PeerUnavailableError,
    RemoteProtocolError,
    ShardError,
    first_of,
)
from shardp2p.scheduler.plan import Plan
from shardp2p.vocabulary import PeerId, Token
from shardp2p.wire.channel import MessageChannel, open_channel
from shardp2p.wire.codec_generate import MAX_LAPS
from shardp2p.wire.driving import Batch, Finished, Generate, LapTime, Working
from shardp2p.wire.messages import Failure, Message
from shardp2p.wire.protocols import GENERATE
from shardp2p.wire.stream import Network, Stream

log = structlog.get_logger()

MAX_DRIVEN: Final = 64
"""Generations for all clients at once: as many as a stage has sessions."""

MAX_DRIVEN_PER_CLIENT: Final = 32
"""Half of it, so that one client cannot shut out all others."""

MAX_LOOKUP_TOKENS: Final = 32_768
"""A longer prompt gets no drafts from itself: their index would take long to build, and hold up everybody."""

REQUEST_S: Final = 10.0
"""How long a stream may stay without its request."""

STALL_S: Final = 60.0
"""How long a client may take nothing while its stream's window is full, which holds thousands of tokens."""

SIGN_S: Final = 4.0
"""A client that wants signs of life hears from us as often; it bears three of them lost."""

FAREWELL_S: Final = 2.0
"""How long a failed generation's stream stays up, so that the client reads the reason."""


class GenerateService:
    """The driver's side. `make_proposer` makes a fresh proposer for a client's request, or None."""

    def __init__(
        self,
        network: Network,
        verdicts: VerdictInbox,
        make_proposer: Callable[[Generate, PeerId], Proposer | None],
        line: Line,
        prefix_keys: PrefixKeys,
    ) -> None:
        self._network = network
        self._verdicts = verdicts
        self._make_proposer = make_proposer
        self._line = line
        self._prefix_keys = prefix_keys
        self._driven: Counter[PeerId] = Counter()  # by client; at most MAX_DRIVEN in all

    @property
    def driven(self) -> int:
        """How many generations are driven now."""
        return self._driven.total()

    async def serve(self, stream: Stream) -> None:
        """Serve one client's generation, from Generate to Finished or Failure."""
        async with open_channel(stream, GENERATE) as channel:
            failure: ShardError | None = None
            try:
                message = await _receive_request(channel)
                plan, request, limits = from_message(message)
                self._admit(channel.peer, plan)
                self._driven[channel.peer] += 1
                try:
                    signs = _Signs(channel, is_wanted=message.wants_signs)
                    proposer = self._proposer_for(message, channel.peer)
                    await self._drive(channel, plan, request, limits, proposer, signs)
                finally:
                    self._driven[channel.peer] -= 1
                    self._driven += Counter()  # forgets clients at zero
            except* _ClientLeftError as group:
                failure = first_of(group)
            except* ShardError as group:
                failure = failure or first_of(group)
            if isinstance(failure, _ClientLeftError):
                raise failure  # resets the stream
            if failure is not None:
                await _report(channel, failure)

    def _admit(self, client: PeerId, plan: Plan) -> None:
        """Raises: OverloadedError, at once, when there is no room; ConfigError for a ring that is none of ours."""
        if all(stage.peer_id != self._network.peer_id for stage in plan.stages):
            raise ConfigError("this peer is no stage of the ring; ask the one that holds the first layers")
        if self.driven >= MAX_DRIVEN or self._driven[client] >= MAX_DRIVEN_PER_CLIENT:
            raise OverloadedError(
                f"it drives {self.driven} generations already, {self._driven[client]} of them for this client; try "
                "again in some seconds, or drive the request locally"
            )

    def _proposer_for(self, message: Generate, client: PeerId) -> Proposer | None:
        return None if len(message.prompt_tokens) > MAX_LOOKUP_TOKENS else self._make_proposer(message, client)

    async def _drive(
        self,
        channel: MessageChannel,
        plan: Plan,
        request: GenerationRequest,
        limits: Limits,
        proposer: Proposer | None,
        signs: _Signs,
    ) -> None:
        """Generate and hand on. The client's leaving cancels it, whatever it waits for."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_watch_client, channel)
            nursery.start_soon(signs.run)

            def open_one(within: GenerationRequest) -> AbstractAsyncContextManager[GenerationStream]:
                return open_generation(
                    self._network, self._verdicts, plan, within, proposer=proposer, limits=limits,
                    prefix_key=self._prefix_keys.of(channel.peer),
                )  # fmt: skip

            async with self._line.open(request, open_one) as stream:
                await _send_all(channel, stream, signs)
            await _send(channel, _finished(stream.result))
            nursery.cancel_scope.cancel()


class _ClientLeftError(PeerUnavailableError):
    """The client went away or takes nothing more: nobody is left to be told anything."""


async def _receive_request(channel: MessageChannel) -> Generate:
    try:
        with trio.fail_after(REQUEST_S):
            message = await channel.receive()
    except trio.TooSlowError:
        raise RemoteProtocolError(f"a stream without a request for {REQUEST_S:.0f} s", channel.peer) from None
    except PeerUnavailableError as error:
        raise _ClientLeftError(str(error), channel.peer) from error
    if not isinstance(message, Generate):
        raise RemoteProtocolError(f"a generate stream began with {type(message).__name__}", channel.peer)
    return message


async def _watch_client(channel: MessageChannel) -> None:
    """Raises when the client goes away, or sends anything: it has said all it may."""
    try:
        message: Message = await channel.receive()
    except PeerUnavailableError as error:
        raise _ClientLeftError(str(error), channel.peer) from error
    raise RemoteProtocolError(f"{type(message).__name__} after the request", channel.peer)


class _Signs:
    """Tells a client that wants to know it that its request is at work here."""

    def __init__(self, channel: MessageChannel, *, is_wanted: bool) -> None:
        self._channel = channel
        self._interval_s = SIGN_S if is_wanted else inf
        self._has_begun = False

    async def run(self) -> None:
        """Give signs until the generation has begun, at once the first."""
        while not self._has_begun and self._interval_s != inf:
            # A sign that is cut short would leave no way to tell of a failure; nothing else fills the window yet.
            with trio.move_on_after(FAREWELL_S, shield=True):
                await _send(self._channel, Working())
            await trio.sleep(self._interval_s)

    async def next_batch(self, stream: GenerationStream) -> tuple[Token, ...]:
        """The next tokens, with signs until they come. Raises: StopAsyncIteration, and what the generation raises."""
        self._has_begun = True
        while True:
            with trio.move_on_after(self._interval_s):
                return await anext(stream)
            await _send(self._channel, Working())


async def _send_all(channel: MessageChannel, stream: GenerationStream, signs: _Signs) -> None:
    with suppress(StopAsyncIteration):
        while True:
            await _send(channel, Batch(await signs.next_batch(stream)))


async def _send(channel: MessageChannel, message: Batch | Finished | Working) -> None:
    """Send, and wait, but not for ever, for a client that reads slowly: only its own generation waits with it."""
    try:
        with trio.fail_after(STALL_S):
            await channel.send(message)
    except trio.TooSlowError:
        raise _ClientLeftError(f"the client takes nothing for {STALL_S:.0f} s", channel.peer) from None
    except PeerUnavailableError as error:
        raise _ClientLeftError(str(error), channel.peer) from error


def _finished(result: Result) -> Finished:
    finish = result.finish
    if not isinstance(finish, Finish) or finish.reason == "cancelled":
        raise LocalProtocolError("a generation ended without an end")
    laps = tuple(LapTime(lap.tokens, lap.lap_s, lap.compute_s) for lap in result.laps[-MAX_LAPS:])
    return Finished(finish.reason, finish.tokens, finish.laps, result.ttft_s or 0.0, result.total_s, laps)


async def _report(channel: MessageChannel, error: ShardError) -> None:
    """Tell the client why its generation ends, and wait (bounded) until it lets go."""
    log.warning("driving_failed", status=error.wire_status, reason=error.message)
    with trio.move_on_after(FAREWELL_S):
        try:
            await channel.send(Failure(error.wire_status, error.message, PeerId(error.peer) if error.peer else None))
            await channel.receive()
        except ShardError:
            return
