"""The three standard streams, made fit for use: open, able to write any text, and failing in our own words.

Whoever writes, be it us, the help or the interpreter's last flush, thus needs to know nothing of full disks.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any, TextIO

from shardp2p.errors import ConfigError


class StandardOutput(io.FileIO):
    """Raises ConfigError for what cannot be written, BrokenPipeError excepted."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise ConfigError(f"cannot write to standard output: {error.strerror}") from error


class StandardError(io.FileIO):
    """Drops what cannot be written: there is nowhere left to say so."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def prepare() -> None:
    """Open what we were started without on /dev/null, and let stdout and stderr behave as described above."""
    _open_missing()
    sys.stdin = sys.stdin or open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - stays open
    sys.stdout = _wrapped(StandardOutput(1, "wb", closefd=False), sys.stdout)
    sys.stderr = _wrapped(StandardError(2, "wb", closefd=False), sys.stderr)


def _open_missing() -> None:
    """Nothing that is opened later may get the number of a standard stream."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
            os.set_inheritable(descriptor, True)


def _wrapped(raw: io.FileIO, old: TextIO | None) -> TextIO:
    """A text stream like `old`, which Python leaves None where the descriptor was closed."""
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=old.encoding if old else "utf-8",
        errors="backslashreplace",
        line_buffering=bool(old and old.line_buffering),
    )
