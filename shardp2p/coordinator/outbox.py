"""What waits to be sent on one control stream. Commits supersede each other, so a slow stage costs no memory."""

from __future__ import annotations

from collections import deque

import trio

from shardp2p.errors import blaming
from shardp2p.wire.channel import MessageChannel
from shardp2p.wire.messages import Close, Commit, Tokens


class ControlOutbox:
    """The queue of a control stream and the task that empties it.

    At most one commit, the latest, one Close, and the token ids of the chunks in flight wait here.
    """

    def __init__(self, channel: MessageChannel) -> None:
        self._channel = channel
        self._tokens: deque[Tokens] = deque()
        self._commit: Commit | None = None
        self._close: Close | None = None
        self._filled = trio.Event()

    def put_commit(self, commit: Commit) -> None:
        """Send `commit` instead of any that still waits."""
        self._commit = commit
        self._filled.set()

    def put_tokens(self, tokens: Tokens) -> None:
        """Send `tokens` after those that wait."""
        self._tokens.append(tokens)
        self._filled.set()

    def put_last(self, close: Close) -> None:
        """Send `close` after everything else; nothing may follow."""
        self._close = close
        self._filled.set()

    async def run(self) -> None:
        """Send what is put, until Close is sent. Raises PeerUnavailableError when the stage is gone."""
        with blaming(self._channel.peer):
            while True:
                await self._filled.wait()
                self._filled = trio.Event()
                while self._tokens:
                    await self._channel.send(self._tokens.popleft())
                if self._commit is not None:
                    commit, self._commit = self._commit, None
                    await self._channel.send(commit)
                if self._close is not None:
                    await self._channel.send(self._close)
                    return
