"""One generation: what to send into the ring, what is committed, and when it is over.

Pure. The driver feeds verdicts and drafts, and carries out what `next_command` gives. The tree is in tree.py, the rules
of slots and roots in wire/lineage.py and docs/protocols/ring.md.

- Committed tokens that are not sent yet (the prompt, a correction, all of it after a heal) go first, as a chain.
- Drafts fill the rest of a chunk, the most probable path first; up to `max_chunks` chunks are in the ring at once.
- A verdict commits tokens as far as the target's choices are known. What it proves wrong is dead: nothing is rewound.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

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
from shardp2p.coordinator.tree import TokenTree
from shardp2p.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from shardp2p.vocabulary import MAX_TOKEN, Branch, ChunkRef, SessionId, Slot, Token
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
    ) -> None:
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
        self._session = session
        self._tree = TokenTree(prompt_tokens)
        self._lineage = Lineage()
        self._prompt_length = len(prompt_tokens)
        self._goal = len(prompt_tokens) + max_tokens
        self._stop_tokens = stop_tokens
        self._vocab_size = vocab_size or MAX_TOKEN
        self._waits_for_draft = waits_for_draft
        self._epoch = 0
        self._seq = 0
        self._laps = 0
        self._settled = 0
        self._in_flight: deque[Chunk] = deque()
        self._drafting = Drafting(self._tree, draft_tokens=self._limits.draft_tokens, limit_position=self._goal - 1)
        self._finished: Finish | None = None
        self._commands: deque[Command] = deque()
        self._fill()

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
        return self._commands.popleft() if self._commands else None

    def receive_verdict(self, verdict: Verdict) -> None:
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
        for row, choice in enumerate(verdict.choices, chunk.quiet):
            self._record(Slot(chunk.ref.first_slot + row), choice)
        self._advance()
        self._fill()

    def receive_draft(self, request: int, branches: Sequence[Branch]) -> None:
        """Take the answer to NeedDraft. One that is overtaken by events changes nothing."""
        if self._finished is None and self._drafting.answer(request, branches):
            self._fill()

    def lose_cache(self, position: int = 0) -> None:
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
        self._fill()

    def cancel(self) -> None:
        """End it now."""
        self._finish("cancelled")

    def _record(self, slot: Slot, choice: Token | None) -> None:
        node = self._tree.find(slot)
        is_leaf = node is None and slot == self._lineage.root and not self._unsent_committed()
        if choice is None and (node is not None or is_leaf):
            raise RemoteProtocolError(f"slot {slot} was skipped although it is alive")
        if node is not None:
            node.choice = choice
        elif is_leaf:
            self._tree.choice = choice

    def _advance(self) -> None:
        """Commit what the target's choices settle, tell the stages, and emit it."""
        emitted: list[Token] = []
        commit = None
        while self._tree.choice is not None and self._finished is None:
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
        self._drafting.follow(node)
        slot = None if node is None else node.slot
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

    def _unsent_committed(self) -> int:
        return len(self._tree.committed) - self._lineage.trunk_length

    def _fill(self) -> None:
        """Send what can be sent, and ask for drafts where there is room for them."""
        while self._finished is None and len(self._in_flight) < self._limits.max_chunks:
            if self._unsent_committed() <= self._limits.prefill_tokens:
                request = self._drafting.ask()
                if request is not None:
                    self._commands.append(request)
                if self._waits_for_draft and self._drafting.is_awaited_at_leaf:
                    return
            if not self._send():
                return

    def _send(self) -> bool:
        """Send the next chunk, if there is anything to send."""
        unsent = self._unsent_committed()
        start = len(self._tree.committed) - unsent
        line = self._tree.committed[start : start + self._limits.prefill_tokens]
        has_leaf = len(line) == unsent
        room = self._limits.cache_rows - len(self._lineage) - len(line)
        width = min(self._limits.chunk_tokens - len(line), room) if has_leaf else 0
        drafts = list(islice(self._tree.unsent(), max(0, width)))
        if not line and not drafts:
            return False
        first, parents = self._lineage.next_slot, []
        for _ in line:
            parents.append(self._add(self._lineage.root))
            self._lineage.commit(Slot(self._lineage.next_slot - 1))
        for node in drafts:
            self._tree.record_sent(node, self._lineage.next_slot)
            parent = self._lineage.root if node.parent is None else node.parent.slot
            if parent is None:
                raise LocalProtocolError("a draft was to be sent before its parent")
            parents.append(self._add(parent))
        chunk = Chunk(
            ref=ChunkRef(self._session, self._epoch, self._seq, first),
            tokens=(*line, *(node.token for node in drafts)),
            parents=tuple(parents),
            root=self._lineage.root,
            quiet=len(line) - 1 if line and has_leaf else len(line),
        )
        self._seq += 1
        self._in_flight.append(chunk)
        self._commands.append(SendChunk(chunk))
        return True

    def _add(self, parent: Slot) -> Slot:
        if not self._lineage.add(self._lineage.next_slot, parent):
            raise LocalProtocolError("a dead slot was to be sent")
        return parent
