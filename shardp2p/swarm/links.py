"""The links of one peer: what its probes measured, whom to probe next, and when. Pure; `now` is monotonic seconds.

Of a swarm of any size a peer measures a few: those that it shares a ring with, the nearest that it knows, and some that
chance picks and changes every so often, from which the whole swarm can be mapped (docs/protocols/swarm.md).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from shardp2p.swarm.decaying import DecayingMedian
from shardp2p.vocabulary import PeerId
from shardp2p.wire.records import MAX_BANDWIDTH_BYTES_S, MAX_LINKS, MAX_RTT_S, Link

MAX_PROBED: Final = 16
"""Peers with a probe stream. At a round per minute that is some 200 bytes a second, and well below 1 % of a core."""
MAX_NEEDED: Final = 8
"""Ring neighbours among them: those before and after us in the rings that we serve most."""
MAX_NEAREST: Final = 4
MAX_MEASURED: Final = 128
"""Peers whose measurements are kept: those that chance has picked within the last hours."""
ROTATION_S: Final = 600.0
"""How long chance keeps to a choice: long enough for a good median, short enough to see the swarm in a day."""

RTT_WINDOW: Final = 31
RTT_HALF_LIFE_S: Final = 120.0
"""A route that changed is believed after two minutes; ten times as long, and a link is forgotten."""
BANDWIDTH_WINDOW: Final = 5
BANDWIDTH_HALF_LIFE_S: Final = 1800.0

FIRST_ROUNDS: Final = 3
FIRST_ROUND_S: Final = 10.0
ROUND_S: Final = 60.0
"""Between two rounds of round-trip probes to one peer: the first few come faster, for a joiner needs an answer soon."""
BANDWIDTH_ROUND_S: Final = 900.0
FIRST_BACK_OFF_S: Final = 10.0
MAX_BACK_OFF_S: Final = 600.0
LEAST_S: Final = 1e-6
"""A round trip is no shorter than a microsecond: less is the grain of a clock."""


ABOUT: Final = 1.2
ABOUT_S: Final = 2e-4
"""Figures that differ by less than this factor, and times by less than this, lead to the same rings."""
SPREAD_ABOUT: Final = 2.0

HIDDEN_SHARE: Final = 0.1
"""Of the time that a burst took, at least so much counts as transfer: less cannot be told from the round trip."""


def bandwidth_bytes_s(sent_bytes: int, elapsed_s: float, rtt_s: float) -> float:
    """What a way carries over which `sent_bytes`, answered after `elapsed_s` in all, went; an empty trip takes `rtt_s`.

    A peer that delays its answers hides at most what it adds to its own round trip time.
    """
    return sent_bytes / max(elapsed_s - rtt_s, elapsed_s * HIDDEN_SHARE, LEAST_S)


@dataclass(slots=True)
class _Measured:
    rtt: DecayingMedian = field(default_factory=lambda: DecayingMedian(RTT_WINDOW, RTT_HALF_LIFE_S))
    bandwidth: DecayingMedian = field(default_factory=lambda: DecayingMedian(BANDWIDTH_WINDOW, BANDWIDTH_HALF_LIFE_S))
    heard_at: float = 0.0
    rounds: int = 0
    failures: int = 0
    next_round_at: float = 0.0
    next_bandwidth_at: float = 0.0


class Links:
    """What `own_id` knows of its ways to others."""

    def __init__(self, own_id: PeerId) -> None:
        self._own_id = own_id
        self._measured: dict[PeerId, _Measured] = {}
        self._told: dict[PeerId, Link] = {}

    def observe_round(self, peer: PeerId, rtts_s: Sequence[float], now: float) -> None:
        """Count the round trips of one round of probes, and set when the next is due."""
        known = self._of(peer, now)
        for rtt_s in rtts_s:
            known.rtt.observe(min(max(rtt_s, LEAST_S), MAX_RTT_S), now)
        known.rounds += 1
        known.failures = 0
        wait_s = FIRST_ROUND_S if known.rounds <= FIRST_ROUNDS else ROUND_S
        known.next_round_at = now + wait_s * self._jitter(peer, known.rounds)

    def observe_bandwidth(self, peer: PeerId, bytes_s: float, now: float) -> None:
        """Count a measured bandwidth in the direction of `peer`."""
        known = self._of(peer, now)
        known.bandwidth.observe(min(max(bytes_s, 0.0), MAX_BANDWIDTH_BYTES_S), now)
        known.next_bandwidth_at = now + BANDWIDTH_ROUND_S * self._jitter(peer, known.rounds)

    def postpone_bandwidth(self, peer: PeerId, now: float) -> None:
        """It could not be measured now: one of the two is busy."""
        self._of(peer, now).next_bandwidth_at = now + ROUND_S

    def fail(self, peer: PeerId, now: float) -> None:
        """A probe got no answer: what was measured stays until it is too old, and the next try waits longer."""
        known = self._of(peer, now, is_heard=False)
        wait_s = min(FIRST_BACK_OFF_S * 2.0 ** min(known.failures, 16), MAX_BACK_OFF_S)
        known.failures += 1
        known.rounds = 0
        known.next_round_at = now + wait_s * self._jitter(peer, known.failures)

    def forget(self, peer: PeerId) -> None:
        """Drop what is known of a peer that has left."""
        self._measured.pop(peer, None)

    def next_round_at(self, peer: PeerId) -> float:
        """When the round trip to `peer` should be measured next: in the past for a peer that is new."""
        known = self._measured.get(peer)
        return 0.0 if known is None else known.next_round_at

    def is_bandwidth_due(self, peer: PeerId, now: float) -> bool:
        """Whether its bandwidth should be measured after a round that went well."""
        known = self._measured.get(peer)
        return known is not None and known.rounds > 0 and now >= known.next_bandwidth_at

    def targets(self, alive: Collection[PeerId], now: float, *, needed: Iterable[PeerId] = ()) -> tuple[PeerId, ...]:
        """Whom to probe, at most MAX_PROBED of `alive`: ring neighbours, then the nearest, then whom chance picks.

        The same for the same arguments within a rotation, so that streams stay; no two peers draw alike.
        """
        others = set(alive) - {self._own_id}
        chosen = [peer for peer in dict.fromkeys(needed) if peer in others][:MAX_NEEDED]
        near = sorted((link.rtt_s, link.peer) for link in self._known(now) if link.peer in others.difference(chosen))
        chosen += [peer for _, peer in near[:MAX_NEAREST]]
        drawn = sorted(others.difference(chosen), key=lambda peer: self._draw(peer, now))
        return tuple(chosen + drawn[: MAX_PROBED - len(chosen)])

    def link(self, peer: PeerId, now: float) -> Link | None:
        """What is known of the way to `peer`."""
        known = self._measured.get(peer)
        rtt = None if known is None else known.rtt.at(now)
        if known is None or rtt is None:
            return None
        bandwidth = known.bandwidth.at(now)
        return Link(peer, rtt.median, rtt.spread, 0.0 if bandwidth is None else bandwidth.median)

    def snapshot(self, now: float, *, needed: Iterable[PeerId] = ()) -> tuple[Link, ...]:
        """For the coverage record, at most MAX_LINKS: the `needed` that are known, then those that are known best."""
        known = {link.peer: link for link in self._known(now)}
        first = [known.pop(peer) for peer in dict.fromkeys(needed) if peer in known][:MAX_NEEDED]
        rest = sorted(known.values(), key=lambda link: (-self._measured[link.peer].rtt.count(now), link.peer))
        return tuple(first + rest[: min(MAX_PROBED, MAX_LINKS - len(first))])

    def told(self, now: float, *, needed: Iterable[PeerId] = ()) -> tuple[Link, ...]:
        """`snapshot` as others should hear it: in rough figures, by peer id, and as it was told while it is about so.

        Otherwise what differs would be noise, mostly, and everybody would have to hear of it.
        """
        before = self._told
        links = sorted(self.snapshot(now, needed=needed), key=lambda link: link.peer)
        told = [old if (old := before.get(one.peer)) and _is_about(one, old) else _in_rough(one) for one in links]
        self._told = {link.peer: link for link in told}
        return tuple(told)

    def _known(self, now: float) -> list[Link]:
        return [link for peer in self._measured if (link := self.link(peer, now)) is not None]

    def _of(self, peer: PeerId, now: float, *, is_heard: bool = True) -> _Measured:
        known = self._measured.get(peer)
        if known is None:
            if len(self._measured) >= MAX_MEASURED:
                del self._measured[min(self._measured, key=lambda other: self._measured[other].heard_at)]
            known = self._measured[peer] = _Measured()
        if is_heard:
            known.heard_at = now
        return known

    def _draw(self, peer: PeerId, now: float) -> bytes:
        return self._hash(peer, int(now // ROTATION_S))

    def _jitter(self, peer: PeerId, turn: int) -> float:
        """Between 0.75 and 1.25: peers that started together do not probe together for ever."""
        return 0.75 + self._hash(peer, turn)[0] / 510

    def _hash(self, peer: PeerId, turn: int) -> bytes:
        return hashlib.blake2b(f"{self._own_id} {peer} {turn}".encode(), digest_size=8).digest()


def rough(value: float, digits: int = 2) -> float:
    """`value` in so many digits: what is measured anew differs in the last ones, and nobody needs those."""
    return float(f"{value:.{digits}g}")


def _in_rough(link: Link) -> Link:
    return Link(link.peer, rough(link.rtt_s), rough(link.spread_s, 1), rough(link.bandwidth_bytes_s))


def _is_about(new: Link, old: Link) -> bool:
    return (
        is_near(new.rtt_s, old.rtt_s, ABOUT, ABOUT_S)
        and is_near(new.spread_s, old.spread_s, SPREAD_ABOUT, ABOUT_S)
        and is_near(new.bandwidth_bytes_s, old.bandwidth_bytes_s, ABOUT, 0.0)
    )


def is_near(one: float, two: float, factor: float, least: float) -> bool:
    """Whether two figures differ by no more than this factor, or by no more than `least`."""
    low, high = sorted((one, two))
    return high - low <= least or high <= factor * low
