"""What the reader of a generation sees, wherever it is driven: batches of tokens, their pace, and how it went."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

import trio

from shardp2p.coordinator.request import Result
from shardp2p.errors import OverloadedError, ShardError
from shardp2p.vocabulary import Token


class Source(Protocol):
    """A generation under way. `run` never raises a ShardError: it leaves it in `failure`, and ends `tokens`.

    `opened` is set when all stages are seen to have room for it, at the latest when it ends.
    """

    tokens: trio.MemoryReceiveChannel[tuple[Token, ...]]
    result: Result
    failure: ShardError | None
    opened: trio.Event

    async def run(self) -> None:
        """Generate to the end."""
        ...


class GenerationStream:
    """The tokens of a generation, in the batches in which they are committed: iterate over it.

    The iteration raises what `open_generation` says, after the tokens that came before.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self.result = source.result
        self.tok_s = 0.0
        """Tokens per second after the first batch, as they were read; 0 while there is only one batch."""
        self._first_at: float | None = None
        self._later_tokens = 0

    def __aiter__(self) -> GenerationStream:
        return self

    async def wait_open(self) -> bool:
        """Whether its stages have room for it, once that is known."""
        await self._source.opened.wait()
        return not isinstance(self._source.failure, OverloadedError)

    async def __anext__(self) -> tuple[Token, ...]:
        try:
            batch = await self._source.tokens.receive()
        except trio.EndOfChannel:
            if self._source.failure is not None:
                raise self._source.failure from None
            raise StopAsyncIteration from None
        self._note(len(batch), trio.current_time())
        return batch

    def _note(self, tokens: int, now: float) -> None:
        if self._first_at is None:
            self._first_at = now
            return
        self._later_tokens += tokens
        if now > self._first_at:
            self.tok_s = self._later_tokens / (now - self._first_at)


@asynccontextmanager
async def running(source: Source) -> AsyncIterator[GenerationStream]:
    """`source`, running as long as the context; leaving early cancels it."""
    failure: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(source.run)
            yield GenerationStream(source)
            if source.result.finish is None:
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        # The nursery wraps whatever the body of the context raises; its own except clauses are to see it bare.
        failure = group.exceptions[0] if len(group.exceptions) == 1 else group
    if failure is not None:
        raise failure
