"""Flow control of /shardp2p/ring/1: a sender may be so many messages ahead of its receiver, and no more.

Chunk, Activations and Verdict cost one credit each; Hello, Credit and End are free. The receiver gives credits back
in batches as it finishes with messages, so no queue behind it needs more room than INITIAL_CREDITS.
Rules: docs/protocols/ring.md. The two accounts are pure; the two classes below them only move messages.
"""

from __future__ import annotations

from typing import Final

import trio

from shardp2p.errors import LocalProtocolError, PeerUnavailableError, RemoteProtocolError, ShardError, blaming
from shardp2p.wire.channel import MessageChannel, acquire
from shardp2p.wire.messages import Activations, Chunk, Credit, End, Hello, Message, Verdict
from shardp2p.wire.protocols import INITIAL_CREDITS

CREDIT_BATCH: Final = 8
"""One credit message for eight messages: a quarter of the window, so that the sender never runs dry for it."""

Data = Chunk | Activations | Verdict
"""What costs a credit."""


class CreditBalance:
    """The sender's account: how many messages it may still send. Pure."""

    def __init__(self) -> None:
        self.available = INITIAL_CREDITS

    def spend(self) -> bool:
        """Whether a message may go now; if so it is paid for."""
        if self.available == 0:
            return False
        self.available -= 1
        return True

    def add(self, messages: int) -> None:
        """Take a grant. Raises RemoteProtocolError when it gives back more than was spent."""
        if self.available + messages > INITIAL_CREDITS:
            raise RemoteProtocolError(f"a credit of {messages} gives back more than was sent")
        self.available += messages


class CreditWindow:
    """The receiver's account: how many messages are here, and what is still to be given back. Pure."""

    def __init__(self) -> None:
        self._sender_may = INITIAL_CREDITS
        self._held = 0
        self._finished = 0

    @property
    def held(self) -> int:
        """Messages that arrived and are not finished: at most INITIAL_CREDITS."""
        return self._held

    def arrive(self) -> None:
        """Count a message. Raises RemoteProtocolError when the sender had no credit for it."""
        if self._sender_may == 0:
            raise RemoteProtocolError(f"more than {INITIAL_CREDITS} messages were sent without credit")
        self._sender_may -= 1
        self._held += 1

    def finish(self) -> int:
        """Count a message as done with; gives the credit to grant now, or 0 while the batch is not full.

        Raises: LocalProtocolError when no message is held.
        """
        if self._held == 0:
            raise LocalProtocolError("a message was finished that never arrived")
        self._held -= 1
        self._finished += 1
        if self._finished < CREDIT_BATCH:
            return 0
        granted, self._finished = self._finished, 0
        self._sender_may += granted
        return granted


class CreditSender:
    """Sends data as credit allows. `run` must be running: it reads the credits and notices the receiver's death."""

    def __init__(self, channel: MessageChannel) -> None:
        self._channel = channel
        self._balance = CreditBalance()
        self._turn = trio.Lock()
        self._granted = trio.Event()
        self._is_ended = False
        self._failure: ShardError | None = None

    async def run(self) -> None:
        """Read credits until the receiver closes the stream after our End.

        Raises: PeerUnavailableError when it closes before; RemoteProtocolError when it sends anything else. Either
        way every send that waits, and every later one, raises the same.
        """
        try:
            with blaming(self._channel.peer):
                await self._read_credits()
        except PeerUnavailableError as error:
            self._failure = error
            if not self._is_ended:
                raise
        except ShardError as error:
            self._failure = error
            raise
        finally:
            if self._failure is None:
                peer = self._channel.peer
                self._failure = PeerUnavailableError(f"the stream to {peer} is given up", peer)
            self._granted.set()

    async def send(self, message: Data) -> None:
        """Send `message` when there is credit for it. Messages go out in the order of the calls.

        Cancelling it while it waits for credit spends none. Raises: what ended `run`, or MessageChannel.send's errors.
        """
        await acquire(self._turn)
        try:
            self._raise_failure()
            while not self._balance.spend():
                self._granted = trio.Event()
                await self._granted.wait()
                self._raise_failure()
            await self._channel.send(message)
        finally:
            self._turn.release()

    async def end(self) -> None:
        """Send End, after everything sent before it; nothing may be sent after it."""
        async with self._turn:
            self._is_ended = True
            await self._channel.send(End())

    async def _read_credits(self) -> None:
        while True:
            message = await self._channel.receive()
            if not isinstance(message, Credit):
                raise RemoteProtocolError(f"{self._channel.peer} sent {type(message).__name__} instead of Credit")
            self._balance.add(message.messages)
            self._granted.set()

    def _raise_failure(self) -> None:
        if self._is_ended:
            raise LocalProtocolError("the stream was ended; nothing may be sent after it")
        if self._failure is not None:
            raise type(self._failure)(str(self._failure), self._failure.peer) from self._failure


class CreditReceiver:
    """Receives data and gives credit back for what is finished."""

    def __init__(self, channel: MessageChannel) -> None:
        self._channel = channel
        self._window = CreditWindow()

    async def receive(self) -> Hello | Data | End:
        """The next message. Each Chunk, Activations or Verdict is held until `finish` is called for it.

        Raises: RemoteProtocolError when the sender had no credit, and MessageChannel.receive's errors.
        """
        message: Message = await self._channel.receive()
        if isinstance(message, (Chunk, Activations, Verdict)):
            with blaming(self._channel.peer):
                self._window.arrive()
            return message
        if isinstance(message, (Hello, End)):
            return message
        peer = self._channel.peer
        raise RemoteProtocolError(f"{peer} sent {type(message).__name__} in the wrong direction", peer)

    async def finish(self) -> None:
        """Say that one held message is done with; sends a Credit when a batch is full."""
        granted = self._window.finish()
        if granted:
            await self._channel.send(Credit(granted))
