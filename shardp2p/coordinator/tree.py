"""The coordinator's token tree: the committed text, the drafts below it, and what the target has said so far.

Pure. A draft is a node; the children of the committed leaf are the roots of the live drafts. Everything else that was
ever proposed is dead and forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count

from shardp2p.errors import LocalProtocolError
from shardp2p.vocabulary import Branch, Slot, Token


@dataclass(slots=True, eq=False)
class Node:
    """A drafted token. `slot` is set when it is sent, `choice` when its verdict is here.

    `probability` estimates that the whole path from the committed leaf to here is right. `is_asked`: drafts below it
    were asked for. `is_alive` turns false when the target chose otherwise.
    """

    token: Token
    position: int
    parent: Node | None
    probability: float
    slot: Slot | None = None
    choice: Token | None = None
    children: dict[Token, Node] = field(default_factory=dict)
    is_asked: bool = False
    is_alive: bool = True


class TokenTree:
    """The committed tokens and the live drafts."""

    def __init__(self, prompt_tokens: Sequence[Token]) -> None:
        self.committed: list[Token] = list(prompt_tokens)
        self.choice: Token | None = None
        """The target's choice after the committed leaf, once known."""
        self.children: dict[Token, Node] = {}
        self.is_asked = False
        """Whether drafts below the committed leaf were asked for."""
        self._by_slot: dict[Slot, Node] = {}

    def advance(self) -> Node | None:
        """Commit `choice`, which must be known; gives the draft that it proves right, or None."""
        if self.choice is None:
            raise LocalProtocolError("the choice after the committed leaf is not known yet")
        node = self.children.get(self.choice)
        self.committed.append(self.choice)
        for child in self.children.values():
            if child is not node:
                self._forget(child)
        if node is None:
            self.children, self.choice, self.is_asked = {}, None, False
            return None
        node.parent = None
        for child in node.children.values():
            child.parent = None
        self.children, self.choice, self.is_asked = node.children, node.choice, node.is_asked
        if node.slot is not None:
            self._by_slot.pop(node.slot, None)
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
        self.children, self.choice, self.is_asked = {}, None, False
        self._by_slot.clear()

    def graft(self, anchor: Node | None, branches: Sequence[Branch], limit_position: int) -> int:
        """Add branches below `anchor` (None: the committed leaf), sharing equal prefixes; gives how many nodes are new.

        No node gets a position of `limit_position` or more.
        """
        new = 0
        for branch in branches:
            parent, children = anchor, self.children if anchor is None else anchor.children
            probability = branch.probability * (1.0 if anchor is None else anchor.probability)
            position = (len(self.committed) if anchor is None else anchor.position + 1) - 1
            for token in branch.tokens:
                position += 1
                if position >= limit_position:
                    break
                node = children.get(token)
                if node is None:
                    node = children[token] = Node(token, position, parent, probability)
                    new += 1
                parent, children = node, node.children
        return new

    def best_leaf(self) -> Node | None:
        """The end of the most probable path; None when there are no drafts."""
        node, children = None, self.children
        while children:
            node = max(children.values(), key=lambda child: child.probability)
            children = node.children
        return node

    def path_tokens(self, node: Node | None) -> list[Token]:
        """The drafted tokens from below the committed leaf to `node`."""
        tokens: list[Token] = []
        while node is not None:
            tokens.append(node.token)
            node = node.parent
        tokens.reverse()
        return tokens

    def unsent(self) -> Iterator[Node]:
        """The drafts that are not sent, parents before children, more probable ones first."""
        order = count()  # equal probabilities: the earlier proposed first
        heap = [(-node.probability, next(order), node) for node in self.children.values()]
        heapify(heap)
        while heap:
            _, _, node = heappop(heap)
            if node.slot is None:
                yield node
            for child in node.children.values():
                heappush(heap, (-child.probability, next(order), child))

    def _forget(self, node: Node) -> None:
        waiting = [node]
        while waiting:
            dead = waiting.pop()
            dead.is_alive = False
            if dead.slot is not None:
                self._by_slot.pop(dead.slot, None)
            waiting.extend(dead.children.values())
