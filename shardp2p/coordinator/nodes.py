"""The nodes of the coordinator's token tree, and queues that give the most probable first. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from shardp2p.vocabulary import Branch, Slot, Token


@dataclass(slots=True, eq=False)
class Node:
    """A token: the root, or a draft below it. `slot` is set when it is sent, `choice` when its verdict is here.

    `log_probability` estimates, up to what is the same for all live nodes, that the whole path to here is right.
    `is_asked`: drafts below it were asked for. `is_alive` turns false when the target chose otherwise.
    `siblings`: the branches beside it that are less probable, of which nothing is made before this one is taken.
    """

    token: Token
    position: int
    parent: Node | None
    log_probability: float
    slot: Slot | None = None
    choice: Token | None = None
    children: dict[Token, Node] = field(default_factory=dict)
    is_asked: bool = False
    is_alive: bool = True
    siblings: Iterator[Branch] | None = None


class NodeQueue:
    """Nodes, the most probable first; of equal ones the earlier proposed."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Node]] = []
        self._order = count()
        self._order_before = count(-1, -1)

    def put(self, node: Node) -> None:
        """Put one that is new."""
        heappush(self._heap, (-node.log_probability, next(self._order), node))

    def put_first(self, node: Node) -> None:
        """Put one that goes before all that are as probable: what was taken comes before what hangs below it."""
        heappush(self._heap, (-node.log_probability, next(self._order_before), node))

    def first(self, is_wanted: Callable[[Node], bool]) -> Node | None:
        """The first one that is wanted; those before it are gone for good."""
        while self._heap:
            node = self._heap[0][2]
            if is_wanted(node):
                return node
            heappop(self._heap)
        return None

    def take(self) -> Node:
        """Take the first one out."""
        return heappop(self._heap)[2]
