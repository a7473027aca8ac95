"""A running circuit at its relay: what comes from one side goes to the other, within limits.

Nothing is read from a side before the last piece was taken over by the other, so a slow side slows the fast one and
the relay holds one piece in each direction.
"""

from __future__ import annotations

import math
from typing import Final

import trio

from shardp2p.config import RelayLimits
from shardp2p.errors import PeerUnavailableError
from shardp2p.host.circuit.allowance import PIECE_BYTES, Allowance
from shardp2p.wire.stream import Stream

IDLE_S: Final = 30.0
"""A circuit on which nothing passes for this long is dead: both ends ping each other every few seconds."""
ENDED: Final = "ended"
"""The reason of a circuit that one of its ends closed in order."""


class Splice:
    """Passes bytes between two streams until one of them ends or a limit is reached."""

    def __init__(self, one: Stream, other: Stream, limits: RelayLimits, allowance: Allowance) -> None:
        self.passed_bytes = 0
        self._one = one
        self._other = other
        self._limits = limits
        self._allowance = allowance
        self._reason = ""

    async def run(self) -> str:
        """Why it ended, after which both streams are closed, or reset where they did not end in order."""
        lifetime = trio.move_on_after(self._limits.circuit_s or math.inf)
        try:
            with lifetime:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._pass, self._one, self._other, nursery.cancel_scope)
                    nursery.start_soon(self._pass, self._other, self._one, nursery.cancel_scope)
                    nursery.start_soon(self._watch, nursery.cancel_scope)
            if lifetime.cancelled_caught:
                self._reason = "time limit"
        finally:
            for stream in (self._one, self._other):
                await (stream.close() if self._reason == ENDED else stream.reset())
        return self._reason

    async def _pass(self, source: Stream, sink: Stream, scope: trio.CancelScope) -> None:
        try:
            while data := await source.receive_some(PIECE_BYTES):
                if self._limits.circuit_bytes and self.passed_bytes + len(data) > self._limits.circuit_bytes:
                    self._end("byte limit", scope)
                    return
                self.passed_bytes += len(data)
                now = trio.current_time()
                at = self._allowance.take(len(data), now)
                if at > now:
                    await trio.sleep_until(at)
                await sink.send_all(data)
        except PeerUnavailableError as error:
            self._end(error.message, scope)
        else:
            self._end(ENDED, scope)

    async def _watch(self, scope: trio.CancelScope) -> None:
        """End a circuit on which nothing passes."""
        passed_bytes = -1
        while passed_bytes != self.passed_bytes:
            passed_bytes = self.passed_bytes
            await trio.sleep(IDLE_S)
        self._end("idle", scope)

    def _end(self, reason: str, scope: trio.CancelScope) -> None:
        self._reason = self._reason or reason
        scope.cancel()
