"""One session of a stage: which rows to compute next, where they lie in the cache, and what is skipped.

Pure. The service feeds it arrivals, commits and tokens in the order in which they come in, and asks for the next work
whenever the device is free. Rules and terms: docs/protocols/ring.md.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shardp2p.errors import OverloadedError, RemoteProtocolError
from shardp2p.vocabulary import NO_PARENT, ChunkRef, Slot, Token
from shardp2p.wire.lineage import Lineage
from shardp2p.wire.messages import Activations, Chunk, Commit, Tokens

COMPACT_DEAD_ROWS = 64
"""Dead rows that are left in the cache before it is compacted: attention over fewer costs less than moving the rest."""

MAX_SLOTS = 1 << 22
"""Slots in an epoch: what a session may make a stage remember of token ids."""


class Keep(NamedTuple):
    """Which cache rows stay: all before `first`, and `rows`, ascending from there. They are renumbered from 0."""

    first: int
    rows: tuple[int, ...]

    def before(self, row: int) -> int:
        """The number that a kept row had before."""
        return row if row < self.first else self.rows[row - self.first]


@dataclass(frozen=True, slots=True)
class Work:
    """One chunk to run or to pass on.

    keep          what to keep of the cache before anything else; None leaves the cache as it is
    rows          the chunk's rows to compute, ascending; empty when all are skipped
    inputs        where each of `rows` lies among the inputs that arrived
    cache_parents cache row of each one's parent, -1 for none; rows are appended in this order
    positions     position of each one's token
    skipped       the chunk's rows that are not computed, ascending
    """

    arrival: Chunk | Activations
    keep: Keep | None
    rows: tuple[int, ...]
    inputs: tuple[int, ...]
    cache_parents: tuple[int, ...]
    positions: tuple[int, ...]
    skipped: tuple[int, ...]

    @property
    def ref(self) -> ChunkRef:
        """The chunk's id."""
        return self.arrival.ref

    @property
    def verdict_rows(self) -> tuple[int, ...]:
        """The rows of the chunk, out of `rows`, that need a verdict."""
        return tuple(row for row in self.rows if row >= self.arrival.quiet)


class Session:
    """The machine. Raises RemoteProtocolError for whatever the peers must not send."""

    def __init__(
        self, *, cache_rows: int, max_chunks: int, needs_tokens: bool = False, epoch: int = 0, shared_rows: int = 0
    ) -> None:
        """The first `shared_rows` cache rows hold the first tokens of the text already."""
        self._capacity = cache_rows
        self._max_chunks = max_chunks
        self._needs_tokens = needs_tokens
        self._epoch = epoch
        self._has_begun = False
        self._next_seq = 0
        self._lineage = Lineage(shared_rows)
        self._slots = [Slot(row) for row in range(shared_rows)]  # by cache row
        self._row_of = {Slot(row): row for row in range(shared_rows)}
        self._firm = shared_rows  # leading rows that hold the text and so never die
        self._keep: Keep | None = None
        self._queue: deque[Chunk | Activations] = deque()
        self._tokens: list[Token] = []  # by slot
        self._tokens_epoch = 0

    @property
    def epoch(self) -> int:
        """The epoch of the latest chunk."""
        return self._epoch

    @property
    def queued(self) -> int:
        """How many chunks wait."""
        return len(self._queue)

    def receive(self, arrival: Chunk | Activations) -> None:
        """Queue a chunk or its activations.

        `seq` rises by one within an epoch. The first chunk of a later epoch begins it; one of an earlier is dropped.
        """
        ref = arrival.ref
        if ref.epoch < self._epoch:
            return
        if ref.epoch > self._epoch or not self._has_begun:
            self._begin_epoch(ref)
        elif ref.seq != self._next_seq:
            raise RemoteProtocolError(f"chunk {ref} came where number {self._next_seq} was due")
        if len(self._queue) >= self._max_chunks:
            raise RemoteProtocolError(f"more than {self._max_chunks} chunks are in the ring")
        if ref.first_slot != self._lineage.next_slot:
            raise RemoteProtocolError(f"chunk {ref} came where slot {self._lineage.next_slot} was due")
        self._next_seq = ref.seq + 1
        if arrival.root < ref.first_slot and arrival.root != NO_PARENT:
            self._lineage.commit(arrival.root)
        skipped = set(arrival.skipped) if isinstance(arrival, Activations) else ()
        for row, parent in enumerate(arrival.parents):
            slot = Slot(ref.first_slot + row)
            self._lineage.add(slot, parent)
            if row in skipped:
                self._lineage.kill(slot)
        self._lineage.commit(arrival.root)
        self._queue.append(arrival)

    def commit(self, message: Commit) -> None:
        """Take a commit that overtook the chunks. One of another epoch is late or early and changes nothing."""
        if message.epoch == self._epoch:
            self._lineage.commit(message.root, message.parent)

    def receive_tokens(self, message: Tokens) -> None:
        """Take the ids that penalties need; they may come before or after the chunk. A new epoch's begin at slot 0."""
        if not self._needs_tokens:
            raise RemoteProtocolError("token ids came to a session whose choices do not depend on them")
        if message.epoch < self._tokens_epoch:
            return
        if message.epoch > self._tokens_epoch:
            self._tokens_epoch = message.epoch
            self._tokens.clear()
        if message.first_slot != len(self._tokens):
            raise RemoteProtocolError(
                f"the ids from slot {message.first_slot} on came where {len(self._tokens)} was due"
            )
        if len(self._tokens) + len(message.tokens) > MAX_SLOTS:
            raise RemoteProtocolError(f"more than {MAX_SLOTS} token ids in an epoch")
        self._tokens.extend(message.tokens)

    def token(self, slot: Slot) -> Token:
        """The id at `slot`; only where tokens are needed."""
        return self._tokens[slot]

    def next_work(self) -> Work | None:
        """The next chunk, or None when there is none or its token ids are still to come."""
        if not self._queue:
            return None
        arrival = self._queue[0]
        first, count = arrival.ref.first_slot, len(arrival.parents)
        if self._needs_tokens and (self._tokens_epoch != self._epoch or first + count > len(self._tokens)):
            return None
        self._queue.popleft()
        alive = [row for row in range(count) if not self._lineage.is_dead(Slot(first + row))]
        self._make_room(first, len(alive))
        gone = set(arrival.skipped) if isinstance(arrival, Activations) else set()
        index = {row: at for at, row in enumerate(r for r in range(count) if r not in gone)}
        cache_parents = []
        for row in alive:
            parent = arrival.parents[row]
            cache_parents.append(-1 if parent == NO_PARENT else self._row_of[parent])
            self._row_of[Slot(first + row)] = len(self._slots)
            self._slots.append(Slot(first + row))
        keep, self._keep = self._keep, None
        is_alive = set(alive)
        return Work(
            arrival=arrival,
            keep=keep,
            rows=tuple(alive),
            inputs=tuple(index[row] for row in alive),
            cache_parents=tuple(cache_parents),
            positions=tuple(self._lineage.position(Slot(first + row)) for row in alive),
            skipped=tuple(row for row in range(count) if row not in is_alive),
        )

    def text_rows(self) -> tuple[int, ...]:
        """The cache rows of the text's tokens from the first on, as the cache numbers them now."""
        rows = []
        for slot in self._lineage.trunk():
            row = self._row_of.get(slot)
            if row is None:
                break
            rows.append(row if self._keep is None else self._keep.before(row))
        return tuple(rows)

    def leading_rows(self) -> int:
        """How many of the text's first tokens lie in the rows of their positions: these never move."""
        trunk, row_of = self._lineage.trunk() if self._epoch == 0 else (), self._row_of
        return bisect_left(range(len(trunk)), True, key=lambda at: trunk[at] != at or trunk[at] not in row_of)

    def _begin_epoch(self, ref: ChunkRef) -> None:
        kept = self._lineage.restart(ref.first_slot)
        missing = [slot for slot in kept if slot not in self._row_of]
        if missing:
            raise RemoteProtocolError(f"epoch {ref.epoch} keeps slot {missing[0]}, which was never computed here")
        self._queue.clear()
        self._epoch = ref.epoch
        self._has_begun = True
        self._retain(0, [self._row_of[slot] for slot in kept])
        self._slots = [Slot(position) for position in range(len(kept))]
        self._row_of = dict(zip(self._slots, range(len(kept)), strict=True))
        self._firm = len(kept)

    def _make_room(self, first: Slot, rows: int) -> None:
        """Compact when many rows are dead, or when the next ones would not fit. `first`: the chunk's first slot."""
        used = len(self._slots)
        cached = len(self._lineage) - self._lineage.count_from(first)
        dead = used - cached
        if dead >= max(COMPACT_DEAD_ROWS, cached // 4) or (dead and used + rows > self._capacity):
            self._compact()
        if len(self._slots) + rows > self._capacity:
            raise OverloadedError(
                f"the session's {self._capacity} cache rows are full ({len(self._slots)} used, {rows} more needed); "
                "ask for fewer tokens"
            )

    def _compact(self) -> None:
        """Drop the dead rows. Costs what lies behind the text's leading rows, not the whole text."""
        while self._firm < len(self._slots) and self._lineage.is_trunk(self._slots[self._firm]):
            self._firm += 1
        behind = range(self._firm, len(self._slots))
        rows = [row for row in behind if not self._lineage.is_dead(self._slots[row])]
        self._retain(self._firm, rows)
        for slot in self._slots[self._firm :]:
            del self._row_of[slot]
        self._slots[self._firm :] = [self._slots[row] for row in rows]
        for row in range(self._firm, len(self._slots)):
            self._row_of[self._slots[row]] = row

    def _retain(self, first: int, rows: Sequence[int]) -> None:
        """Keep these rows and those before `first`, composed with a retention that the cache has not seen yet."""
        if first + len(rows) == len(self._slots):
            return
        if self._keep is None:
            self._keep = Keep(first, tuple(rows))
        else:
            head = min(first, self._keep.first)
            self._keep = Keep(head, tuple(self._keep.before(row) for row in (*range(head, first), *rows)))
