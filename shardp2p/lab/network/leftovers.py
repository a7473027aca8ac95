"""Processes of networks whose owner is gone. A namespace lives as long as a process in it: they are all there can be.

Each process of a network has a mark in its environment: the owner's process id, when that was started, and a number.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from itertools import count
from pathlib import Path

from shardp2p.lab.network.commands import MARK_VARIABLE

_networks = count(1)


def new_mark() -> str:
    """A mark for the processes of one more network of this process."""
    return f"{os.getpid()}-{_started_at(os.getpid())}-{next(_networks)}"


def end_orphans() -> int:
    """Kill the processes of networks whose owner is gone; gives their number."""
    return _kill(_is_orphaned)


def end_marked(mark: str) -> int:
    """Kill the processes of one network; gives their number."""
    return _kill(mark.__eq__)


def _is_orphaned(mark: str) -> bool:
    owner, _, rest = mark.partition("-")
    started_at, _, _ = rest.partition("-")
    return owner.isdecimal() and _started_at(int(owner)) != started_at


def _kill(is_meant: Callable[[str], bool]) -> int:
    killed = 0
    prefix = f"{MARK_VARIABLE}=".encode()
    for directory in Path("/proc").iterdir():
        if not directory.name.isdecimal() or int(directory.name) == os.getpid():
            continue
        try:
            descriptor = os.pidfd_open(int(directory.name))  # first, so that no other process takes the blame
        except OSError:
            continue
        try:
            # `env` has the mark among its arguments, and what it starts in its environment.
            words = b"".join((directory / name).read_bytes() for name in ("environ", "cmdline")).split(b"\0")
            if any(is_meant(word.removeprefix(prefix).decode()) for word in words if word.startswith(prefix)):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                killed += 1
        except (OSError, UnicodeDecodeError):
            continue  # it has ended, or is another user's
        finally:
            os.close(descriptor)
    return killed


def _started_at(pid: int) -> str:
    """When a process was started, in the kernel's ticks; empty where there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]
