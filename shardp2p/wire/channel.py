"""A stream that carries the messages of one protocol.

Writing goes under a lock instead of through a queue and a writer task: a send costs no task switch, nothing is held
that its sender does not wait for, a failure reaches the very send that met it, and no task needs a parent. Whoever
must not wait for a slow peer gives the sending to a task of its own with a bounded inbox.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import trio

from shardp2p.errors import LocalProtocolError, PeerUnavailableError, RemoteProtocolError, blaming
from shardp2p.vocabulary import PeerId
from shardp2p.wire.codec import decode, encode, find_bulk
from shardp2p.wire.framing import FrameDecoder
from shardp2p.wire.messages import Message
from shardp2p.wire.protocols import limits_of
from shardp2p.wire.stream import Stream

READ_BYTES: Final = 256 * 1024
"""One read takes at most what a peer may have in flight on a stream by default."""

FLUSH_S: Final = 2.0
"""How long leaving waits for the sends of other tasks: a shutdown has three seconds in all."""


async def acquire(lock: trio.Lock) -> None:
    """Acquire `lock` in order of arrival, without yielding to other tasks when it is free.

    `lock.acquire()` always yields, which costs a send more than all else it does here.
    """
    try:
        lock.acquire_nowait()
    except trio.WouldBlock:
        await lock.acquire()


@asynccontextmanager
async def open_channel(stream: Stream, protocol: str) -> AsyncIterator[MessageChannel]:
    """The channel over `stream`, which it owns from now on.

    Leaving normally lets sends under way finish (bounded) and closes the stream; leaving by an exception, a
    cancellation included, resets it.
    """
    channel = MessageChannel(stream, protocol)
    try:
        yield channel
        await channel.aclose()
    except BaseException:
        await stream.reset()
        raise


class MessageChannel:
    """Sends and receives the messages of one protocol over one stream. Any task may send; one at a time receives."""

    def __init__(self, stream: Stream, protocol: str) -> None:
        self._stream = stream
        self._protocol = protocol
        self._decoder = FrameDecoder(limits_of(protocol), partial(find_bulk, protocol))
        self._writing = trio.Lock()
        self._broken: str | None = None
        self._is_receiving = False

    @property
    def peer(self) -> PeerId:
        """The authenticated id of the other side."""
        return self._stream.peer

    async def send(self, message: Message) -> None:
        """Send `message`; returns when the stream has taken it. Messages go out in the order of the calls.

        Cancelling it while it waits for its turn is harmless; while its bytes are on their way it breaks the channel.
        Raises: PeerUnavailableError when the stream has failed; LocalProtocolError for a message that breaks the rules.
        """
        frame = encode(self._protocol, message)
        await acquire(self._writing)
        try:
            if self._broken is not None:
                raise PeerUnavailableError(self._broken, self.peer)
            self._broken = f"the stream to {self.peer} was abandoned in the middle of a message; open a new one"
            try:
                with blaming(self.peer):
                    await self._stream.send_all(frame)
            except PeerUnavailableError as error:
                self._broken = str(error)
                raise
            self._broken = None
        finally:
            self._writing.release()

    async def receive(self) -> Message:
        """The next message. Cancelling it loses nothing.

        Raises: PeerUnavailableError when the stream has failed or ended (a protocol marks its end by a message, so a
        bare end is a peer that died); RemoteProtocolError for bytes that are no message of the protocol.
        """
        if self._is_receiving:
            raise LocalProtocolError(f"two tasks receive from the stream of {self.peer}")
        self._is_receiving = True
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
            while (frame := self._decoder.next_frame()) is None:
                with blaming(self.peer):
                    data = await self._stream.receive_some(READ_BYTES)
                if not data:
                    raise PeerUnavailableError(f"{self.peer} closed the stream before it was finished", self.peer)
                self._decoder.feed(data)
            return decode(self._protocol, frame.kind, frame.payload)
        except RemoteProtocolError as error:
            raise RemoteProtocolError(f"{self.peer} broke {self._protocol}: {error}", self.peer) from error
        finally:
            self._is_receiving = False

    async def aclose(self) -> None:
        """Wait (bounded) for sends under way, then close the stream, or reset it when they do not finish."""
        with trio.move_on_after(FLUSH_S):
            async with self._writing:
                if self._broken is None:
                    self._broken = f"the stream to {self.peer} is closed"
                    await self._stream.close()
                    return
        await self._stream.reset()
