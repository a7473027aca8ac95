"""When drafts are asked for, and where in the tree an answer belongs. Pure.

At most one request is outstanding, and each leaf is asked about once: a proposer that knows nothing is left alone
until the text has moved on. A request asks about several leaves, which a draft model evaluates in one step: about as
many as give most for the time that answers take, which is seen. Leaves have a budget, by the tokens that are committed:
beyond it only those are asked about whose drafts would have room in a chunk now.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shardp2p.coordinator.commands import NeedDraft
from shardp2p.coordinator.nodes import Node
from shardp2p.coordinator.tree import TokenTree
from shardp2p.runtime.row_cost import RowCost
from shardp2p.vocabulary import Branch

PATHS_AT_ONCE = 32
"""Leaves in one request at most: more are seldom worth a place in a chunk."""

KEPT_SHARE = 0.0625
"""A draft so much less likely than would be worth a row now hardly ever becomes worth one before it is dead."""

LEAVES_A_TOKEN: Final = 48
"""Leaves for each committed token: each costs some microseconds here, and drafts below most are dead before they go."""

CHILD_SHARE: Final = 0.5
"""Beyond that, a leaf is asked about if a draft that is so much less probable than the leaf would have room now."""

CREDIT_TOKENS: Final = 32
"""An answer begins as if so many tokens were committed: what is asked ahead pays in easy texts."""

MAX_ASKED: Final = 4096
"""Live leaves that were asked about: more than a draft model gets through in a lap of half a second. Were there no end,
drafts would fill the memory while a ring that hangs, or reads a long prompt, says nothing."""


class Drafting:
    """The outstanding request.

    `is_eager`: the next is made as soon as one is answered, else when no draft waits that is worth a row.
    """

    def __init__(self, tree: TokenTree, *, draft_tokens: int, is_eager: bool) -> None:
        self._tree = tree
        self._draft_tokens = draft_tokens
        self._is_eager = is_eager
        self._prompt_length = len(tree.committed)
        self._requests = 0
        self._asked_leaves = 0
        self._request: tuple[int, tuple[Node, ...]] | None = None  # number, and the nodes that it continues
        self._asked_at = 0.0
        self._cost = RowCost()  # of an answer, by the leaves that it was asked about
        self.rounds = 0
        """How many requests were answered since the caller set it to 0."""

    @property
    def is_awaited_at_root(self) -> bool:
        """Whether a request is outstanding that continues the committed text itself."""
        return self._request is not None and self._tree.root in self._request[1]

    @property
    def is_busy(self) -> bool:
        """Whether a request is outstanding."""
        return self._request is not None

    def ask(self, least_probability: float, now: float = 0.0, *, least_sent: float = 0.0) -> NeedDraft | None:
        """A request below the most probable leaves, when one is due.

        `least_probability`: of a draft worth a row; `least_sent`: of one that there is room for now.
        """
        if self._request or self._draft_tokens < 1 or self._tree.asked_leaves >= MAX_ASKED:
            return None
        if not self._is_eager and self._has_worth_sending(least_probability):
            return None
        if self._is_over:
            least_probability = max(least_probability, min(1.0, least_sent / CHILD_SHARE))
        leaves = self._take_leaves(least_probability)
        if not leaves:
            return None
        self._requests += 1
        self._asked_leaves += len(leaves)
        self._asked_at = now
        self._request = self._requests, tuple(leaves)
        paths = tuple(tuple(self._tree.path_tokens(leaf)) for leaf in leaves)
        depth = self._tree.depth_below(min(leaf.position for leaf in leaves))
        return NeedDraft(self._requests, len(self._tree.committed), paths, min(self._draft_tokens, depth))

    @property
    def _is_over(self) -> bool:
        """Whether so many leaves were asked about that only those are whose drafts would have room now."""
        tokens = len(self._tree.committed) - self._prompt_length + CREDIT_TOKENS
        return self._is_eager and self._asked_leaves > LEAVES_A_TOKEN * tokens

    def _has_worth_sending(self, least_probability: float) -> bool:
        best = self._tree.best_unsent()
        return best is not None and self._tree.probability(best) >= least_probability

    def _take_leaves(self, least_probability: float) -> list[Node]:
        """The leaves to ask about: each adds more to what the answer is worth than to the time that it takes."""
        leaves: list[Node] = []
        worth, least = 0.0, least_probability
        while len(leaves) < PATHS_AT_ONCE and (leaf := self._tree.take_leaf(least)) is not None:
            leaves.append(leaf)
            worth += self._tree.probability(leaf)
            if self._cost.row_s:
                least = max(least_probability, worth * self._cost.row_s / self._cost.seconds(len(leaves)))
        return leaves

    def answer(
        self, request: int, branches: Sequence[Sequence[Branch]], least_probability: float = 0.0, now: float = 0.0
    ) -> bool:
        """Add the answer to the tree; false when events have overtaken it.

        Drafts of less than `least_probability` are not worth a row now, and kept if they may become so.
        """
        if self._request is None or self._request[0] != request:
            return False
        leaves = self._request[1]
        self._request = None
        self._cost.note(len(leaves), max(0.0, now - self._asked_at))
        self.rounds += 1
        for leaf, below in zip(leaves, branches, strict=False):
            if leaf.is_alive:
                least, share = least_probability * KEPT_SHARE, self._tree.probability(leaf)
                self._tree.graft(leaf, [branch for branch in below if branch.probability * share >= least])
        return True

    def follow(self, *, is_correction: bool) -> None:
        """Keep the outstanding request only if something that it continues still stands."""
        if is_correction:
            self.rounds = 0
        if self._request is not None and not any(node.is_alive for node in self._request[1]):
            self._request = None

    def drop(self) -> None:
        """Forget the outstanding request."""
        self._request = None
