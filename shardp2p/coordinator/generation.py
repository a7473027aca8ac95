"""One generation: what to send into the ring, what is committed, and when it is over.

Pure. The driver feeds verdicts and drafts, and carries out what `next_command` gives. The tree is in tree.py, the rules
of slots and roots in wire/lineage.py and docs/protocols/ring.md.

- Committed tokens that are not sent yet (the prompt, a correction, all of it after a heal) go first, as a chain.
- Drafts fill the rest of a chunk, the most probable path first (chunking.py), as the ring takes them up (pace.py);
  up to `max_chunks` chunks are in the ring at once, and more of a prompt.
- A verdict commits tokens as far as the target's choices are known. What it proves wrong is dead: nothing is rewound.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf

from shardp2p.coordinator.chunking import Chunking
from shardp2p.coordinator.commands import (
    Command,
    Emit,
    Finish,
    FinishReason,
    Limits,
    SendChunk,
    SendCommit,
)
from shardp2p.coordinator.drafting import Drafting
from shardp2p.coordinator.pace import Pace
from shardp2p.coordinator.tree import TokenTree
from shardp2p.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from shardp2p.vocabulary import MAX_TOKEN, Branch, SessionId, Slot, Token
from shardp2p.wire.lineage import Lineage
from shardp2p.wire.messages import Chunk, Commit, Verdict


class Generation:
    """The machine. `next_command` is to be drained after every call of another method."""

    def __init__(
        self,
        session: SessionId,
        prompt_tokens: Sequence[Token],
        *,
        max_tokens: int,
        stop_tokens: frozenset[Token] = frozenset(),
        vocab_size: int = 0,
        limits: Limits | None = None,
        waits_for_draft: bool = False,
        now: float = 0.0,
        shared_tokens: int = 0,
    ) -> None:
        """`shared_tokens` of the prompt, not all of it, are there on every stage already."""
        self._limits = limits or Limits()
        if not prompt_tokens:
            raise ConfigError("the prompt is empty; give at least one token")
        if max_tokens < 1:
            raise ConfigError(f"max_tokens is {max_tokens}; ask for at least 1")
        if len(prompt_tokens) + max_tokens > self._limits.cache_rows:
            raise ConfigError(
                f"the prompt has {len(prompt_tokens)} tokens and {max_tokens} more are asked for, but only "
                f"{self._limits.cache_rows} fit; shorten the prompt or lower max_tokens"
            )
        self._tree = TokenTree(prompt_tokens, limit_position=len(prompt_tokens) + max_tokens - 1)
        if not 0 <= shared_tokens < len(prompt_tokens):
            raise LocalProtocolError(f"{shared_tokens} tokens of a prompt of {len(prompt_tokens)} cannot be shared")
        self._lineage = Lineage(shared_tokens)
        self._prompt_length = len(prompt_tokens)
        self._goal = len(prompt_tokens) + max_tokens
        self._stop_tokens = stop_tokens
        self._vocab_size = vocab_size or MAX_TOKEN
        self._waits_for_draft = waits_for_draft
        self._drafts_ahead = not waits_for_draft and self._limits.draft_rounds == 0
        self._epoch = 0
        self._laps = 0
        self._settled = shared_tokens
        self._in_flight: deque[Chunk] = deque()
        self._drafting = Drafting(self._tree, draft_tokens=self._limits.draft_tokens, is_eager=not waits_for_draft)
        self._pace = Pace(self._limits)
        self._chunking = Chunking(session, self._tree, self._lineage, self._pace, self._limits)
        self._finished: Finish | None = None
        self._commands: deque[Command] = deque()
        self._fills_at: float | None = None  # there is more to be sent, once the commands so far are taken
        self._fill(now)

    @property
    def epoch(self) -> int:
        """The present epoch; it rises with every lost cache."""
        return self._epoch

    @property
    def text(self) -> Sequence[Token]:
        """The committed text, the prompt included."""
        return self._tree.committed

    @property
    def tokens(self) -> tuple[Token, ...]:
        """The generated tokens so far, the stop token included."""
        return tuple(self._tree.committed[self._prompt_length :])

    @property
    def finished(self) -> Finish | None:
        """How it ended, or None."""
        return self._finished

    @property
    def settled_tokens(self) -> int:
        """How many tokens of the text every stage has and knows as committed: where an epoch may begin at most."""
        return self._settled

    def next_command(self) -> Command | None:
        """The next thing to do, or None until something is received."""
        if not self._commands and self._fills_at is not None:
            self._fill(self._fills_at)
        return self._commands.popleft() if self._commands else None

    @property
    def wake_at(self) -> float:
        """When `wake` is to be called, if nothing is received before; inf: not at all."""
        return inf if self._finished else self._chunking.wake_at

    def wake(self, now: float) -> None:
        """Send what may be sent by now."""
        self._fill(now)

    def receive_verdict(self, verdict: Verdict, now: float = 0.0) -> None:
        """Take the answer to the oldest chunk in the ring. One of an earlier epoch changes nothing."""
        if self._finished or verdict.ref.epoch < self._epoch:
            return
        if not self._in_flight or verdict.ref != self._in_flight[0].ref:
            raise RemoteProtocolError(f"a verdict for chunk {verdict.ref}, which is not the oldest in the ring")
        chunk = self._in_flight.popleft()
        self._settled = self._lineage.trunk_count_before(Slot(chunk.root + 1))
        if verdict.quiet != chunk.quiet or len(verdict.choices) != len(chunk.tokens) - chunk.quiet:
            raise RemoteProtocolError(f"the verdict for chunk {verdict.ref} has the wrong number of choices")
        if any(choice is not None and choice >= self._vocab_size for choice in verdict.choices):
            raise RemoteProtocolError(f"the verdict for chunk {verdict.ref} names a token that the model does not have")
        if verdict.choices:
            self._laps += 1
        self._pace.note_verdict(verdict, chunk, now)
        for row, choice in enumerate(verdict.choices, chunk.quiet):
            self._record(Slot(chunk.ref.first_slot + row), choice)
        self._advance()
        self._fill(now)

    def receive_draft(self, request: int, branches: Sequence[Sequence[Branch]], now: float = 0.0) -> None:
        """Take the answer to NeedDraft. One that is overtaken by events changes nothing."""
        if self._finished is None and self._drafting.answer(request, branches, self._pace.least_probability, now):
            self._fill(now)

    def lose_cache(self, position: int = 0, now: float = 0.0) -> None:
        """Begin a new epoch: every stage keeps the first `position` tokens of the text, the rest is sent again."""
        if self._finished:
            return
        if not 0 <= position <= self._settled:
            raise LocalProtocolError(f"an epoch cannot begin at {position}: {self._settled} tokens are settled")
        self._epoch += 1
        self._settled = position
        self._lineage.restart(position)
        self._tree.drop_drafts()
        self._drafting.drop()
        self._in_flight.clear()
        self._commands = deque(c for c in self._commands if isinstance(c, Emit))
        self._pace.drop()
        self._fill(now)

    def cancel(self) -> None:
        """End it now."""
        self._finish("cancelled")

    def _record(self, slot: Slot, choice: Token | None) -> None:
        node = self._tree.find(slot)
        if node is None and slot == self._lineage.root and not self._chunking.unsent_committed:
            node = self._tree.root
        if node is None:
            return
        if choice is None:
            raise RemoteProtocolError(f"slot {slot} was skipped although it is alive")
        node.choice = choice

    def _advance(self) -> None:
        """Commit what the target's choices settle, tell the stages, and emit it."""
        emitted: list[Token] = []
        commit = None
        while self._tree.root.choice is not None and self._finished is None:
            commit = self._commit_one()
            emitted.append(self._tree.committed[-1])
            if emitted[-1] in self._stop_tokens:
                self._finish("stop", emitted)
            elif len(self._tree.committed) >= self._goal:
                self._finish("length", emitted)
        if commit is not None and self._finished is None:
            if self._in_flight:
                self._commands.append(SendCommit(commit))
            self._commands.append(Emit(tuple(emitted)))

    def _commit_one(self) -> Commit:
        """Commit the known choice. Its slot is the draft's, or else the next one: a correction is sent first."""
        parent = self._lineage.root
        node = self._tree.advance()
        self._drafting.follow(is_correction=node is None)
        slot = None if node is None else node.slot
        if slot is not None:
            self._pace.note_right()
        root = self._lineage.next_slot if slot is None else slot
        self._lineage.commit(root, parent)
        return Commit(self._epoch, root, parent)

    def _finish(self, reason: FinishReason, emitted: Sequence[Token] = ()) -> None:
        if self._finished is None:
            self._finished = Finish(reason, len(self._tree.committed) - self._prompt_length, self._laps)
            self._commands = deque(c for c in self._commands if isinstance(c, Emit))
            if emitted:
                self._commands.append(Emit(tuple(emitted)))
            self._commands.append(self._finished)

    def _fill(self, now: float) -> None:
        """Send what can be sent, and ask for drafts where there is room for them, or where they can be made ahead."""
        self._fills_at, self._chunking.wake_at = None, inf
        while self._finished is None:
            is_prompt = self._chunking.unsent_committed > 1
            most = self._limits.ring_chunks if is_prompt else self._limits.max_chunks
            has_room = len(self._in_flight) < most
            if (has_room or self._drafts_ahead) and self._chunking.unsent_committed <= self._limits.prefill_tokens:
                least, sent = self._pace.least_probability, self._chunking.least_sent
                request = self._drafting.ask(least, now, least_sent=sent)
                if request is not None:
                    self._commands.append(request)
                    self._fills_at = now  # the proposer begins before a chunk is put together
                    return
                if self._waits_for_draft and self._drafting.is_awaited_at_root:
                    return
                if self._drafting.is_busy and self._drafting.rounds < self._limits.draft_rounds:
                    return
            chunk = self._chunking.next_chunk(self._epoch, now) if has_room else None
            if chunk is None:
                return
            self._in_flight.append(chunk)
            self._drafting.rounds = 0
            self._commands.append(SendChunk(chunk))
