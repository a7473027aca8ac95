"""A lock between processes, held on a file and released by the kernel even if its holder is killed."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def held_lock(path: Path) -> Iterator[None]:
    """Hold the lock `path`, waiting while another process holds it. The file stays; it is empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def tried_lock(path: Path) -> Iterator[bool]:
    """Hold the lock `path` if nobody else does; gives whether it is held."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
