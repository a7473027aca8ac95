"""Drive one generation over a ring: open its stages, pump the machine, close, and say whose fault it was.

`open_generation` is the way in. The decisions are in generation.py; protocols: docs/protocols/control.md and ring.md.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from math import inf

import structlog
import trio

from shardp2p.coordinator.commands import Emit, Finish, Limits, NeedDraft, Proposer, SendChunk, SendCommit
from shardp2p.coordinator.draft_thread import Answer, DraftThread
from shardp2p.coordinator.generation import Generation
from shardp2p.coordinator.inbound import VerdictInbox
from shardp2p.coordinator.outbox import ControlOutbox
from shardp2p.coordinator.prefix import prefixes_of
from shardp2p.coordinator.request import GenerationRequest, Lap, Result, fit_limits
from shardp2p.coordinator.stream import GenerationStream, running
from shardp2p.errors import (
    PeerUnavailableError,
    RemoteProtocolError,
    ShardError,
    blaming,
    clipped_report,
    error_from_wire,
    first_of,
)
from shardp2p.scheduler.plan import Plan, Stage
from shardp2p.vocabulary import PeerId, SessionId, Slot, Token
from shardp2p.wire.channel import MessageChannel, open_channel
from shardp2p.wire.codec_control import MAX_TOKENS
from shardp2p.wire.credit import CreditSender
from shardp2p.wire.messages import Chunk, Close, Closed, Failure, Hello, Open, Opened, PeerAddress, Tokens, Verdict
from shardp2p.wire.prefixes import Prefixes
from shardp2p.wire.protocols import CONTROL, RING
from shardp2p.wire.stream import Network

log = structlog.get_logger()

OPEN_S = 30.0
"""How long a stage that is reached may take to answer Open, in which time it dials the next one."""

LAP_S = 120.0
LAP_TOKEN_S = 1.0
"""How long nothing may come around the ring while chunks are under way, and how much longer for each token of the
oldest one: connections live on although a stage hangs."""

CLOSE_S = 2.0
"""How long the stages may take to answer Close; the answer is complete without it."""


@asynccontextmanager
async def open_generation(
    network: Network,
    verdicts: VerdictInbox,
    plan: Plan,
    request: GenerationRequest,
    *,
    proposer: Proposer | None = None,
    limits: Limits | None = None,
    prefix_key: bytes | None = None,
) -> AsyncIterator[GenerationStream]:
    """A generation over the ring of `plan`, running as long as the context.

    Where its text begins as that of an earlier one with the same `prefix_key`, rows of that serve again; not with None.
    Leaving early cancels it. Raises: ConfigError for a request that cannot be served. The iteration raises whatever
    ends it early: ConfigError and OverloadedError from a stage that declines, PeerUnavailableError that names the stage
    that went away, RemoteProtocolError for one that misbehaves.
    """
    limits = fit_limits(request, plan, limits or Limits(), proposer)
    async with running(_Driver(network, verdicts, plan, request, proposer, limits, prefix_key)) as stream:
        yield stream


def _named(error: ShardError, plan: Plan) -> ShardError:
    """The error as its reader needs it: which stage, and what happened to it."""
    if error.peer is None:
        return error
    where = plan.describe(error.peer)  # type: ignore[arg-type]
    if isinstance(error, PeerUnavailableError):
        text = f"{where} went away: {error}; start that peer again, or choose others, and repeat the request"
    else:
        text = f"{where}: {error}"
    return type(error)(text, error.peer)


class _Driver:
    """One generation's tasks; implements `coordinator.stream.Source`. `run` is to be started once."""

    def __init__(
        self,
        network: Network,
        verdicts: VerdictInbox,
        plan: Plan,
        request: GenerationRequest,
        proposer: Proposer | None,
        limits: Limits,
        prefix_key: bytes | None,
    ) -> None:
        self._network = network
        self._verdicts = verdicts
        self._plan = plan
        self._request = request
        self._proposer = proposer
        self._limits = limits
        self._session = SessionId(secrets.token_hex(16))
        self._prefix_key = prefix_key if request.shares_rows else None
        # The last token is not among them: what follows it has to be computed.
        offered = () if request.sampling.needs_tokens else request.prompt_tokens[:-1]
        self._offered = self._prefixes_of(offered)
        self._opened: dict[int, Opened] = {}  # by stage
        self._generation: Generation  # once all stages are open
        self._inbox_send, self._inbox = trio.open_memory_channel[Verdict | None](64)  # None: there is an answer
        self._answers: deque[Answer] = deque()  # of a proposer that takes its time
        self._drafts = None if proposer is None or proposer.is_instant else DraftThread(proposer, self._take_answer)
        # One batch a token at most: the ring never waits for a slow reader.
        self._tokens_send, self.tokens = trio.open_memory_channel[tuple[Token, ...]](request.max_tokens)
        self._sent: deque[tuple[Chunk, float]] = deque()
        self._lap_scope = trio.CancelScope()  # its deadline is that of the oldest chunk under way
        self._tokens_epoch = -1
        self._is_closing = False
        self.result = Result()
        self.opened = trio.Event()
        self.failure: ShardError | None = None

    async def run(self) -> None:
        """Generate to the end, close the stages, and fill in the result or the failure."""
        budget_s = inf if self._request.budget_s is None else self._request.budget_s
        try:
            with trio.move_on_after(budget_s) as allowed:
                async with AsyncExitStack() as stack:
                    await self._drive(stack)
            if allowed.cancelled_caught and self.result.finish is None:
                raise PeerUnavailableError(
                    f"the answer is not complete after the {budget_s:.1f} s that it may take; allow more time, or ask "
                    "for fewer tokens"
                )
        except* ShardError as group:
            self.failure = _named(first_of(group), self._plan)
            log.info("generation_failed", session=self._session, status=self.failure.wire_status)
        finally:
            self._tokens_send.close()
            self.opened.set()

    async def _drive(self, stack: AsyncExitStack) -> None:
        started = trio.current_time()
        controls = await self._open_stages(stack)
        self._generation = self._begin()
        self.opened.set()
        first = self._plan.stages[0]
        with blaming(first.peer_id):
            stream = await self._network.open_stream(first.peer_id, RING, first.addresses)
            ring = await stack.enter_async_context(open_channel(stream, RING))
            await ring.send(Hello(self._session, first.layers.start))
        sender = CreditSender(ring)
        outboxes = [ControlOutbox(control) for control in controls]
        async with trio.open_nursery() as nursery:
            closed = [trio.Event() for _ in controls]
            for index, control in enumerate(controls):
                nursery.start_soon(self._watch, self._read_control, index, control, closed[index])
                nursery.start_soon(self._watch, outboxes[index].run)
            nursery.start_soon(self._watch, sender.run)
            nursery.start_soon(self._watch, self._verdicts.collect, self._session, self._inbox_send.send)
            finish = None
            with self._drafting(nursery), self._lap_scope:
                finish = await self._pump(sender, outboxes, started)
            if finish is None:
                raise self._silence()
            self.result.total_s = trio.current_time() - started
            self.result.finish = finish
            if self._proposer is not None and finish.reason != "cancelled":
                self._proposer.finish(self._generation.text)
            self._tokens_send.close()
            await self._close_stages(sender, outboxes, closed)
            nursery.cancel_scope.cancel()
        log.info("generation_finished", session=self._session, reason=finish.reason, generated_tokens=finish.tokens)

    def _begin(self) -> Generation:
        """The machine, which goes on behind what every stage has of the text already."""
        request = self._request
        self.result.shared_tokens = min(opened.shared_rows for opened in self._opened.values())
        return Generation(
            self._session,
            request.prompt_tokens,
            max_tokens=request.max_tokens,
            stop_tokens=request.stop_tokens,
            vocab_size=request.vocab_size,
            limits=self._limits,
            waits_for_draft=self._proposer is not None and self._proposer.is_instant,
            now=trio.current_time(),
            shared_tokens=self.result.shared_tokens,
        )

    def _prefixes_of(self, text: Sequence[Token]) -> Prefixes | None:
        if self._prefix_key is None:
            return None
        return prefixes_of(self._prefix_key, self._plan, self._request.wire_scheme, text)

    async def _close_stages(
        self, sender: CreditSender, outboxes: Sequence[ControlOutbox], closed: Sequence[trio.Event]
    ) -> None:
        """Let the stages close, and wait (bounded) for their accounts."""
        self._is_closing = True
        with trio.move_on_after(CLOSE_S):
            prefixes = self._prefixes_of(self._generation.text)
            for index, outbox in enumerate(outboxes):
                outbox.put_last(Close(prefixes if self._opened[index].keeps_rows else None))
            await self._watch(sender.end)
            for event in closed:
                await event.wait()

    @property
    def _last(self) -> Stage:
        return self._plan.stages[-1]

    async def _open_stages(self, stack: AsyncExitStack) -> list[MessageChannel]:
        """Open every stage at once; gives their control channels in ring order."""
        self._verdicts.expect(self._session, self._last)
        stack.callback(self._verdicts.forget, self._session)
        channels: dict[int, MessageChannel] = {}

        async def open_one(index: int, stage: Stage) -> None:
            with blaming(stage.peer_id):
                stream = await self._network.open_stream(stage.peer_id, CONTROL, stage.addresses)
                channels[index] = channel = await stack.enter_async_context(open_channel(stream, CONTROL))
                try:
                    with trio.fail_after(OPEN_S):
                        await channel.send(self._open_message(index))
                        answer = await channel.receive()
                except trio.TooSlowError:
                    raise PeerUnavailableError(
                        f"no answer to Open within {OPEN_S:.0f} s; it hangs or is busy"
                    ) from None
                if isinstance(answer, Failure):
                    raise self._reported(answer, stage.peer_id)
                if not isinstance(answer, Opened):
                    raise RemoteProtocolError(f"{type(answer).__name__} in answer to Open")
                if answer.shared_rows and not (self._offered and self._offered.has_length(answer.shared_rows)):
                    raise RemoteProtocolError(f"it shares {answer.shared_rows} rows, which was not offered")
                self._opened[index] = answer

        async with trio.open_nursery() as nursery:
            for index, stage in enumerate(self._plan.stages):
                nursery.start_soon(open_one, index, stage)
        return [channels[index] for index in range(len(self._plan.stages))]

    def _open_message(self, index: int) -> Open:
        stages = self._plan.stages
        is_last = index == len(stages) - 1
        following = (
            PeerAddress(self._network.peer_id)
            if is_last
            else PeerAddress(stages[index + 1].peer_id, stages[index + 1].addresses)
        )
        return Open(
            session=self._session,
            model_digest=self._plan.model_digest,
            layers=stages[index].layers,
            dtype=self._plan.dtype,
            cache_rows=self._limits.cache_rows,
            max_chunks=self._limits.ring_chunks,
            next=following,
            sampling=self._request.sampling if is_last else None,
            wire_scheme=self._request.wire_scheme,
            prompt_tokens=len(self._request.prompt_tokens) if is_last else 0,
            prefixes=self._offered,
        )

    async def _watch(self, task: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run a task whose failure ends the generation, unless the answer is complete anyway."""
        try:
            await task(*args)
        except ShardError:
            if not self._is_closing:
                raise

    async def _read_control(self, index: int, control: MessageChannel, closed: trio.Event) -> None:
        """Hear failures the moment they happen, and the account at the end."""
        try:
            with blaming(control.peer):
                message = await control.receive()
                if isinstance(message, Failure):
                    raise self._reported(message, control.peer)
                if not (isinstance(message, Closed) and self._is_closing):
                    raise RemoteProtocolError(f"{type(message).__name__} from an open session")
                self.result.accounts[index] = message
        finally:
            closed.set()

    def _reported(self, failure: Failure, reporter: PeerId) -> ShardError:
        """The error that a stage reports. It may blame another stage of the ring, else it speaks for itself."""
        blamed = failure.peer_id if any(failure.peer_id == stage.peer_id for stage in self._plan.stages) else reporter
        return error_from_wire(failure.status, clipped_report(failure.message), blamed)

    async def _pump(self, sender: CreditSender, outboxes: Sequence[ControlOutbox], started: float) -> Finish:
        """Carry out the machine's commands and feed it what comes back, until it finishes."""
        while True:
            while (command := self._generation.next_command()) is not None:
                match command:
                    case SendChunk(chunk):
                        await self._send_chunk(chunk, sender, outboxes[-1])
                    case SendCommit(commit):
                        for outbox in outboxes:
                            outbox.put_commit(commit)
                    case NeedDraft():
                        await self._propose(command)
                    case Emit(tokens):
                        if self.result.ttft_s is None:
                            self.result.ttft_s = trio.current_time() - started
                        self._tokens_send.send_nowait(tokens)
                    case Finish():
                        return command
            message = None
            with trio.move_on_at(self._generation.wake_at):
                message = await self._inbox.receive()
            self._receive(message, trio.current_time())

    def _receive(self, message: Verdict | None, now: float) -> None:
        """Tell the machine what there is: a verdict, answers of the proposer, or neither, when its time has come."""
        if message is not None:
            self._note_lap(message)
            with blaming(self._last.peer_id):
                self._generation.receive_verdict(message, now)
        elif not self._answers:
            self._generation.wake(now)
        while self._answers:
            self._generation.receive_draft(*self._answers.popleft(), now)

    async def _send_chunk(self, chunk: Chunk, sender: CreditSender, last: ControlOutbox) -> None:
        if self._request.sampling.needs_tokens:
            first, tokens = chunk.ref.first_slot, chunk.tokens
            if chunk.ref.epoch != self._tokens_epoch:
                tokens = (*self._generation.text[:first], *tokens)
                first, self._tokens_epoch = Slot(0), chunk.ref.epoch
            for at in range(0, len(tokens), MAX_TOKENS):
                last.put_tokens(Tokens(chunk.ref.epoch, Slot(first + at), tokens[at : at + MAX_TOKENS]))
        self._sent.append((chunk, trio.current_time()))
        if len(self._sent) == 1:
            self._expect_verdict()
        with blaming(self._plan.stages[0].peer_id):
            await sender.send(chunk)

    async def _propose(self, request: NeedDraft) -> None:
        if self._proposer is not None and self._proposer.is_instant:
            branches = self._proposer.propose(self._generation.text, request.paths, request.depth_tokens)
            self._generation.receive_draft(request.request, branches, trio.current_time())
        elif self._drafts is not None:
            self._drafts.ask(request, self._generation.text[: request.committed_tokens])
            await trio.lowlevel.checkpoint()  # the proposer begins before a chunk is encoded

    def _take_answer(self, answer: Answer) -> None:
        self._answers.append(answer)
        with suppress(trio.WouldBlock):  # then the pump is awake
            self._inbox_send.send_nowait(None)

    @contextmanager
    def _drafting(self, nursery: trio.Nursery) -> Iterator[None]:
        """A proposer that takes its time answers meanwhile."""
        if self._drafts is None:
            yield
            return
        nursery.start_soon(self._watch, self._drafts.run)
        try:
            yield
        finally:
            self._drafts.close()  # or its thread would wait for the next question for good

    def _note_lap(self, verdict: Verdict) -> None:
        while self._sent and self._sent[0][0].ref.seq <= verdict.ref.seq:
            chunk, at = self._sent.popleft()
            if chunk.ref == verdict.ref:
                lap_s = trio.current_time() - at
                self.result.laps.append(Lap(len(chunk.tokens), lap_s, verdict.compute_us / 1e6))
        self._expect_verdict()

    def _expect_verdict(self) -> None:
        """Something has come around the ring, or begins to go around it: wait so long for what is next."""
        if not self._sent:
            self._lap_scope.deadline = inf
            return
        patience_s = LAP_S + LAP_TOKEN_S * len(self._sent[0][0].tokens)
        self._lap_scope.deadline = trio.current_time() + patience_s

    def _silence(self) -> PeerUnavailableError:
        """Which stage hangs cannot be known from here: each sends to the next."""
        stages = "; ".join(self._plan.describe(stage.peer_id) for stage in self._plan.stages)
        return PeerUnavailableError(
            f"nothing came around the ring for {LAP_S:.0f} s and more; start the peer that hangs again, or choose "
            f"others, and repeat the request: all stages are connected, so one of them hangs ({stages})"
        )
