"""The tasks of one session on a stage: all that arrives goes into one inbox; one task owns the machine and the device.

Another sends what is computed, so that the device takes up the next chunk meanwhile.

Protocols: docs/protocols/control.md and ring.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter

import trio

from shardp2p.errors import PeerUnavailableError, RemoteProtocolError, ShardError, blaming
from shardp2p.stage.session import Session, Work
from shardp2p.vocabulary import Slot, Token
from shardp2p.wire.channel import MessageChannel
from shardp2p.wire.credit import CreditReceiver, CreditSender
from shardp2p.wire.messages import Activations, Chunk, Close, Closed, Commit, End, Open, Tokens, Verdict
from shardp2p.wire.prefixes import Prefixes

INBOX_MESSAGES = 64
"""What may wait while the device is busy; a full inbox holds up its sender's stream and nobody else's."""

END_S = 1.0
"""How long after Close a message that is being computed or sent may take, and the End after it: the session is over,
but its neighbours are to see a clean end."""

JOIN_S = 60.0
"""How long a session waits for its previous peer: longer than a coordinator does for the other stages to open."""

Compute = Callable[[Work, tuple[Token, ...]], Awaitable[Activations | Verdict]]
"""Runs a session's work on the device; with the token ids of the rows to compute, where choosing needs them."""

Keep = Callable[[Prefixes, tuple[int, ...]], None]
"""Takes over the rows of a session that ends as it should: how its text begins, and the cache rows of its tokens."""


@dataclass
class Account:
    """What a session has cost so far."""

    chunks: int = 0
    rows: int = 0
    skipped_rows: int = 0
    compute_s: float = 0.0
    overhead_s: float = 0.0

    def closed(self) -> Closed:
        """The account as the answer to Close."""
        return Closed(self.chunks, self.rows, self.skipped_rows, self.compute_s, self.overhead_s)


class LiveSession:
    """A session whose control stream and outgoing ring stream stand; the incoming one attaches when it comes."""

    def __init__(
        self,
        request: Open,
        *,
        control: MessageChannel,
        compute: Compute,
        shared_rows: int = 0,
        keep: Keep | None = None,
    ) -> None:
        """The cache of `compute` begins with `shared_rows` rows of the text; `keep` hears what it has at the end."""
        self._id = request.session
        self._control = control
        self._compute = compute
        self._keep = keep
        self._prefixes: Prefixes | None = None
        sampling = request.sampling
        self._needs_tokens = sampling is not None and sampling.needs_tokens
        self._session = Session(
            cache_rows=request.cache_rows,
            max_chunks=request.max_chunks,
            needs_tokens=self._needs_tokens,
            shared_rows=shared_rows,
        )
        self._send, self._inbox = trio.open_memory_channel[Chunk | Activations | Commit | Tokens | Close](
            INBOX_MESSAGES
        )
        self._receiver: CreditReceiver | None = None
        self._previous = ""
        self._previous_joined = trio.Event()
        self._previous_failure: ShardError | None = None
        self._previous_failed = trio.Event()
        self._arrived = 0
        self._finished = 0
        self._account = Account()
        self._working = trio.CancelScope()
        self._incoming = trio.CancelScope()
        self._is_closing = False
        self._is_over = trio.Event()

    async def serve_ring(self, receiver: CreditReceiver, peer: str) -> None:
        """Take what the previous peer of the ring sends, until its End. Its loss ends the session.

        Raises: RemoteProtocolError when the session already has a previous peer.
        """
        if self._receiver is not None:
            raise RemoteProtocolError("the session already has an incoming ring stream", peer)
        self._receiver, self._previous = receiver, peer
        self._previous_joined.set()
        with self._incoming:
            try:
                await self._take_ring(receiver, peer)
            except ShardError as error:
                if self._is_closing:
                    return
                error.peer = error.peer or peer
                self._previous_failure = error
                self._previous_failed.set()
                # The coordinator is to hear of it before the previous peer sees its stream break and blames us.
                await self._is_over.wait()
                raise

    async def run(self, sender: CreditSender, next_peer: str) -> None:
        """Serve until Close and answer it. Raises whatever ended the session otherwise, in an exception group."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_next, sender, next_peer)
            nursery.start_soon(self._watch_previous)
            nursery.start_soon(self._read_control)
            computed, outgoing = trio.open_memory_channel[Activations | Verdict](0)
            is_sent = trio.Event()
            nursery.start_soon(self._send_on, outgoing, sender, next_peer, is_sent)
            try:
                with self._working:
                    await self._work(computed)
                    if self._keep is not None and self._prefixes is not None:
                        self._keep(self._prefixes, self._session.text_rows())
                    await is_sent.wait()
                    await sender.end()
            except PeerUnavailableError:
                if not self._is_closing:
                    raise
            nursery.cancel_scope.cancel()
        await self._control.send(self._account.closed())

    @property
    def leading_rows(self) -> int:
        """How many of the text's first tokens have their rows, or will in a moment, where their positions say."""
        return self._session.leading_rows()

    def close(self) -> None:
        """The session is over: let go (bounded) of the previous peer, whose End may still be on its way."""
        self._is_closing = True
        self._is_over.set()
        self._inbox.close()
        self._incoming.deadline = trio.current_time() + END_S

    async def _take_ring(self, receiver: CreditReceiver, peer: str) -> None:
        while not isinstance(message := await receiver.receive(), End):
            if not isinstance(message, (Chunk, Activations)):
                raise RemoteProtocolError(f"{peer} sent {type(message).__name__} to a stage")
            if message.ref.session != self._id:
                raise RemoteProtocolError(f"{peer} sent a chunk of another session")
            if not self._is_closing:
                with suppress(trio.BrokenResourceError):  # over in the meantime
                    await self._send.send(message)

    async def _watch_previous(self) -> None:
        with trio.move_on_after(JOIN_S):
            await self._previous_joined.wait()
        if self._receiver is None and not self._is_closing:
            raise PeerUnavailableError(f"no peer of the ring sent anything to this stage within {JOIN_S:.0f} s")
        await self._previous_failed.wait()
        if self._previous_failure is not None and not self._is_closing:
            raise self._previous_failure

    async def _read_control(self) -> None:
        with blaming(self._control.peer):
            while not isinstance(message := await self._control.receive(), Close):
                if not isinstance(message, (Commit, Tokens)):
                    raise RemoteProtocolError(f"the coordinator sent {type(message).__name__} to an open session")
                await self._send.send(message)
        self._is_closing = True
        self._prefixes = message.prefixes
        # What is computed or sent just now may end; a message cut in two would break the stream before its End.
        self._working.deadline = trio.current_time() + END_S
        with suppress(trio.WouldBlock):  # then the worker is awake
            self._send.send_nowait(message)

    async def _watch_next(self, sender: CreditSender, next_peer: str) -> None:
        try:
            with blaming(next_peer):
                await sender.run()
                raise PeerUnavailableError(f"{next_peer} closed its ring stream")
        except PeerUnavailableError:
            if not self._is_closing:
                raise

    async def _work(self, computed: trio.MemorySendChannel[Activations | Verdict]) -> None:
        """Compute, and hand over what is to be sent, until Close."""
        with computed:
            while True:
                self._take_all()
                if self._is_closing:
                    return
                await self._give_credit()
                work = self._session.next_work()
                if work is None:
                    self._take(await self._inbox.receive())
                    continue
                started = perf_counter()
                message = await self._run(work)
                self._note_work(work, message, perf_counter() - started)
                await computed.send(message)

    def _note_work(self, work: Work, message: Activations | Verdict, took_s: float) -> None:
        before = work.arrival.compute_us if isinstance(work.arrival, Activations) else 0
        compute_s = (message.compute_us - before) / 1e6
        self._account.chunks += 1
        self._account.rows += len(work.rows)
        self._account.skipped_rows += len(work.skipped)
        self._account.compute_s += compute_s
        self._account.overhead_s += max(0.0, took_s - compute_s)

    async def _send_on(
        self,
        outgoing: trio.MemoryReceiveChannel[Activations | Verdict],
        sender: CreditSender,
        next_peer: str,
        is_sent: trio.Event,
    ) -> None:
        """Send what is computed, until there is no more. Waiting for credit counts as overhead."""
        async for message in outgoing:
            started = perf_counter()
            try:
                with blaming(next_peer):
                    await sender.send(message)
            except PeerUnavailableError:
                if not self._is_closing:
                    raise
            self._account.overhead_s += perf_counter() - started
        is_sent.set()

    async def _run(self, work: Work) -> Activations | Verdict:
        try:
            return await self._compute(work, self._tokens_of(work))
        except RemoteProtocolError as error:
            error.peer = error.peer or self._previous
            raise

    def _tokens_of(self, work: Work) -> tuple[Token, ...]:
        """The ids of the rows to compute, where choosing needs them."""
        if not self._needs_tokens:
            return ()
        return tuple(self._session.token(Slot(work.ref.first_slot + row)) for row in work.rows)

    def _take_all(self) -> None:
        while True:
            try:
                self._take(self._inbox.receive_nowait())
            except trio.WouldBlock:
                return

    def _take(self, message: Chunk | Activations | Commit | Tokens | Close) -> None:
        match message:
            case Commit():
                with blaming(self._control.peer):
                    self._session.commit(message)
            case Tokens():
                with blaming(self._control.peer):
                    self._session.receive_tokens(message)
            case Close():
                return
            case _:
                self._arrived += 1
                with blaming(self._previous):
                    self._session.receive(message)

    async def _give_credit(self) -> None:
        """Give credit back for the chunks that are taken up or dropped."""
        while self._receiver is not None and self._finished < self._arrived - self._session.queued:
            self._finished += 1
            try:
                await self._receiver.finish()
            except PeerUnavailableError:
                return  # whoever reads the stream knows whether it ended as it should
