"""Whether others can dial us, from what they report. Pure.

An address counts as open once peers of two places reached us there, or one where nobody else was asked; it is given up
only when more of them failed twice in a row than reach us. So neither a lost packet nor a single liar turns a verdict.
The same in words: reachability_account.py.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from shardp2p.host.ip_scopes import IpAddress, place_of, scope_of
from shardp2p.swarm.dial_evidence import MAX_OBSERVERS, Evidence
from shardp2p.wire.dialling_back import DialOutcome
from shardp2p.wire.records import Reachability

Endpoint = tuple[str, int]
"""An IP address and a port."""
Mapping = Literal["none", "independent", "dependent", "unknown"]
"""What a router makes of one port that dials several peers: nothing, always the same, another for each, not known."""

MAX_ENDPOINTS: Final = 8
MAX_SIGHTINGS: Final = 16
STALE_S: Final = 900.0
"""What was reported longer ago says nothing of now."""
SOON_S: Final = (3.0, 10.0, 30.0)
"""Between the first rounds after a start, a change, or a report that disagrees."""
SETTLED_S: Final = 240.0
"""Between rounds otherwise."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """`observer_host` sees what we dialled it with, from `local_port`, come from `host` and `port`."""

    observer_host: str
    local_port: int
    host: str
    port: int


class ReachabilityMachine:
    """One peer's. `now` is any clock that does not run backwards."""

    def __init__(self) -> None:
        self.is_on_loopback = False
        """Whether we listen on this machine alone: nothing is asked then."""
        self.is_alone = False
        """Whether this machine has no network but loopback: what reaches us then is on it."""
        self.own_hosts: frozenset[str] = frozenset()
        """The addresses of our own interfaces: who is seen under one of them has no router before it."""
        self.has_relay = False
        """Whether a relay keeps a place for us."""
        self.has_punched = False
        """Whether a hole in our router served a connection: more than any two observers could tell."""
        self._evidence: dict[Endpoint, Evidence] = {}  # the longest unheard first
        self._sightings: dict[tuple[str, int], tuple[Sighting, float]] = {}  # by observer and local port
        self._seen_as: dict[tuple[str, bool], tuple[str, float]] = {}  # by observer and whether it is IPv6
        self._rounds = 0
        self._asked_at = 0.0

    # What happens.

    def reset(self) -> None:
        """Our addresses changed: what was learned is about another place."""
        self.has_punched = False
        self._evidence.clear()
        self._sightings.clear()
        self._seen_as.clear()
        self._rounds = 0

    def asked(self, now: float) -> None:
        """A round of questions ended."""
        self._rounds += 1
        self._asked_at = now

    def hurry(self) -> None:
        """Something changed for the better, as a port of the router that is ours now: ask again at once."""
        self._rounds = 0

    def report(self, observer_host: str, host: str, outcomes: Iterable[tuple[int, DialOutcome]], now: float) -> None:
        """A peer at `observer_host` sees us as `host` and tried these ports of it."""
        self._note_seen(observer_host, host, now)
        for port, outcome in outcomes:
            evidence = self._evidence.pop((host, port), None) or Evidence()
            evidence.add(place_of(observer_host), outcome, now)
            self._evidence[host, port] = evidence
            while len(self._evidence) > MAX_ENDPOINTS:
                del self._evidence[next(iter(self._evidence))]
            if evidence.is_disputed:
                self._rounds = min(self._rounds, len(SOON_S) - 1)

    def sight(self, sighting: Sighting, now: float) -> None:
        """A peer sees a connection of ours, of which we know the port that it left."""
        self._note_seen(sighting.observer_host, sighting.host, now)
        key = sighting.observer_host, sighting.local_port
        self._sightings.pop(key, None)
        self._sightings[key] = sighting, now
        while len(self._sightings) > MAX_SIGHTINGS:
            del self._sightings[next(iter(self._sightings))]

    def forget(self, now: float) -> None:
        """Drop what is too old. What was proved last stays until somebody says otherwise."""
        for evidence in self._evidence.values():
            evidence.forget(now - STALE_S)
        self._sightings = {key: kept for key, kept in self._sightings.items() if kept[1] >= now - STALE_S}
        newest = max((at for _, at in self._seen_as.values()), default=now)
        self._seen_as = {key: seen for key, seen in self._seen_as.items() if seen[1] >= newest - STALE_S}
        self._drop_former()

    def _note_seen(self, observer_host: str, host: str, now: float) -> None:
        """An observer sees us under one address of each version of IP: another one means that it changed."""
        key = observer_host, ":" in host
        before = self._seen_as.pop(key, None)
        self._seen_as[key] = host, now
        while len(self._seen_as) > MAX_OBSERVERS:
            del self._seen_as[next(iter(self._seen_as))]
        if before is not None and before[0] != host:
            self._drop_former()

    def _drop_former(self) -> None:
        """Forget the addresses under which nobody sees us any more."""
        hosts = self._hosts
        for endpoint in [endpoint for endpoint in self._evidence if endpoint[0] not in hosts]:
            del self._evidence[endpoint]

    @property
    def _hosts(self) -> frozenset[str]:
        return frozenset(host for host, _ in self._seen_as.values())

    # What follows.

    @property
    def next_round_at(self) -> float:
        """When to ask again: at once, soon, or as one does who is settled."""
        if self.is_on_loopback:
            return float("inf")
        if not self._rounds:
            return 0.0
        return self._asked_at + (SOON_S[self._rounds - 1] if self._rounds <= len(SOON_S) else SETTLED_S)

    @property
    def seen_as(self) -> frozenset[IpAddress]:
        """The public addresses under which others see us."""
        return frozenset(ip for ip in map(ipaddress.ip_address, self._hosts) if scope_of(ip) == "public")

    @property
    def opened(self) -> tuple[Endpoint, ...]:
        """Where others reach us, private addresses included."""
        return tuple(endpoint for endpoint, evidence in self._evidence.items() if evidence.is_open)

    @property
    def closed(self) -> tuple[Endpoint, ...]:
        """Where others tried in vain."""
        return tuple(endpoint for endpoint, evidence in self._evidence.items() if evidence.is_open is False)

    @property
    def outcomes(self) -> tuple[tuple[Endpoint, tuple[DialOutcome, ...]], ...]:
        """What each observer last said of each address."""
        return tuple(
            (endpoint, tuple(report.outcome for report in evidence.reports.values()))
            for endpoint, evidence in self._evidence.items()
        )

    @property
    def mapping(self) -> Mapping:
        """What the router before us makes of a port that dials several peers."""
        if self.has_punched:
            return "independent"
        version = min((ip.version for ip in self.seen_as), default=4)  # of IPv4, which all peers have, if we have it
        sightings = [sighting for sighting, _ in self._sightings.values() if (":" in sighting.host) == (version == 6)]
        if any(str(ip) in self.own_hosts for ip in self.seen_as if ip.version == version):
            return "none"
        by_port: dict[int, list[Sighting]] = {}
        for sighting in sightings:
            by_port.setdefault(sighting.local_port, []).append(sighting)
        compared = [same for same in by_port.values() if len({one.observer_host for one in same}) > 1]
        if any(len({(one.host, one.port) for one in same}) > 1 for same in compared):
            return "dependent"
        is_kept = len({one.observer_host for one in sightings}) > 1 and all(
            one.port == one.local_port for one in sightings
        )
        return "independent" if compared or is_kept else "unknown"

    @property
    def verdict(self) -> Reachability:
        """How others reach us."""
        if self.is_reached:
            return "unknown" if self.is_alone else "public"
        if not self.closed and not self._sightings:
            return "relayed" if self.has_relay else "unknown"
        if not self.has_relay:
            return "unreachable" if self.closed else "unknown"
        return "punchable" if self.mapping in ("none", "independent") else "relayed"

    @property
    def is_reached(self) -> bool:
        """Whether others reach us without a relay."""
        return any(self._counts(host) for host, _ in self.opened)

    @property
    def is_cut_off(self) -> bool:
        """Whether others tried to reach us, and nobody could."""
        return any(evidence.reports for evidence in self._evidence.values()) and not self.is_reached

    def _counts(self, host: str) -> bool:
        """Whether being reached there is being reached by the swarm: at a private address only where nobody is
        outside.
        """
        return not self.seen_as or ipaddress.ip_address(host) in self.seen_as
