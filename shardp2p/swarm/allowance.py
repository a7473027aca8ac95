"""How much a peer lets others probe it: so many Pings, and so much padding, and none while it serves. Pure.

A Pong is smaller than its Ping, so a prober pays for whatever it causes; these limits bound what it can make us read.
Rules: docs/protocols/swarm.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shardp2p.errors import RemoteProtocolError
from shardp2p.vocabulary import PeerId
from shardp2p.wire.codec_swarm import MAX_PADDING_BYTES

BURST_PINGS: Final = 8
BURST_BYTES: Final = BURST_PINGS * MAX_PADDING_BYTES
"""What one bandwidth measurement sends at once: below the 256 KiB that a new stream takes without an answer."""
PROBE_BYTES: Final = 2 * BURST_BYTES
"""A burst that opens the congestion window, and the one that counts."""

PINGS_AT_ONCE: Final = 64
PINGS_S: Final = 2.0
"""Twice what a prober sends that measures as often as `links` says, its restarts included."""
PROBER_BYTES_S: Final = PROBE_BYTES / 300.0
"""One bandwidth measurement per prober and five minutes."""
ALL_BYTES_AT_ONCE: Final = 16 * PROBE_BYTES
ALL_BYTES_S: Final = ALL_BYTES_AT_ONCE / 120.0
"""From all probers together: half a megabit a second, which a home connection does not feel."""
MAX_PROBERS: Final = 1024
"""Accounts that are kept; the one that was idle longest goes first."""


class _Bucket:
    """Holds at most `most`, and gains `gain_s` per second."""

    def __init__(self, most: float, gain_s: float, now: float) -> None:
        self._most = most
        self._gain_s = gain_s
        self._level = most
        self._at = now

    def level(self, now: float) -> float:
        """What may be taken now."""
        self._level = min(self._most, self._level + (now - self._at) * self._gain_s)
        self._at = now
        return self._level

    def take(self, amount: float) -> None:
        """Take what `level` says is there."""
        self._level -= amount


@dataclass(slots=True)
class _Account:
    pings: _Bucket
    padding: _Bucket
    room_bytes: int = 0  # granted and not used yet


class ProbeAllowance:
    """The accounts of all probers. `now` is monotonic seconds."""

    def __init__(self, now: float) -> None:
        self._all = _Bucket(ALL_BYTES_AT_ONCE, ALL_BYTES_S, now)
        self._accounts: dict[PeerId, _Account] = {}  # the longest idle first

    def answer(self, prober: PeerId, padding_bytes: int, now: float, *, is_busy: bool) -> int:
        """Count a Ping; the room for padding that its Pong announces.

        Raises: RemoteProtocolError for more Pings than are allowed, or more padding than there was room for.
        """
        account = self._accounts.pop(prober, None)
        if account is None:
            if len(self._accounts) >= MAX_PROBERS:
                del self._accounts[next(iter(self._accounts))]
            account = _Account(_Bucket(PINGS_AT_ONCE, PINGS_S, now), _Bucket(PROBE_BYTES, PROBER_BYTES_S, now))
        self._accounts[prober] = account
        if account.pings.level(now) < 1.0:
            raise RemoteProtocolError(f"more than {PINGS_AT_ONCE} pings at once and {PINGS_S:.0f} a second", prober)
        account.pings.take(1.0)
        if padding_bytes > account.room_bytes:
            raise RemoteProtocolError(
                f"a ping with {padding_bytes} bytes of padding where there was room for {account.room_bytes}", prober
            )
        account.room_bytes -= padding_bytes
        if is_busy:
            # What was announced before stays good: it may be under way.
            return 0
        more = min(PROBE_BYTES - account.room_bytes, account.padding.level(now), self._all.level(now))
        granted = max(0, int(more))
        account.padding.take(granted)
        self._all.take(granted)
        account.room_bytes += granted
        return account.room_bytes
