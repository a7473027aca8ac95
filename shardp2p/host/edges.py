"""What is known of each live connection: its path, how it does, and what passes."""

from __future__ import annotations

from dataclasses import dataclass

import trio

from shardp2p.host.host import Host
from shardp2p.host.path import Path
from shardp2p.vocabulary import PeerId


@dataclass(frozen=True, slots=True)
class Edge:
    """One connection. Counts are bytes of the multiplexer since it began; times are seconds.

    `round_trip_s` is 0 before the first answer to a ping. `silent_s` is how long nothing was heard: an idle peer is
    pinged after 2 s and given up after 4 s; `missed_pings` are those that only silence followed until the next.
    `is_carried`: it has moved, and runs inside of another connection.
    """

    peer: PeerId
    path: Path
    is_carried: bool
    round_trip_s: float
    silent_s: float
    is_suspect: bool
    missed_pings: int
    streams: int
    sent_bytes: int
    received_bytes: int
    queued_bytes: int


def edges_of(host: Host) -> tuple[Edge, ...]:
    """Every live connection of `host`: of each peer, the one that new streams take first."""
    now = trio.current_time()
    return tuple(
        Edge(
            peer=peer,
            path=muxer.path,
            is_carried=muxer.carrier is not None,
            round_trip_s=muxer.round_trip_s,
            silent_s=now - muxer.link.vigil.heard_at,
            is_suspect=muxer.link.is_troubled,
            missed_pings=muxer.link.vigil.missed_pings,
            streams=muxer.streams,
            sent_bytes=muxer.link.sent_bytes,
            received_bytes=muxer.link.received_bytes,
            queued_bytes=muxer.link.queued_bytes,
        )
        for peer in host.connected_peers()
        for muxer in host.connections(peer)
    )
