"""The ways of one member to all others: relays, holes and moves, joined to what the swarm and the dial-backs tell.

A peer that others can dial relays for those that cannot be dialled; these keep places at two such relays. Live
connections leave relays as soon as a straight path is found, and come back to them when it dies.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import trio

from shardp2p.config import ReachSettings
from shardp2p.host.addresses import Endpoint
from shardp2p.host.circuit.candidates import Candidate
from shardp2p.host.circuit.service import HostCircuits, open_circuits
from shardp2p.host.edges import edges_of
from shardp2p.host.host import Host
from shardp2p.host.improving import Improver
from shardp2p.host.punch.keeper import Described, PunchKeeper
from shardp2p.host.punch.mapping import Mapping, MappingKind
from shardp2p.host.punch.puncher import Puncher
from shardp2p.swarm.gossip_service import GossipService
from shardp2p.swarm.links import Links
from shardp2p.swarm.reachability import Sighting
from shardp2p.swarm.reachable import Reachable
from shardp2p.vocabulary import PeerId
from shardp2p.wire.records import CoverageRecord, Reachability

LOOK_S: Final = 1.0
"""How soon what the dial-backs say is acted upon; what the swarm says, at once."""

_MAPPINGS: Final[dict[Reachability, MappingKind]] = {"relayed": "dependent", "punchable": "independent"}
"""What a verdict says of the peer's router."""


class Paths:
    """Made by `open_paths`. `run` is its lifetime."""

    def __init__(
        self,
        host: Host,
        circuits: HostCircuits,
        reachable: Reachable,
        links: Links,
        gossip: GossipService,
        settings: ReachSettings,
    ) -> None:
        self._host = host
        self._circuits = circuits
        self._reachable = reachable
        self._links = links
        self._gossip = gossip
        self._settings = settings
        self._records: dict[PeerId, CoverageRecord] = {}
        self._public: dict[PeerId, tuple[str, ...]] = {}
        """The peers that anybody can dial, and where."""
        self._mapping = Mapping()
        self._improver = Improver(host, self._addresses_of)
        self._listens = bool(host.listen_endpoints())
        if self._listens:
            puncher = Puncher(host, self._mapping)
            self._punching = PunchKeeper(host, puncher, self._mapping, describe=self._describe, on_seen=self._sight)

    def keep_ready(self, needed: Callable[[], Sequence[PeerId]]) -> None:
        """Have a connection over a relay stand ready, from now on, with each of `needed`: those next to us in rings."""
        self._improver.needed = needed

    @property
    def answers_directory(self) -> bool:
        """Whether others may keep records with us: they could not ask for them if only relays lead here."""
        return not self._reachable.is_cut_off

    def edges(self) -> list[dict[str, Any]]:
        """Every live connection as JSON has it; of each peer, the one that new streams take first."""
        return [
            {
                "peer": edge.peer,
                "path": edge.path.kind,
                "relay": edge.path.relay,
                "is_carried": edge.is_carried,
                "rtt_ms": round(1e3 * edge.round_trip_s, 3),
                "silent_s": round(edge.silent_s, 1),
                "is_suspect": edge.is_suspect,
                "missed_pings": edge.missed_pings,
                "streams": edge.streams,
                "sent_bytes": edge.sent_bytes,
                "received_bytes": edge.received_bytes,
                "queued_bytes": edge.queued_bytes,
            }
            for edge in edges_of(self._host)
        ]

    def status(self) -> dict[str, Any]:
        """What `shardp2p status --json` says of it."""
        relaying = self._circuits.relaying
        return {
            "edges": self.edges(),
            "places": [candidate.peer for candidate in self._circuits.held()],
            "troubles": {str(peer): reason for peer, reason in self._circuits.troubles().items()},
            "relaying": None
            if relaying is None
            else {
                "reservations": relaying.reservations,
                "circuits": relaying.circuits,
                "passed_bytes": relaying.passed_bytes,
            },
        }

    async def run(self) -> None:
        """Keep the best paths until cancelled. Who does not listen needs no relay to be reached, and is none."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._improver.run)
            if self._listens:
                nursery.start_soon(self._punching.run)
                nursery.start_soon(self._hand_on_places)
            seen = -1
            while True:
                self._records = {one.peer_id: one for one in self._gossip.live() if one.peer_id != self._host.peer_id}
                if self._listens:
                    self._follow()
                with trio.move_on_after(LOOK_S):
                    seen = await self._gossip.wait_change(seen)

    def _follow(self) -> None:
        """Bring relays, ours and others', up to date with what is known."""
        mode = self._settings.relay
        relays = mode == "on" or (mode == "auto" and self._reachable.verdict == "public")
        if relays != (self._circuits.relaying is not None):
            self._circuits.relay(self._settings.limits if relays else None)
        self._circuits.want(self._reachable.wants_relay)
        if self._host.has_indirect:
            paths = (path for peer in self._host.connected_peers() for path in self._host.paths(peer))
            if any(path.kind == "punched" for path in paths):
                self._reachable.note_punched()
        public = {peer: one.addresses for peer, one in self._records.items() if one.reachability == "public"}
        if public != self._public:
            self._public = public
            rtts_s = {link.peer: link.rtt_s for link in self._links.snapshot(trio.current_time())}
            self._circuits.set_candidates(
                Candidate(peer, addresses, round_trip_s=rtts_s.get(peer, float("inf")))
                for peer, addresses in public.items()
            )

    async def _hand_on_places(self) -> None:
        """Announce the relays at which we have places."""
        while True:
            self._reachable.set_circuits(self._circuits.addresses())
            await self._circuits.wait_changed()

    def _sight(self, observer: Endpoint, local_port: int, seen: Endpoint) -> None:
        self._reachable.sight(Sighting(observer[0], local_port, *seen))

    def _addresses_of(self, peer: PeerId) -> Sequence[str]:
        record = self._records.get(peer)
        return () if record is None else record.addresses

    def _describe(self, peer: PeerId) -> Described:
        record = self._records.get(peer)
        if record is None:
            return (), "unknown"
        return record.addresses, _MAPPINGS.get(record.reachability, "unknown")


@asynccontextmanager
async def open_paths(
    host: Host,
    reachable: Reachable,
    links: Links,
    gossip: GossipService,
    settings: ReachSettings,
) -> AsyncIterator[Paths]:
    """Let `host` dial over relays from now on; `Paths.run` keeps all paths as good as they can be."""
    async with open_circuits(host) as circuits:
        yield Paths(host, circuits, reachable, links, gossip, settings)
