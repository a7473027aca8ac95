"""A generation that the peer of the ring's first layers drives, as its client sees it. Protocol: generate/1.

A lap then has no hop to the client and back; the tokens come as they are committed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import structlog
import trio

from shardp2p.coordinator.commands import Limits
from shardp2p.coordinator.driver import LAP_S, LAP_TOKEN_S, OPEN_S
from shardp2p.coordinator.remote_answer import RemoteAnswer
from shardp2p.coordinator.remote_request import to_message
from shardp2p.coordinator.request import GenerationRequest, Lap, Result, fit_limits
from shardp2p.coordinator.stream import GenerationStream, running
from shardp2p.errors import (
    MAX_REPORT_CHARACTERS,
    IntegrityError,
    PeerUnavailableError,
    RemoteProtocolError,
    ShardError,
    blaming,
    clipped_report,
    error_from_wire,
)
from shardp2p.scheduler.plan import Plan
from shardp2p.vocabulary import PeerId, Token
from shardp2p.wire.channel import MessageChannel, open_channel
from shardp2p.wire.driving import Batch, DraftKind, Finished, Generate, Working
from shardp2p.wire.messages import Failure, Message
from shardp2p.wire.protocols import GENERATE
from shardp2p.wire.stream import Network

log = structlog.get_logger()

SILENCE_S: Final = 15.0
"""How long a driver may give no sign of life before the first token, while another ring can still be tried."""

LATER_SILENCE_S: Final = 45.0
"""The same once tokens have come: the answer ends with the driver."""

ADVICE_CHARACTERS: Final = 100
"""What a driver adds to the report of a stage: that it went away, and what to do."""

UNREAD_BATCHES: Final = 64
"""What may wait here for a slow reader; behind that, the stream's own window holds up the driver's sending."""


@asynccontextmanager
async def open_remote_generation(
    network: Network,
    plan: Plan,
    request: GenerationRequest,
    *,
    draft: DraftKind = "none",
    limits: Limits | None = None,
) -> AsyncIterator[GenerationStream]:
    """A generation over the ring of `plan`, driven by the peer of its first stage, as long as the context.

    As `coordinator.driver.open_generation` in all that its reader sees. Leaving early ends the work on every peer.
    """
    limits = limits or Limits()
    fit_limits(request, plan, limits, None)
    async with running(_RemoteDriver(network, plan, request, to_message(plan, request, limits, draft))) as stream:
        yield stream


class _RemoteDriver:
    """Implements `coordinator.stream.Source`."""

    def __init__(self, network: Network, plan: Plan, request: GenerationRequest, message: Generate) -> None:
        self._network = network
        self._plan = plan
        self._message = message
        self._tokens_send, self.tokens = trio.open_memory_channel[tuple[Token, ...]](UNREAD_BATCHES)
        self._answer = RemoteAnswer(request)
        # For a next token; longer than the driver itself waits for its ring, so that it is the one that says who hangs.
        self._patience_s = request.wait_s + OPEN_S + 2 * LAP_S + LAP_TOKEN_S * len(request.prompt_tokens)
        self.result = Result()
        self.opened = trio.Event()
        self.failure: ShardError | None = None

    async def run(self) -> None:
        """Have the generation driven, and fill in the result or the failure."""
        first = self._plan.stages[0]
        try:
            with blaming(first.peer_id):
                stream = await self._network.open_stream(first.peer_id, GENERATE, first.addresses)
                async with open_channel(stream, GENERATE) as channel:
                    await channel.send(self._message)
                    await self._read(channel)
        except ShardError as error:
            self.failure = self._named(error)
        finally:
            self._tokens_send.close()
            self.opened.set()

    async def _read(self, channel: MessageChannel) -> None:
        started = trio.current_time()
        patience = started + self._patience_s
        while not isinstance(message := await self._receive(channel, patience), Finished):
            if isinstance(message, Working):
                continue
            if isinstance(message, Failure):
                self.failure = self._reported(message)
                return
            if not isinstance(message, Batch):
                raise RemoteProtocolError(f"{channel.peer} sent {type(message).__name__} as the answer")
            tokens = self._answer.take(message)
            if self.result.ttft_s is None:
                self.result.ttft_s = trio.current_time() - started
                self.opened.set()
            await self._tokens_send.send(tokens)
            patience = trio.current_time() + self._patience_s
        finish = self._answer.finish(message)
        self.result.total_s = trio.current_time() - started
        self.result.laps.extend(Lap(lap.tokens, lap.lap_s, lap.compute_s) for lap in message.by_lap)
        self.result.finish = finish

    async def _receive(self, channel: MessageChannel, until: float) -> Message:
        """The next message; `until` then there must be tokens, and a sign of life before."""
        silence_s = SILENCE_S if self.result.ttft_s is None else LATER_SILENCE_S
        now = trio.current_time()
        with trio.move_on_at(min(until, now + silence_s)):
            return await channel.receive()
        if now + silence_s < until:
            raise PeerUnavailableError(f"it gave no sign of life for {silence_s:.0f} s")
        raise PeerUnavailableError(f"no token came from it for {self._patience_s:.0f} s")

    def _named(self, error: ShardError) -> ShardError:
        """What we see of the driver, as its reader needs it."""
        driver = self._plan.stages[0].peer_id
        place = f"{self._plan.describe(driver)}, which drives the request"
        if isinstance(error, PeerUnavailableError):
            return PeerUnavailableError(
                f"{place}, went away: {error}; start that peer again, or choose others, and repeat the request", driver
            )
        if isinstance(error, RemoteProtocolError | IntegrityError):
            return type(error)(f"{place}: {error}", driver)
        return error

    def _reported(self, failure: Failure) -> ShardError:
        """The error that the driver reports: by a stage, which it names itself, or else it declines the request."""
        driver = self._plan.stages[0].peer_id
        if any(failure.peer_id == stage.peer_id for stage in self._plan.stages):
            peer = PeerId(str(failure.peer_id))
            place = self._plan.describe(peer)
        else:
            peer, place = driver, f"{self._plan.describe(driver)}, which drives the request"
        said = failure.message.removeprefix(place).removeprefix(": ")
        link = " " if said.startswith(" ") else ": "
        text = f"{place}{link}{clipped_report(said.lstrip(), MAX_REPORT_CHARACTERS + ADVICE_CHARACTERS)}"
        return error_from_wire(failure.status, text, peer)
