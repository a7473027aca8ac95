"""Peers that may relay for us. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardp2p.errors import ConfigError
from shardp2p.host.addresses import CircuitAddress, TcpAddress, parse_address
from shardp2p.host.circuit.networks import network_of_host
from shardp2p.vocabulary import PeerId


@dataclass(frozen=True, slots=True)
class Candidate:
    """A peer that says it relays. `addresses` are multiaddrs; `operator` is whatever two relays of one share, by
    default the network of the first address.
    """

    peer: PeerId
    addresses: tuple[str, ...]
    operator: str = ""
    round_trip_s: float = math.inf


def usable(candidate: Candidate) -> Candidate | None:
    """The candidate with its plain TCP addresses, written with its id; None for one that is itself behind a relay."""
    found: dict[str, TcpAddress] = {}
    for text in candidate.addresses:
        try:
            address = parse_address(text)
        except ConfigError:
            continue
        if isinstance(address, CircuitAddress) or address.peer not in (None, candidate.peer) or not address.port:
            continue
        whole = TcpAddress(address.protocol, address.host, address.port, candidate.peer)
        found[str(whole)] = whole
    if not found:
        return None
    operator = candidate.operator or network_of_host(next(iter(found.values())).host)
    return Candidate(candidate.peer, tuple(found), operator, candidate.round_trip_s)
