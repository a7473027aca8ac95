"""How this process ends when it is told to: by a signal, or because its parent has gone.

A signal may come at any moment: while Python imports, while a model is read, while trio runs. Outside trio it raises
`Interrupted` where the program stands; inside trio it cancels the whole run. Whatever that meets, the process is gone
GRACE_S later. Nothing is imported here that takes time, so that the handlers stand before anything slow begins.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

T = TypeVar("T")

GRACE_S = 1.5
"""How long an orderly end may take: connections to close, a computation to finish. Then the process just ends."""


class Interrupted(BaseException):
    """We were told to end. Not an Exception, so that nobody takes it for a failure and goes on."""


class Interrupts:
    """The ending of one process. `exit_code` is set from the moment we were told to end."""

    def __init__(self) -> None:
        self.exit_code: int | None = None
        self.is_serving = False
        """Whether being told to end is the normal way out: exit code 0 instead of 128 + the signal's number."""
        self._cancel: Callable[[], None] | None = None
        self._instead: Callable[[], None] | None = None

    def install(self) -> None:
        """Handle signals from now on. Call it in the main thread."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
            signal.signal(signal.SIGHUP, self._handle)
        signal.signal(signal.SIGALRM, self._give_up)

    def end(self, exit_code: int) -> None:
        """Begin to end: cancels the trio run, or raises Interrupted where there is none. Main thread only.

        The first exit code stands.
        """
        if self.exit_code is None:
            self.exit_code = exit_code
        signal.setitimer(signal.ITIMER_REAL, GRACE_S)
        if self._cancel is None:
            raise Interrupted
        self._cancel()

    @contextmanager
    def first_means(self, action: Callable[[], None]) -> Iterator[None]:
        """Let the first Ctrl-C within the context do `action` (in the trio run) instead; a second one ends as ever."""
        import trio

        token = trio.lowlevel.current_trio_token()
        self._instead = lambda: token.run_sync_soon(action)
        try:
            yield
        finally:
            self._instead = None

    @contextmanager
    def ending(self, scope: object) -> Iterator[None]:
        """Let being told to end cancel `scope`, which is within the trio run, in place of the whole run.

        So what stands around the scope can still say goodbye.
        """
        import trio

        token, before = trio.lowlevel.current_trio_token(), self._cancel
        self._cancel = lambda: _run_soon(token, scope)
        try:
            self.check()
            yield
        finally:
            self._cancel = before

    def check(self) -> None:
        """Raise Interrupted if we were told to end. For long work in other threads, which signals do not reach."""
        if self.exit_code is not None:
            raise Interrupted

    def run(self, main: Callable[[], Awaitable[T]]) -> T:
        """What `main` gives, run by trio and cancelled when we are told to end. Raises: Interrupted then."""
        import trio

        async def cancellable() -> T:
            token = trio.lowlevel.current_trio_token()
            with trio.CancelScope() as scope:
                self._cancel = lambda: _run_soon(token, scope)
                self.check()
                return await main()
            raise Interrupted

        try:
            result = trio.run(cancellable)
        finally:
            self._cancel = None
        self.check()
        return result

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._instead is not None and self.exit_code is None:
            instead, self._instead = self._instead, None
            instead()
            return
        if self.exit_code is not None:
            if number == signal.SIGHUP:
                return  # a shell and its terminal both send it
            os._exit(self.exit_code)  # told twice: at once
        self.end(0 if self.is_serving else 128 + number)

    def _give_up(self, number: int, frame: FrameType | None) -> None:
        if self.exit_code is not None:
            os._exit(self.exit_code)


def _run_soon(token: object, scope: object) -> None:
    import trio

    assert isinstance(token, trio.lowlevel.TrioToken)
    assert isinstance(scope, trio.CancelScope)
    try:
        token.run_sync_soon(scope.cancel, idempotent=True)
    except trio.RunFinishedError:
        raise Interrupted from None


interrupts = Interrupts()
"""Signals belong to the process, so there is one of these."""
