"""Hides a secret that was given on the command line from those who list this machine's processes."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc/self")
_ARG_START: Final = 45
_ARG_END: Final = 46
"""Fields 48 and 49 of proc(5) stat, counted from the one after the program's name, which may have spaces."""


def hide_argument(secret: str) -> bool:
    """Overwrite an argument of this process, as `ps` shows it, with asterisks; whether that was possible.

    Linux alone lets a process do so; and until it is done the argument can be seen. A file or standard input is better.
    """
    hidden = secret.encode("utf-8", "surrogateescape")
    try:
        shown = (_PROC / "cmdline").read_bytes()
        fields = (_PROC / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
    except (OSError, ValueError, IndexError):
        return False
    place = shown.find(hidden)
    # Only where the kernel's account of the memory and the memory itself agree may it be written.
    if not hidden or place < 0 or end - start != len(shown) or ctypes.string_at(start, len(shown)) != shown:
        return False
    ctypes.memset(start + place, ord("*"), len(hidden))
    return True
