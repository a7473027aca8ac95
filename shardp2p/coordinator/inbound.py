"""Verdicts come back on ring streams that the last stages open to us: this hands each to its generation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from shardp2p.errors import PeerUnavailableError, RemoteProtocolError, ShardError
from shardp2p.vocabulary import PeerId, SessionId
from shardp2p.wire.credit import CreditReceiver
from shardp2p.wire.messages import End, Verdict

INBOX_VERDICTS = 64
"""More than a generation has chunks in flight."""


class VerdictInbox:
    """The inbound half of the ring protocol at the coordinator."""

    def __init__(self) -> None:
        self._expected: dict[SessionId, tuple[PeerId, trio.MemorySendChannel[Verdict | ShardError]]] = {}
        self._receiving: dict[SessionId, trio.MemoryReceiveChannel[Verdict | ShardError]] = {}

    def knows(self, session: SessionId) -> bool:
        """Whether a generation of ours expects verdicts for `session`."""
        return session in self._expected

    def expect(self, session: SessionId, last_stage: PeerId) -> None:
        """Accept a ring stream for `session` from `last_stage` until `forget`."""
        send, receive = trio.open_memory_channel[Verdict | ShardError](INBOX_VERDICTS)
        self._expected[session] = (last_stage, send)
        self._receiving[session] = receive

    def forget(self, session: SessionId) -> None:
        """Take no more verdicts for `session`."""
        del self._expected[session]
        self._receiving.pop(session).close()

    async def collect(
        self, session: SessionId, last_stage: PeerId, deliver: Callable[[Verdict], Awaitable[None]]
    ) -> None:
        """Deliver the verdicts of `session` as they come. Raises what the stream failed with."""
        async for message in self._receiving[session]:
            if isinstance(message, ShardError):
                message.peer = message.peer or last_stage
                raise message
            await deliver(message)

    async def serve_ring(self, session: SessionId, receiver: CreditReceiver, peer: PeerId) -> None:
        """Serve the ring stream that `peer` opened for `session`, until it ends.

        Raises: RemoteProtocolError when no generation of ours expects it from that peer.
        """
        last_stage, send = self._expected.get(session, (None, None))
        if send is None or last_stage != peer:
            raise RemoteProtocolError(f"{peer} opened a ring stream that no generation here expects")
        try:
            await self._forward(receiver, send)
        except trio.BrokenResourceError:
            return  # the generation is over
        except ShardError as error:
            await self._fail(send, error)

    async def _forward(self, receiver: CreditReceiver, send: trio.MemorySendChannel[Verdict | ShardError]) -> None:
        while not isinstance(message := await receiver.receive(), End):
            if not isinstance(message, Verdict):
                raise RemoteProtocolError(f"the last stage sent {type(message).__name__} instead of Verdict")
            await send.send(message)
            await receiver.finish()

    async def _fail(self, send: trio.MemorySendChannel[Verdict | ShardError], error: ShardError) -> None:
        try:
            await send.send(error)
        except trio.BrokenResourceError:
            if not isinstance(error, PeerUnavailableError):
                raise error from None
