"""Verdicts come back on ring streams that the last stages open to us: this hands each to its generation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio

from shardp2p.errors import PeerUnavailableError, RemoteProtocolError, ShardError
from shardp2p.scheduler.plan import Stage
from shardp2p.vocabulary import PeerId, SessionId
from shardp2p.wire.credit import CreditReceiver
from shardp2p.wire.messages import End, Hello, Verdict

INBOX_VERDICTS = 64
"""More than a generation has chunks in flight."""


@dataclass(slots=True)
class _Expected:
    """Where the verdicts of one generation come from and go to."""

    last_stage: PeerId
    layer: int
    send: trio.MemorySendChannel[Verdict | ShardError]
    receive: trio.MemoryReceiveChannel[Verdict | ShardError]
    is_attached: bool = False


class VerdictInbox:
    """The inbound half of the ring protocol at the coordinator."""

    def __init__(self) -> None:
        self._expected: dict[SessionId, _Expected] = {}

    def knows(self, hello: Hello) -> bool:
        """Whether `hello` announces verdicts that a generation of ours expects."""
        expected = self._expected.get(hello.session)
        return expected is not None and expected.layer == hello.layer

    def expect(self, session: SessionId, last: Stage) -> None:
        """Accept one ring stream for `session` from its last stage until `forget`."""
        send, receive = trio.open_memory_channel[Verdict | ShardError](INBOX_VERDICTS)
        self._expected[session] = _Expected(last.peer_id, last.layers.stop, send, receive)

    def forget(self, session: SessionId) -> None:
        """Take no more verdicts for `session`."""
        self._expected.pop(session).receive.close()

    async def collect(self, session: SessionId, deliver: Callable[[Verdict], Awaitable[None]]) -> None:
        """Deliver the verdicts of `session` as they come. Raises what the stream failed with, or ended with."""
        async for message in self._expected[session].receive:
            if isinstance(message, ShardError):
                raise message
            await deliver(message)

    async def serve_ring(self, hello: Hello, receiver: CreditReceiver, peer: PeerId) -> None:
        """Serve the ring stream that `peer` opened with `hello`, until it ends.

        Raises: RemoteProtocolError when no generation of ours expects it from that peer, or has it already.
        """
        expected = self._expected.get(hello.session)
        announced = (peer, hello.layer)
        if expected is None or (expected.last_stage, expected.layer) != announced or expected.is_attached:
            raise RemoteProtocolError(f"{peer} opened a ring stream that no generation here expects", peer)
        expected.is_attached = True
        try:
            await self._forward(receiver, expected.send)
        except trio.BrokenResourceError:
            return  # the generation is over
        except ShardError as error:
            error.peer = error.peer or peer
            if await _deliver(expected.send, error) or not isinstance(error, PeerUnavailableError):
                raise
        else:
            # Right after Close, and then nobody listens; before it, the generation would wait for ever.
            await _deliver(expected.send, RemoteProtocolError(f"{peer} ended the verdicts of an open session", peer))

    async def _forward(self, receiver: CreditReceiver, send: trio.MemorySendChannel[Verdict | ShardError]) -> None:
        while not isinstance(message := await receiver.receive(), End):
            if not isinstance(message, Verdict):
                raise RemoteProtocolError(f"the last stage sent {type(message).__name__} instead of Verdict")
            await send.send(message)
            await receiver.finish()


async def _deliver(send: trio.MemorySendChannel[Verdict | ShardError], error: ShardError) -> bool:
    """Whether there is still a generation that hears of `error`."""
    try:
        await send.send(error)
    except trio.BrokenResourceError:
        return False
    return True
