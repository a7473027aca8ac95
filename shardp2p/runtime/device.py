"""The one thread that owns the device, and how tasks hand it calls.

A team of OpenMP threads belongs to the thread that started it, and trio's own worker threads change from call to
call, so every call that computes goes through one DeviceThread. While it computes, the trio loop stays free: torch
releases the interpreter lock.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, TypeVarTuple

import outcome
import torch
import trio

from shardp2p.errors import ConfigError, LocalProtocolError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def set_threads(count: int) -> None:
    """Lets torch compute with `count` threads; call it in the thread that computes (DeviceThread does)."""
    if count < 1:
        raise LocalProtocolError(f"torch cannot compute with {count} threads")
    torch.set_num_threads(count)


def check_device(name: str) -> None:
    """Makes sure that torch can compute on the device `name`, as cpu, cuda or cuda:1. Raises: ConfigError."""
    if name == "cpu":
        return
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    number = torch.device(name).index or 0
    if number >= count:
        have = f"{count} CUDA devices here" if count else "no CUDA device here"
        raise ConfigError(f"cannot compute on {name}: torch sees {have}; choose another with --device, for example cpu")


@dataclass(slots=True)
class _Call:
    work: Callable[[], Any]
    task: trio.lowlevel.Task | None  # that waits for it
    token: trio.lowlevel.TrioToken
    is_abandoned: bool = False

    def finish(self, result: outcome.Outcome[Any]) -> None:
        """Hand the task its result. In the trio loop."""
        if self.task is None:
            result.unwrap()  # nobody else would hear of an error
        elif not self.is_abandoned:
            trio.lowlevel.reschedule(self.task, result)


class DeviceThread:
    """Runs calls one after the other, in the order of asking, in one OS thread until `close`.

    The queue needs no bound of its own: a task has at most one call in it that it waits for, and posts another at most
    when it ends. The thread is a daemon, so a process that forgets to close it still exits.
    """

    def __init__(self, name: str = "device", *, threads: int | None = None) -> None:
        """Starts the thread; `threads` is how many threads torch computes with, by default its own choice."""
        if threads is not None and threads < 1:
            raise LocalProtocolError(f"torch cannot compute with {threads} threads")
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._is_closed = False
        self._is_abandoned = False
        self._thread = threading.Thread(target=self._serve, args=(threads,), name=name, daemon=True)
        self._thread.start()

    async def run(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """What `function(*args)` returns or raises, computed in the device thread.

        A cancellation before the call prevents it; one that comes later waits for the function's end and is then
        left to the caller's next checkpoint, so no result is lost and nothing computes unattended.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        self._put(partial(function, *args))
        result: T = await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
        return result

    async def run_abandonable(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """As `run`, for a call that nobody needs to wait for once it is cancelled: the process is about to end.

        Its result is dropped then, and `close` does not wait for the thread.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        call = self._put(partial(function, *args))

        def abandon(_: object) -> trio.lowlevel.Abort:
            call.is_abandoned = self._is_abandoned = True
            return trio.lowlevel.Abort.SUCCEEDED

        result: T = await trio.lowlevel.wait_task_rescheduled(abandon)
        return result

    def post(self, function: Callable[[], None]) -> None:
        """Have `function` called in the device thread, behind what waits, while the caller goes on.

        It is not to fail, and is left out once the thread is closed.
        """
        if not self._is_closed:
            self._calls.put(_Call(function, None, trio.lowlevel.current_trio_token()))

    def _put(self, work: Callable[[], Any]) -> _Call:
        if self._is_closed:
            raise LocalProtocolError("the device thread is closed")
        call = _Call(work, trio.lowlevel.current_task(), trio.lowlevel.current_trio_token())
        self._calls.put(call)
        return call

    def linger(self, event: threading.Event, seconds: float) -> None:
        """For a call that waits inside: returns when `event` is set, at the latest after `seconds`."""
        event.wait(seconds)

    def close(self) -> None:
        """Ends the thread after the calls that it has; waits for it, unless one of them was abandoned. Idempotent."""
        self._is_closed = True
        self._calls.put(None)
        if not self._is_abandoned:
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _serve(self, threads: int | None) -> None:
        if threads is not None:
            set_threads(threads)
        while (call := self._calls.get()) is not None:
            result = outcome.capture(call.work)
            try:
                call.token.run_sync_soon(call.finish, result)
            except trio.RunFinishedError:
                # The loop ended with a bug of its own while we computed; nobody is left to tell.
                continue
            finally:
                # Neither the result nor the inputs may live on in this frame until the next call comes.
                del call, result
