"""A progress bar on stderr for whatever takes longer than a second; nothing where stderr is no terminal."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from shardp2p.cli.output import note, one_line

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Report = Callable[[str, int, int], None]
"""Called with what is being done, how much is done, and how much there is in all (0: not known)."""

_DELAY_S = 0.5

NOTE_S = 8.0
"""After so long a reader without a progress bar hears what is waited for."""

AGAIN_S = 60.0
"""How often after that, where it is something else by then."""


@contextmanager
def progress_bar() -> Iterator[Report]:
    """A Report that draws one line on stderr, from the first half second on, and wipes it in the end."""
    if not sys.stderr.isatty():
        yield lambda what, done, total: None
        return
    bar = _Bar()
    try:
        yield bar.report
    finally:
        bar.close()


@contextmanager
def waiting_bar() -> Iterator[Report]:
    """As progress_bar; where stderr is no terminal, what is waited for after NOTE_S is said there, and later steps."""
    if sys.stderr.isatty():
        with progress_bar() as report:
            yield report
        return
    waiting = Waiting()
    is_over = threading.Event()
    threading.Thread(target=waiting.watch, args=(is_over,), daemon=True).start()
    try:
        yield waiting.report
    finally:
        is_over.set()


class Waiting:
    """What is waited for, for a reader who sees no bar."""

    def __init__(self) -> None:
        self._what = self._told = ""

    def report(self, what: str, done: int, total: int) -> None:
        """Keep what was reported last."""
        self._what = what

    def watch(self, is_over: threading.Event) -> None:
        """Tell now and then, in a thread."""
        started, pause_s = time.monotonic(), NOTE_S
        while not is_over.wait(pause_s):
            self.tell(time.monotonic() - started)
            pause_s = AGAIN_S if self._told else NOTE_S

    def tell(self, after_s: float = NOTE_S) -> None:
        """Say it on stderr, if it is something new."""
        if self._what != self._told:
            self._told = self._what
            note(f"(after {after_s:.0f} s: {one_line(self._told)})")


class _Bar:
    """The line that is drawn: the step that was reported last."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._what = ""

    def report(self, what: str, done: int, total: int) -> None:
        is_open_ended = total == 0  # such a step reports once, so its line cannot wait for the next report
        if self._progress is None and not is_open_ended and time.monotonic() - self._started < _DELAY_S:
            return
        if self._progress is None:
            self._progress = _new_progress()
            self._progress.start()
        if what != self._what:
            if self._task is not None:
                self._progress.remove_task(self._task)
            self._what, self._task = what, self._progress.add_task(what, total=total or None)
        if self._task is not None:
            self._progress.update(self._task, completed=done, total=total or None)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()


def _new_progress() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)
