"""What our router makes of the ports that we listen on, as the peers see it that we dialled from there. Pure.

The words are those of RFC 4787: a router whose mapping is independent of the endpoint gives a port the same address
outside whomever it talks to, so that what one peer saw another can dial. Both numbers and verdict are only as good as
the peers' words, so several are kept, and none for long.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final, Literal

from shardp2p.host.addresses import Endpoint
from shardp2p.host.ip_scopes import scope_of

MappingKind = Literal["unknown", "independent", "dependent"]
"""Whether the mapping depends on whom we dial. Only two peers at different addresses can tell."""

OBSERVED_S: Final = 120.0
"""How long an observation counts: asked again every 30 s it stays, and a router that forgets is noticed soon."""
MAX_OBSERVERS: Final = 16
"""Of one port; a peer dials two relays and a few others from there. A further one takes the place of the oldest."""
MAX_PORTS: Final = 8
"""On which a host may listen and be punched; it has one or two."""


_Port = tuple[int, bool]
"""A port that we listen on, and whether over IPv6."""


@dataclass(frozen=True, slots=True)
class _Observation:
    seen: Endpoint
    at: float


class Mapping:
    """Observations of each port, by the address of who made them."""

    def __init__(self) -> None:
        self._ports: dict[_Port, dict[Endpoint, _Observation]] = {}

    def observe(self, local_port: int, observer: Endpoint, seen: Endpoint, now: float) -> bool:
        """`observer`, dialled from `local_port`, sees us at `seen`; whether that could be true."""
        if not _is_plausible(observer, seen):
            return False
        key = (local_port, ":" in observer[0])
        if key not in self._ports and len(self._ports) >= MAX_PORTS:
            return False
        observations = self._ports.setdefault(key, {})
        observations.pop(observer, None)
        if len(observations) >= MAX_OBSERVERS:
            del observations[next(iter(observations))]
        observations[observer] = _Observation(seen, now)
        return True

    def forget(self, observer: Endpoint) -> None:
        """The connection to `observer` ended, and with it what it knew."""
        for observations in self._ports.values():
            observations.pop(observer, None)

    def current(self, now: float) -> tuple[Endpoint, ...]:
        """The addresses at which we are seen: what most observers say first, of these the newest first."""
        votes: dict[Endpoint, tuple[int, float]] = {}
        for key in self._ports:
            for observation in self._fresh(key, now).values():
                count, newest = votes.get(observation.seen, (0, observation.at))
                votes[observation.seen] = (count + 1, max(newest, observation.at))
        return tuple(sorted(votes, key=lambda seen: votes[seen], reverse=True))

    def kind(self, now: float) -> MappingKind:
        """The mapping as far as it is known; of several ports the best."""
        kinds = {self._kind_of(key, now) for key in self._ports}
        ordered: tuple[MappingKind, ...] = ("independent", "dependent")
        return next((kind for kind in ordered if kind in kinds), "unknown")

    def advertised(self, now: float) -> tuple[Endpoint, ...]:
        """What to tell who is to dial us: where we are seen, and the ports we listen on at these addresses, since many
        routers preserve ports and a mapping may be about to change.
        """
        seen = self.current(now)
        hosts = dict.fromkeys(host for host, _ in seen)
        guesses = [(host, port) for host in hosts for port, is_ipv6 in self._ports if is_ipv6 == (":" in host)]
        return tuple(dict.fromkeys((*seen, *guesses)))

    def _kind_of(self, key: _Port, now: float) -> MappingKind:
        fresh = self._fresh(key, now)
        if len({observation.seen for observation in fresh.values()}) > 1:
            return "dependent"
        return "independent" if len({host for host, _ in fresh}) > 1 else "unknown"

    def _fresh(self, key: _Port, now: float) -> dict[Endpoint, _Observation]:
        kept = {by: what for by, what in self._ports[key].items() if now - what.at <= OBSERVED_S}
        self._ports[key] = kept
        return kept


def _is_plausible(observer: Endpoint, seen: Endpoint) -> bool:
    """Not another family, nor an address of this very machine as seen from another."""
    ours, theirs = ipaddress.ip_address(seen[0]), ipaddress.ip_address(observer[0])
    is_somewhere = scope_of(ours) != "none" and seen[1] > 0
    return is_somewhere and ours.version == theirs.version and ours.is_loopback == theirs.is_loopback
