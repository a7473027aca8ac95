"""The coordinator's token tree: the committed text, the drafts below it, and what the target has said so far.

Pure. A draft is a node below the root, the committed leaf. Whatever else was ever proposed is dead and forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import exp, inf, log
from sys import maxsize

from shardp2p.coordinator.nodes import Node, NodeQueue
from shardp2p.errors import LocalProtocolError
from shardp2p.vocabulary import Branch, Slot, Token

LEAST_PROBABILITY = 1e-9
"""A branch of less, or of NaN, is taken for this much, so that its logarithm is a number."""


class TokenTree:
    """The committed tokens and the live drafts. No draft gets a position of `limit_position` or more."""

    def __init__(self, prompt_tokens: Sequence[Token], limit_position: int = maxsize) -> None:
        self.committed: list[Token] = list(prompt_tokens)
        self._limit_position = limit_position
        self.root = Node(self.committed[-1], len(self.committed) - 1, None, 0.0)
        self.asked_leaves = 0
        """How many live leaves, the root among them, were given out to be asked about."""
        self._by_slot: dict[Slot, Node] = {}
        self._unsent = NodeQueue()
        self._leaves = NodeQueue()
        self._note_leaf(self.root)

    def probability(self, node: Node) -> float:
        """An estimate that the path from the root to `node` is right."""
        return exp(min(0.0, node.log_probability - self.root.log_probability))

    def advance(self) -> Node | None:
        """Commit the root's choice, which must be known; gives the draft that it proves right, or None."""
        old = self.root
        if old.choice is None:
            raise LocalProtocolError("the choice after the committed leaf is not known yet")
        node = old.children.get(old.choice)
        self.committed.append(old.choice)
        for child in old.children.values():
            if child is not node:
                self._forget(child)
        old.is_alive = False
        self.asked_leaves -= old.is_asked
        if node is None:
            self.root = Node(old.choice, old.position + 1, None, old.log_probability)
            self._note_leaf(self.root)
            return None
        node.parent = None
        if node.slot is not None:
            self._by_slot.pop(node.slot, None)
        self.root = node
        return node

    def record_sent(self, node: Node, slot: Slot) -> None:
        """Note the slot under which a draft was sent."""
        node.slot = slot
        self._by_slot[slot] = node

    def find(self, slot: Slot) -> Node | None:
        """The live draft that was sent as `slot`."""
        return self._by_slot.get(slot)

    def drop_drafts(self) -> None:
        """Forget every draft, and what is known below the committed leaf."""
        for child in self.root.children.values():
            self._forget(child)
        self.root = Node(self.committed[-1], len(self.committed) - 1, None, 0.0)
        self.asked_leaves = 0
        self._by_slot.clear()
        self._unsent, self._leaves = NodeQueue(), NodeQueue()
        self._note_leaf(self.root)

    def graft(self, anchor: Node, branches: Sequence[Branch]) -> None:
        """Add branches below `anchor`, sharing equal prefixes.

        Of single tokens, the most probable first, each becomes a node only when the one before it is taken: most never
        are, and a draft model gives many.
        """
        if anchor.position + 1 >= self._limit_position:
            return
        if _are_falling_tokens(branches):
            self._add_next(anchor, iter(branches))
            return
        for branch in branches:
            self._add(anchor, branch)

    def _add(self, anchor: Node, branch: Branch) -> Node | None:
        """Make the nodes of a branch that are not there yet; gives the last of them, if it is new."""
        parent, step, is_new = anchor, branch.probability, False
        for token in branch.tokens:
            if parent.position + 1 >= self._limit_position:
                break
            node = parent.children.get(token)
            is_new = node is None
            if node is None:
                log_probability = parent.log_probability + log(min(1.0, max(LEAST_PROBABILITY, step)))
                node = Node(token, parent.position + 1, parent, log_probability)
                parent.children[token] = node
                self._unsent.put(node)
            parent, step = node, branch.continues
        if parent is not anchor:
            self._note_leaf(parent)
        return parent if is_new else None

    def _add_next(self, anchor: Node, siblings: Iterator[Branch]) -> None:
        """Make the next of these branches that is not there yet."""
        for branch in siblings:
            if (node := self._add(anchor, branch)) is not None:
                node.siblings = siblings
                return

    def _take(self, queue: NodeQueue) -> Node:
        """The first of a queue; whoever comes after it among its siblings has a turn now."""
        node = queue.take()
        if node.siblings is not None:
            siblings, node.siblings = node.siblings, None
            if node.parent is not None:
                self._add_next(node.parent, siblings)
        return node

    def depth_below(self, position: int) -> int:
        """How many drafts fit on a path below `position`."""
        return max(0, self._limit_position - 1 - position)

    def path_tokens(self, node: Node) -> list[Token]:
        """The drafted tokens from below the root to `node`."""
        tokens: list[Token] = []
        while node.parent is not None:
            tokens.append(node.token)
            node = node.parent
        tokens.reverse()
        return tokens

    def best_unsent(self) -> Node | None:
        """The most probable draft that is not sent."""
        return self._unsent.first(_is_unsent)

    def take_unsent(self, most: int, least_probability: float = 0.0) -> list[Node]:
        """Up to `most` drafts that are to be sent now, parents before children, more probable ones first."""
        taken: list[Node] = []
        while len(taken) < most and (node := self._unsent.first(_is_unsent)) is not None:
            if self.probability(node) < least_probability:
                break
            taken.append(self._take(self._unsent))
        return taken

    def put_back(self, drafts: Sequence[Node]) -> None:
        """Drafts that were taken are not sent now."""
        for node in reversed(drafts):
            self._unsent.put_first(node)

    def take_leaf(self, least_probability: float) -> Node | None:
        """The most probable leaf that was not asked about, which counts as asked from now on; None: there is none."""
        node = self._leaves.first(_is_unasked_leaf)
        if node is None or self.probability(node) < least_probability:
            return None
        node.is_asked = True
        self.asked_leaves += 1
        return self._take(self._leaves)

    def take_leaves(self, most: int, least_probability: float) -> list[Node]:
        """Up to `most` such leaves, the most probable first."""
        taken: list[Node] = []
        while len(taken) < most and (node := self.take_leaf(least_probability)) is not None:
            taken.append(node)
        return taken

    def _note_leaf(self, node: Node) -> None:
        if node.position + 1 < self._limit_position and not node.children and not node.is_asked:
            self._leaves.put(node)

    def _forget(self, node: Node) -> None:
        waiting = [node]
        while waiting:
            dead = waiting.pop()
            dead.is_alive = False
            self.asked_leaves -= dead.is_asked
            if dead.slot is not None:
                self._by_slot.pop(dead.slot, None)
            waiting.extend(dead.children.values())
            dead.children.clear()  # or they would hold one another until Python's collector of circles comes


def _are_falling_tokens(branches: Sequence[Branch]) -> bool:
    """Whether all are single tokens, the most probable first. A draft model gives hundreds of them at once."""
    before = inf
    for branch in branches:
        if branch.probability > before or len(branch.tokens) != 1:
            return False
        before = branch.probability
    return True


def _is_unsent(node: Node) -> bool:
    return node.is_alive and node.slot is None and node.parent is not None


def _is_unasked_leaf(node: Node) -> bool:
    return node.is_alive and not node.is_asked and not node.children
