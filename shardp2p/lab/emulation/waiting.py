"""Waiting in a thread, to less than a millisecond: an event loop's timeouts are whole ones."""

from __future__ import annotations

import time


def wait_s(seconds: float) -> None:
    """Return after so long; at once where that is not above 0. For threads whose only work it is."""
    if seconds > 0:
        time.sleep(seconds)  # noqa: TID251
