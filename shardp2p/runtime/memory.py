"""How much the memory of this process grows at its peak. Knows no torch."""

from __future__ import annotations

import ctypes
import resource
import sys
from contextlib import suppress
from pathlib import Path

import psutil

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


class PeakGrowth:
    """The growth of the resident memory from the making of this object to its highest point since."""

    def __init__(self) -> None:
        with suppress(OSError):
            _CLEAR_REFS.write_text("5")  # forget the peak so far: proc_pid_clear_refs(5)
        self._before = psutil.Process().memory_info().rss

    def growth_bytes(self) -> int:
        """The growth at the peak so far. Without Linux's /proc, an earlier and higher peak counts as ours."""
        return max(0, _peak_bytes() - self._before)


def give_back_freed() -> None:
    """Lets the C library return what was freed to the system, instead of keeping it in gaps, where it can do that."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _peak_bytes() -> int:
    try:
        lines = _STATUS.read_text(encoding="ascii").splitlines()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
