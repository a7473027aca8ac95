"""A swarm as one peer of this machine sees it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from shardp2p.scheduler.coverage import Seen
from shardp2p.scheduler.topology import Machine, Topology
from shardp2p.vocabulary import PeerId, SwarmId
from shardp2p.wire.records import CoverageRecord, Link

Source = Literal["gossip", "directory"]
"""Who told: gossip, or the directory alone."""


@dataclass(frozen=True, slots=True)
class Sight:
    """A swarm as the peer `peer_id` of this machine sees it, with its own `links` to others.

    `edges` are its live connections, as swarm/paths.py writes them: of each peer, the one in use first.
    """

    peer_id: PeerId
    swarm: SwarmId
    name: str
    source: Source
    seen: tuple[Seen, ...]
    links: tuple[Link, ...] = ()
    edges: tuple[dict[str, Any], ...] = ()

    def edges_to(self, peer: PeerId) -> tuple[dict[str, Any], ...]:
        """The connections to one peer."""
        return tuple(edge for edge in self.edges if edge["peer"] == peer)

    @property
    def live(self) -> tuple[CoverageRecord, ...]:
        """The records of peers that were heard just now."""
        return tuple(one.record for one in self.seen if one.is_live)

    @property
    def rtts_s(self) -> dict[PeerId, float]:
        """The round trips that were measured from here."""
        return {link.peer: link.rtt_s for link in self.links}

    def topology(self, machines: Iterable[Machine]) -> Topology:
        """The delays between peers, as they and we measured them."""
        others = [
            (record.peer_id, link.peer, link.rtt_s)
            for record in self.live
            if record.peer_id != self.peer_id
            for link in record.links
        ]
        return Topology.from_round_trips(
            machines, [*others, *((self.peer_id, peer, rtt_s) for peer, rtt_s in self.rtts_s.items())]
        )

    def head(self) -> dict[str, Any]:
        """Who looks at what, as every command's JSON has it."""
        return {"swarm": self.swarm, "swarm_name": self.name, "seen_by": self.peer_id, "source": self.source}
