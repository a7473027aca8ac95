"""A ring without a network: the real generation and session machines joined by queues, run by a seeded scheduler.

Stages keep (token, parent row) in place of keys and values, so a wrong row, mask or compaction changes the text that
the last stage sees, and with it the answer. Fake: transport, compute and draft. Real: every decision.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

from shardp2p.coordinator.commands import Emit, Finish, Limits, NeedDraft, SendChunk, SendCommit
from shardp2p.coordinator.generation import Generation
from shardp2p.stage.session import Session, Work
from shardp2p.vocabulary import Branch, SessionId, Slot
from shardp2p.wire.messages import Activations, Chunk, Commit, Tokens, Verdict
from shardp2p.wire.tensor_frame import TensorFrame

SESSION = SessionId("ab" * 16)


def target(text: Sequence[int], vocabulary: int = 50) -> int:
    """The fake model's next token: depends on the last six tokens and the length."""
    value = len(text)
    for token in text[-6:]:
        value = (value * 1_000_003 + token + 7) % 2_147_483_647
    return value % vocabulary


def reference(prompt: Sequence[int], max_tokens: int, stop_tokens: frozenset[int] = frozenset()) -> list[int]:
    """What the fake model alone says after `prompt`."""
    text = list(prompt)
    while len(text) < len(prompt) + max_tokens:
        text.append(target(text))
        if text[-1] in stop_tokens:
            break
    return text[len(prompt) :]


Corrupt = Callable[[Work], Work]


class FakeStage:
    """A session machine over rows of (text up to there, parent row); hidden rows travel beside the Activations."""

    def __init__(
        self,
        *,
        is_last: bool,
        limits: Limits,
        needs_tokens: bool,
        epoch: int,
        corrupt: Corrupt,
        shared: Sequence[int] = (),
    ) -> None:
        """`shared`: tokens of the text whose rows it begins with."""
        self.is_last = is_last
        self.session = Session(
            cache_rows=limits.cache_rows,
            max_chunks=limits.ring_chunks,
            needs_tokens=needs_tokens and is_last,
            epoch=epoch,
            shared_rows=len(shared),
        )
        self.needs_tokens = needs_tokens
        self.capacity = limits.cache_rows
        self.rows = [(tuple(shared[: at + 1]), at - 1) for at in range(len(shared))]
        self.hidden: dict[int, list[int]] = {}
        self.inbox: deque[tuple[Chunk | Activations, list[int]]] = deque()
        self.control: deque[Commit | Tokens] = deque()
        self.computed = self.skipped = self.compactions = 0
        self._corrupt = corrupt

    def receive(self) -> None:
        arrival, hidden = self.inbox.popleft()
        self.session.receive(arrival)
        self.hidden[arrival.ref.seq] = hidden

    def run(self) -> tuple[Activations | Verdict, list[int]] | None:
        work = self.session.next_work()
        if work is None:
            return None
        work = self._corrupt(work)
        hidden = self.hidden.pop(work.ref.seq)
        if work.keep is not None:
            self._keep((*range(work.keep.first), *work.keep.rows))
        tokens = [hidden[i] for i in work.inputs]
        first_row = len(self.rows)
        for token, parent, position in zip(tokens, work.cache_parents, work.positions, strict=True):
            before = self.rows[parent][0] if parent >= 0 else ()
            assert len(before) == position, "a position that is not the parent's plus one"
            self.rows.append(((*before, token), parent))
        assert len(self.rows) <= self.capacity, "more rows than the cache has"
        self.computed += len(tokens)
        self.skipped += len(work.skipped)
        a = work.arrival
        if not self.is_last:
            frame = TensorFrame("raw", "float32", (len(tokens), 1), bytes(4 * len(tokens))) if tokens else None
            return Activations(a.ref, a.parents, a.root, a.quiet, work.skipped, frame), tokens
        if self.needs_tokens:
            assert [self.session.token(Slot(a.ref.first_slot + row)) for row in work.rows] == tokens
        wanted = set(work.verdict_rows)
        chosen = {row: target(self.rows[first_row + at][0]) for at, row in enumerate(work.rows) if row in wanted}
        return Verdict(a.ref, a.quiet, tuple(chosen.get(r) for r in range(a.quiet, len(a.parents)))), []

    def _keep(self, keep: Sequence[int]) -> None:
        """As a cache does: the parent of a kept row must be kept."""
        self.compactions += 1
        assert list(keep) == sorted(set(keep))
        numbers = {row: at for at, row in enumerate(keep)} | {-1: -1}
        kept = [self.rows[row] for row in keep]
        assert all(parent in numbers for _, parent in kept), "a row is kept without its parent"
        self.rows = [(text, numbers[parent]) for text, parent in kept]


class Ring:
    """One generation over several fake stages; `step` does one thing that could happen next."""

    def __init__(
        self,
        rng: random.Random,
        prompt: Sequence[int],
        *,
        max_tokens: int,
        stages: int,
        limits: Limits,
        accept: float = 0.7,
        branches: int = 1,
        waits_for_draft: bool = False,
        stop_tokens: frozenset[int] = frozenset(),
        needs_tokens: bool = False,
        loss_rate: float = 0.0,
        control_lag: float = 0.0,
        commit_loss: float = 0.0,
        corrupt: Corrupt = lambda work: work,
        shared: Sequence[int] = (),
    ) -> None:
        """`shared`: how many of the prompt's tokens each stage begins with, all together with the least of them.
        `control_lag`: how often a control message waits for something else; `commit_loss`: how often a commit is
        not sent at all, as one that is superseded; `corrupt` changes the work of every stage.
        """
        self.rng, self.limits, self.needs_tokens = rng, limits, needs_tokens
        self.now = 0.0
        self.accept, self.branches, self.loss_rate = accept, branches, loss_rate
        self.control_lag, self.commit_loss, self.corrupt = control_lag, commit_loss, corrupt
        self.generation = Generation(
            SESSION,
            prompt,
            max_tokens=max_tokens,
            stop_tokens=stop_tokens,
            limits=limits,
            waits_for_draft=waits_for_draft,
            shared_tokens=min(shared, default=0),
        )
        self.count = stages
        self.stages = [self._new_stage(i, shared=prompt[:n]) for i, n in enumerate(shared or (0,) * stages)]
        self.verdicts: deque[Verdict] = deque()
        self.drafts: list[tuple[NeedDraft, list[int]]] = []
        self.emitted: list[int] = []
        self.finish: Finish | None = None
        self.losses = 0
        self.sent_tokens: list[int] = []
        self.lost_stages: list[FakeStage] = []
        self._tokens_epoch = -1

    @property
    def skipped(self) -> int:
        """Rows that were not computed because they were dead."""
        return sum(stage.skipped for stage in (*self.stages, *self.lost_stages))

    @property
    def compactions(self) -> int:
        """How often a cache was compacted."""
        return sum(stage.compactions for stage in (*self.stages, *self.lost_stages))

    def _new_stage(self, index: int, epoch: int = 0, shared: Sequence[int] = ()) -> FakeStage:
        return FakeStage(
            is_last=index == self.count - 1,
            limits=self.limits,
            needs_tokens=self.needs_tokens,
            epoch=epoch,
            corrupt=self.corrupt,
            shared=shared,
        )

    def drain(self) -> None:
        while (command := self.generation.next_command()) is not None:
            assert self.finish is None, "a command after the end"
            match command:
                case SendChunk(chunk):
                    assert len(chunk.tokens) <= max(self.limits.chunk_tokens, self.limits.prefill_tokens)
                    self.stages[0].inbox.append((chunk, list(chunk.tokens)))
                    if self.needs_tokens:
                        self._send_tokens(chunk)
                case SendCommit(commit):
                    for stage in self.stages:
                        if self.rng.random() >= self.commit_loss:
                            stage.control.append(commit)
                case NeedDraft():
                    self.drafts.append((command, list(self.generation.text[: command.committed_tokens])))
                case Emit(tokens):
                    self.emitted.extend(tokens)
                case Finish():
                    self.finish = command

    def _send_tokens(self, chunk: Chunk) -> None:
        if chunk.ref.epoch != self._tokens_epoch:
            self.sent_tokens = list(self.generation.text[: chunk.ref.first_slot])
            self._tokens_epoch = chunk.ref.epoch
            first = 0
        else:
            first = len(self.sent_tokens)
        self.sent_tokens.extend(chunk.tokens)
        message = Tokens(chunk.ref.epoch, Slot(first), tuple(self.sent_tokens[first:]))
        self.stages[-1].control.append(message)

    def propose(self, after: list[int], depth_tokens: int) -> list[Branch]:
        result = []
        for _ in range(self.rng.randint(0, self.branches)):
            text, tokens = list(after), []
            for _ in range(self.rng.randint(1, depth_tokens)):
                right = target(text)
                token = right if self.rng.random() < self.accept else self.rng.randrange(50)
                tokens.append(token)
                text.append(token)
            result.append(Branch(tuple(tokens), self.rng.random(), self.rng.random()))
        return result

    def step(self) -> None:
        """Do one thing that can happen, at random."""
        self.drain()
        if self.finish is not None:
            return
        choices: list[Callable[[], None]] = []
        late: list[Callable[[], None]] = []
        for index, stage in enumerate(self.stages):
            if stage.inbox:
                choices.append(stage.receive)
            if stage.control:
                is_late = self.rng.random() < self.control_lag
                (late if is_late else choices).append(lambda stage=stage: self._control(stage))
            if stage.session.queued:
                choices.append(lambda index=index: self._run(index))
        if self.verdicts:
            choices.append(self._judge)
        if self.drafts:
            choices.append(self._draft)
        if self.generation.wake_at < inf:
            choices.append(self._wake)
        choices = choices or late
        assert choices, "nothing can happen: the ring is stuck"
        if self.rng.random() < self.loss_rate and self.losses < 5:
            self._lose()
            return
        self.rng.choice(choices)()

    def _control(self, stage: FakeStage) -> None:
        message = stage.control.popleft()
        if isinstance(message, Commit):
            stage.session.commit(message)
        elif stage.is_last:
            stage.session.receive_tokens(message)

    def _run(self, index: int) -> None:
        done = self.stages[index].run()
        if done is None:
            return
        message, hidden = done
        if isinstance(message, Verdict):
            self.verdicts.append(message)
        else:
            self.stages[index + 1].inbox.append((message, hidden))

    def _judge(self) -> None:
        self.now += self.rng.random()
        slowest_us = self.rng.randrange(300_000)
        verdict = replace(self.verdicts.popleft(), compute_us=slowest_us * self.count, slowest_us=slowest_us)
        self.generation.receive_verdict(verdict, self.now)

    def _wake(self) -> None:
        self.now = max(self.now, self.generation.wake_at)
        self.generation.wake(self.now)
        self.drain()
        assert self.generation.wake_at > self.now, "it would be woken again and again"

    def _draft(self) -> None:
        request, text = self.drafts.pop(self.rng.randrange(len(self.drafts)))
        self.now += self.rng.random()
        self.generation.receive_draft(request.request, self.answers(request, text), self.now)

    def answers(self, request: NeedDraft, text: list[int]) -> list[list[Branch]]:
        return [self.propose([*text, *path], request.depth_tokens) for path in request.paths]

    def _lose(self) -> None:
        """A new epoch: either a stage died, and what it held and was sent is lost; or all keep what is settled."""
        self.losses += 1
        if self.rng.random() < 0.5:
            self.generation.lose_cache(self.rng.randint(0, self.generation.settled_tokens), self.now)
            return
        self.generation.lose_cache(now=self.now)
        lost = self.rng.randrange(self.count)
        self.lost_stages.append(self.stages[lost])
        self.stages[lost] = self._new_stage(lost, self.generation.epoch)

    def run(self, max_steps: int = 60_000) -> list[int]:
        """Step until the end, see that it is the end, and give the emitted tokens."""
        for _ in range(max_steps):
            self.step()
            if self.finish is not None:
                self._linger()
                return self.emitted
        raise AssertionError("the generation does not end")

    def _linger(self) -> None:
        """What still arrives after the end, true or not, must not set off anything."""
        for verdict in self.verdicts:
            self.generation.receive_verdict(verdict)
        for request, text in self.drafts:
            self.generation.receive_draft(request.request, self.answers(request, text))
        self.generation.lose_cache()
        self.generation.cancel()
        assert self.generation.next_command() is None, "a command after the end"
