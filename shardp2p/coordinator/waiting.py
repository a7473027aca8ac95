"""Generations that wait for room on their ring, in the order of asking. Nobody waits who has not asked to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Final

import trio

from shardp2p.coordinator.request import GenerationRequest
from shardp2p.coordinator.stream import GenerationStream
from shardp2p.errors import OverloadedError

RETRY_S: Final = 0.5
"""How long until the first in line asks its stages again, if nothing of ours ends before: others may have left."""

Open = Callable[[GenerationRequest], AbstractAsyncContextManager[GenerationStream]]


class Line:
    """Who waits on this peer. As many wait as it drives generations, or as its own user asks for."""

    def __init__(self) -> None:
        self._turn = trio.Lock()  # fair: in order of arrival
        self._ended = trio.Event()

    @asynccontextmanager
    async def open(self, request: GenerationRequest, open_one: Open) -> AsyncIterator[GenerationStream]:
        """The generation of `open_one`, begun again while its stages have no room, for `request.wait_s` at most.

        Raises: OverloadedError when its turn does not come within that time.
        """
        try:
            if not request.wait_s:
                async with open_one(request) as stream:
                    yield stream
                return
            async with AsyncExitStack() as kept:
                yield await self._open_in_turn(request, open_one, kept)
        finally:
            self._ended.set()
            self._ended = trio.Event()

    async def _open_in_turn(self, request: GenerationRequest, open_one: Open, kept: AsyncExitStack) -> GenerationStream:
        began = trio.current_time()
        deadline = began + request.wait_s
        with trio.move_on_at(deadline) as allowed:
            await self._turn.acquire()
        if allowed.cancelled_caught:
            raise OverloadedError(
                f"after {request.wait_s:.0f} s others still wait before it; wait longer, or ask later"
            )
        try:
            while True:
                async with AsyncExitStack() as attempt:
                    stream = await attempt.enter_async_context(open_one(_within(request, began)))
                    if await stream.wait_open() or trio.current_time() >= deadline:
                        await kept.enter_async_context(attempt.pop_all())
                        return stream
                with trio.move_on_at(min(trio.current_time() + RETRY_S, deadline)):
                    await self._ended.wait()
        finally:
            self._turn.release()


def _within(request: GenerationRequest, began: float) -> GenerationRequest:
    """What is left of `request`."""
    if request.budget_s is None:
        return request
    return replace(request, budget_s=max(0.0, request.budget_s - (trio.current_time() - began)))
