"""When drafts are asked for, and where in the tree an answer belongs. Pure.

At most one request is outstanding, and each leaf is asked about once: a proposer that knows nothing is left alone
until the text has moved on.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardp2p.coordinator.commands import NeedDraft
from shardp2p.coordinator.tree import Node, TokenTree
from shardp2p.vocabulary import Branch


class Drafting:
    """The outstanding request. No draft gets a position of `limit_position` or more."""

    def __init__(self, tree: TokenTree, *, draft_tokens: int, limit_position: int) -> None:
        self._tree = tree
        self._draft_tokens = draft_tokens
        self._limit_position = limit_position
        self._requests = 0
        self._request: tuple[int, Node | None] | None = None  # number, and the draft that it continues

    @property
    def is_awaited_at_leaf(self) -> bool:
        """Whether a request is outstanding that continues the committed text itself."""
        return self._request is not None and self._request[1] is None

    def ask(self) -> NeedDraft | None:
        """A request below the most probable leaf, when one is due and no draft waits to be sent."""
        if self._request or self._draft_tokens < 1 or next(self._tree.unsent(), None) is not None:
            return None
        anchor = self._tree.best_leaf()
        asked: Node | TokenTree = self._tree if anchor is None else anchor
        position = len(self._tree.committed) if anchor is None else anchor.position + 1
        depth = min(self._draft_tokens, self._limit_position - position)
        if asked.is_asked or depth < 1:
            return None
        asked.is_asked = True
        self._requests += 1
        self._request = (self._requests, anchor)
        return NeedDraft(self._requests, len(self._tree.committed), tuple(self._tree.path_tokens(anchor)), depth)

    def answer(self, request: int, branches: Sequence[Branch]) -> bool:
        """Add the answer to the tree; false when events have overtaken it."""
        if self._request is None or self._request[0] != request:
            return False
        _, anchor = self._request
        self._request = None
        self._tree.graft(anchor, branches, limit_position=self._limit_position)
        return True

    def follow(self, leaf: Node | None) -> None:
        """Keep the outstanding request only if what it continues still stands, now that `leaf` (None: no draft) is
        committed.
        """
        if self._request is None:
            return
        number, anchor = self._request
        if anchor is not None and anchor is leaf:
            self._request = (number, None)
        elif anchor is None or not anchor.is_alive:
            self._request = None

    def drop(self) -> None:
        """Forget the outstanding request."""
        self._request = None
