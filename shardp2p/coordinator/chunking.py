"""The next chunk: committed tokens that the stages do not have yet, then the drafts that are worth their rows. Pure."""

from __future__ import annotations

from math import inf

from shardp2p.coordinator.commands import Limits
from shardp2p.coordinator.nodes import Node
from shardp2p.coordinator.pace import Pace
from shardp2p.coordinator.tree import TokenTree
from shardp2p.errors import LocalProtocolError
from shardp2p.vocabulary import ChunkRef, SessionId, Slot
from shardp2p.wire.lineage import Lineage
from shardp2p.wire.messages import Chunk


class Chunking:
    """What is sent under which slot. It adds to the tree's and the lineage's accounts what it gives out."""

    def __init__(self, session: SessionId, tree: TokenTree, lineage: Lineage, pace: Pace, limits: Limits) -> None:
        self._session = session
        self._tree = tree
        self._lineage = lineage
        self._pace = pace
        self._limits = limits
        self._seq = 0
        self.least_sent = 0.0
        """How probable the last draft of the last chunk was: less probable ones had no room. 0: all had."""
        self.wake_at = inf
        """When there may be a chunk although there was none the last time; inf: not by time alone."""

    @property
    def unsent_committed(self) -> int:
        """How many committed tokens are still to be sent."""
        return len(self._tree.committed) - self._lineage.trunk_length

    def next_chunk(self, epoch: int, now: float) -> Chunk | None:
        """The chunk to send now, if there is anything to send."""
        self.wake_at = inf
        unsent = self.unsent_committed
        start = len(self._tree.committed) - unsent
        line = self._tree.committed[start : start + self._limits.prefill_tokens]
        has_leaf = len(line) == unsent
        drafts = self._take_drafts(len(line), now) if has_leaf else []
        if not line and not drafts:
            return None
        first, parents = self._lineage.next_slot, []
        for _ in line:
            parents.append(self._add(self._lineage.root))
            self._lineage.commit(Slot(self._lineage.next_slot - 1))
        for node in drafts:
            self._tree.record_sent(node, self._lineage.next_slot)
            parents.append(self._add(self._parent_slot(node)))
        chunk = Chunk(
            ref=ChunkRef(self._session, epoch, self._seq, first),
            tokens=(*line, *(node.token for node in drafts)),
            parents=tuple(parents),
            root=self._lineage.root,
            quiet=len(line) - 1 if line and has_leaf else len(line),
        )
        self._seq += 1
        self._pace.note_sent(chunk, now)
        return chunk

    def _take_drafts(self, line: int, now: float) -> list[Node]:
        """The drafts that go now, behind `line` committed tokens; when none may, it is known when to look again."""
        room = self._limits.cache_rows - len(self._lineage) - line
        most = min(self._limits.chunk_tokens - line, room)
        if most < 1:
            return []
        if self._tree.best_unsent() is None:
            self.least_sent = 0.0
            return []
        if not line and now < self._pace.next_at:
            self.wake_at = self._pace.next_at
            return []
        drafts = self._tree.take_unsent(most, self._pace.least_probability)
        if not self._pace.are_worth(sum(map(self._tree.probability, drafts)), line + len(drafts)):
            self._tree.put_back(drafts)
            self.least_sent = 0.0  # not room is what they lack: deeper ones may make them worth it
            return []
        self.least_sent = self._tree.probability(drafts[-1]) if len(drafts) == most else 0.0
        return drafts

    def _parent_slot(self, node: Node) -> Slot:
        """The slot that a draft hangs below."""
        if node.parent is self._tree.root:
            return self._lineage.root
        if node.parent is None or node.parent.slot is None:
            raise LocalProtocolError("a draft was to be sent before its parent")
        return node.parent.slot

    def _add(self, parent: Slot) -> Slot:
        if not self._lineage.add(self._lineage.next_slot, parent):
            raise LocalProtocolError("a dead slot was to be sent")
        return parent
