"""What a way through the Internet does to packets: it delays, loses, queues and drops them. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from shardp2p.lab.network.description import Description

_BITS_OF_MBIT: Final = 1e6


class Line:
    """One direction of a link: packets leave one after the other at its rate; those that would wait too long do not."""

    def __init__(self, mbit_s: float | None, queue_s: float) -> None:
        self._s_per_byte = 8 / (mbit_s * _BITS_OF_MBIT) if mbit_s else 0.0
        self._queue_s = queue_s
        self._free_at = 0.0

    def sent_at(self, now: float, size: int) -> float | None:
        """When the last bit of a packet of `size` bytes has left; None if there is no room for it."""
        if not self._s_per_byte:
            return now
        begins = max(now, self._free_at)
        if begins - now > self._queue_s:
            return None
        self._free_at = begins + size * self._s_per_byte
        return self._free_at


class Path:
    """The way from one site to another."""

    def __init__(self, delay_s: float, jitter_s: float, loss: float, mtu: int, *, is_reordering: bool) -> None:
        self.mtu = mtu
        self._delay_s = delay_s
        self._jitter_s = jitter_s
        self._loss = loss
        self._is_reordering = is_reordering
        self._last_at = 0.0

    def arrives_at(self, sent_at: float, chance: Callable[[], float]) -> float | None:
        """When a packet arrives that left at `sent_at`; None if it is lost. Jitter is added, evenly, to the delay."""
        if self._loss and chance() < self._loss:
            return None
        at = sent_at + self._delay_s
        if self._jitter_s:
            at += self._jitter_s * chance()
            if not self._is_reordering:
                at = self._last_at = max(at, self._last_at)
        return at


def path_between(description: Description, source: str, destination: str) -> Path:
    """The path between two sites. Loss, jitter and MTU are those of the worse end."""
    ends = description.link_of(source), description.link_of(destination)
    return Path(
        description.one_way_ms.get((source, destination), description.default_rtt_ms / 2) / 1e3,
        max(end.jitter_ms for end in ends) / 1e3,
        max(end.loss for end in ends),
        min(end.mtu for end in ends),
        is_reordering=description.is_reordering,
    )
