"""The console script `shardp2p`: how every command ends.

Commands raise; only here an exception becomes a line on stderr and an exit code (docs/conventions.md, Errors). Nothing
slow is imported before the signal handlers stand. The commands themselves are listed in app.py.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import NoReturn

from shardp2p.cli import streams
from shardp2p.cli.interrupts import interrupts
from shardp2p.cli.quick_imports import quick_imports


def main() -> NoReturn:
    """Run the command line in `sys.argv` and exit."""
    interrupts.install()
    streams.prepare()
    exit_code = run(sys.argv[1:])
    if interrupts.exit_code is not None:
        exit_code = interrupts.exit_code
    if interrupts.exit_code is not None or threading.active_count() > 1:
        # Not through the interpreter's end: threads that still import or compute would hold it up.
        sys.stderr.flush()
        os._exit(exit_code)
    sys.exit(exit_code)


def run(arguments: Sequence[str]) -> int:
    """Carry out a command line and tell the user how it went; gives the exit code."""
    with _Ending() as ending:
        with quick_imports():
            from shardp2p.cli.app import run_command

        ending.exit_code = run_command(arguments)
    return ending.exit_code


class _Ending:
    """Turns whatever a command raises into an exit code, once the user was told."""

    def __init__(self) -> None:
        self.exit_code = 0

    def __enter__(self) -> _Ending:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if interrupts.exit_code is not None:
            return True  # an end that was asked for, whatever it broke on its way out
        from shardp2p.cli.output import flush_stdout, report

        unwritten = flush_stdout()
        if error is None:
            error = unwritten
        if error is not None:
            self.exit_code = report(error)
        return True
