"""A proposer that takes its time, in a thread of its own: while it answers, the ring goes on.

The turn from one answer to the next question is what a draft's level costs beside the draft, so it is short: the
question waits in the thread, and the answer comes without a task in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from queue import SimpleQueue

import trio

from shardp2p.coordinator.commands import NeedDraft, Proposer
from shardp2p.vocabulary import Branch, Token

Answer = tuple[int, Sequence[Sequence[Branch]]]
"""The number of the request, and branches for each of its paths."""


class DraftThread:
    """Takes questions by `ask`, and hands each answer to `deliver` in the loop. `run` is to be started once."""

    def __init__(self, proposer: Proposer, deliver: Callable[[Answer], None]) -> None:
        self._proposer = proposer
        self._deliver = deliver
        self._running = trio.CancelScope()
        self._is_closed = False
        self._asked: SimpleQueue[tuple[NeedDraft, Sequence[Token]] | None] = SimpleQueue()

    async def run(self) -> None:
        """Answer until `close`. Raises whatever the proposer does until then.

        Closed or cancelled, it waits for no answer, which may take a draft model a minute: the thread ends by itself
        after it, and what it comes to is dropped.
        """
        token, limiter = trio.lowlevel.current_trio_token(), trio.CapacityLimiter(1)
        with self._running:
            await trio.to_thread.run_sync(self._serve, token, limiter=limiter, abandon_on_cancel=True)

    def ask(self, request: NeedDraft, text: Sequence[Token]) -> None:
        """Answer this next; what waits since before is overtaken and left out. `text` is not to change any more."""
        self._asked.put((request, text))

    def close(self) -> None:
        """Nothing more is asked; what is being answered ends by itself, and if it fails, that matters to nobody."""
        self._is_closed = True
        self._asked.put(None)
        self._running.cancel()

    def _serve(self, token: trio.lowlevel.TrioToken) -> None:
        while (asked := self._latest()) is not None:
            request, text = asked
            branches = self._proposer.propose(text, request.paths, request.depth_tokens)
            if not self._is_closed:
                token.run_sync_soon(self._deliver, (request.request, branches))

    def _latest(self) -> tuple[NeedDraft, Sequence[Token]] | None:
        asked = self._asked.get()
        while not self._asked.empty():
            asked = self._asked.get()
        return asked
