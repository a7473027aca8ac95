"""A peer of a swarm, in any role: it gossips, asks the directory, measures its links, and knows who is live.

`open_member` joins; `Member.live` is what gossip tells, `Member.ask_directory` works before any gossip arrived.
A peer that serves layers by itself is a member with a keeper (keeper/).
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
import trio

from shardp2p.config import ReachSettings
from shardp2p.errors import ConfigError, IntegrityError, PeerUnavailableError, RemoteProtocolError, ShardError
from shardp2p.host.addresses import parse_address
from shardp2p.host.beat import next_beat
from shardp2p.host.dht import Directory, open_directory
from shardp2p.host.failures import single_errors
from shardp2p.host.host import Host, open_host
from shardp2p.identity.joined import JoinedSwarm, JoinedSwarms
from shardp2p.identity.keys import Identity
from shardp2p.identity.membership import read_statement, subject_of
from shardp2p.identity.token import TurnedAwayError, turned_away
from shardp2p.node import Node
from shardp2p.scheduler.topology import Machine, Topology
from shardp2p.swarm.admission import USES, Admission
from shardp2p.swarm.blame import FORBIDDEN
from shardp2p.swarm.gossip_service import GossipService
from shardp2p.swarm.links import Links
from shardp2p.swarm.paths import Paths, open_paths
from shardp2p.swarm.probes import Prober
from shardp2p.swarm.publisher import Coverage, essence
from shardp2p.swarm.reachable import Reachable
from shardp2p.swarm.roll import kept_sequence, kept_value, open_kept
from shardp2p.swarm.sealed_records import open_record
from shardp2p.swarm.shared_values import REVOCATIONS, Subject
from shardp2p.swarm.silence import silence
from shardp2p.swarm.strikes import BREACH
from shardp2p.vocabulary import PeerId, SwarmId
from shardp2p.wire.messages import PeerAddress
from shardp2p.wire.records import CoverageRecord

ASK_S: Final = 5.0
"""How long one peer may take to say what it is; a live one answers in a round trip or two."""
ASKED_AT_ONCE: Final = 16
"""Peers that are asked at the same time."""
MET_S: Final = 10.0
"""How often the addresses of the peers that we see are kept: by those a peer finds back whose token names none that
is there still."""
NEIGHBOUR_S: Final = 0.1
"""How often a new stream is looked for."""
RECORD_S: Final = 2.0
"""How often at least we look whether the directory needs our newest record."""
REPUT_S: Final = 300.0
"""How old a record in the directory may be that differs in mere figures. Who finds one asks its peer first."""
REFUSAL_S: Final = 2.0
"""How long a client waits before it asks whether the swarm admits it at all."""
SIGHT_S: Final = 15.0
"""How long a client waits for the first neighbour to tell who is live."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Sighting:
    """A record that the directory led to; `is_live` says that the peer itself answered just now."""

    record: CoverageRecord
    is_live: bool


class Member:
    """A peer in a swarm. Made by `open_member`."""

    def __init__(
        self,
        host: Host,
        joined: JoinedSwarm,
        gossip: GossipService,
        directory: Directory,
        bootstrap: Sequence[PeerAddress],
        reachable: Reachable,
        links: Links,
        paths: Paths,
    ) -> None:
        self.node = Node(host)
        self.swarm: SwarmId = joined.swarm
        self.name = joined.name
        self._joined = joined
        self.may_hold = joined.may_hold
        """Whether a peer's role lets it hold layers."""
        self.gossip = gossip
        self.directory = directory
        self.links = links
        self.bootstrap = tuple(bootstrap)
        self.admission = Admission(host, joined.name, joined.membership)
        """Whether the swarm admits us."""
        self.reachable = reachable
        """How others reach us, and from which of their addresses we reach them."""
        self.paths = paths
        """Relays and holes, and what moves between them."""
        self._host = host
        self._prober = Prober(
            host,
            self.links,
            alive=self._alive,
            needed=self.node.ring_edges.warm,
            is_busy=self.node.is_busy,
            blame=self._blame,
        )
        paths.keep_ready(self.node.ring_edges.warm)
        self.node.sealed_record = gossip.own_sealed

    @property
    def peer_id(self) -> PeerId:
        """Our own id."""
        return self._host.peer_id

    def live(self) -> tuple[CoverageRecord, ...]:
        """The newest record of every peer that gossip shows alive, our own included, by peer id."""
        return self.gossip.live()

    def say(self, coverage: Coverage) -> None:
        """Tell the swarm this of ourselves from now on; links and addresses are added here."""
        self.gossip.publish(coverage)

    def topology(self, machines: Iterable[Machine], records: Sequence[CoverageRecord] | None = None) -> Topology:
        """The delays between peers, as the live ones measured them, and we did just now."""
        now = trio.current_time()
        rtts = [
            (record.peer_id, link.peer, link.rtt_s)
            for record in (self.live() if records is None else records)
            if record.peer_id != self.peer_id
            for link in record.links
        ]
        own = [(self.peer_id, link.peer, link.rtt_s) for link in self.links.snapshot(now)]
        return Topology.from_round_trips(machines, [*rtts, *own])

    async def wait_sight(self) -> None:
        """Wait until a neighbour has told us who is live.

        Raises: PeerUnavailableError, after a while, with each address of the peer list and why it failed; ConfigError
        when the swarm does not admit us.
        """
        with single_errors(), trio.move_on_after(SIGHT_S) as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch_refusal)
                seen = self.gossip.changes
                while not self._sees_others():
                    seen = await self.gossip.wait_change(seen)
                nursery.cancel_scope.cancel()
        if scope.cancelled_caught and not self._sees_others():
            raise PeerUnavailableError(await self.explain_silence())

    def _sees_others(self) -> bool:
        return any(record.peer_id != self.peer_id for record in self.live())

    async def _watch_refusal(self) -> None:
        """Raises: ConfigError once it is known that the swarm does not admit us, which waiting does not change."""
        await trio.sleep(REFUSAL_S)
        await self.explain_silence()

    async def wait_neighbour(self) -> None:
        """Wait until a gossip stream to some peer stands."""
        while not self.gossip.neighbours:
            with trio.move_on_after(NEIGHBOUR_S):
                await self.gossip.wait_change(self.gossip.changes)

    async def explain_silence(self) -> str:
        """Why nobody of the peer list answers, address by address.

        Raises: ConfigError when those that do answer do not admit us.
        """
        if not self.bootstrap:
            return "nobody to dial: the token names no peer and none was found; name one with --peer MULTIADDR"
        failures: list[tuple[PeerId, ShardError]] = []

        async def ask(peer: PeerAddress) -> None:
            try:
                await self.ask(peer.peer_id, peer.addresses)
            except ShardError as error:
                failures.append((peer.peer_id, error))

        async with trio.open_nursery() as nursery:
            for peer in self.bootstrap:
                nursery.start_soon(ask, peer)
        if failures and len(failures) < len(self.bootstrap):
            answer = len(self.bootstrap) - len(failures)
            return f"{answer} of the {len(self.bootstrap)} peers that were named answer, and know of nobody else yet"
        if not failures:
            return "the peers that were named answer, and know of nobody else yet"
        if refusal := next((error.refusal for _, error in failures if isinstance(error, TurnedAwayError)), None):
            raise ConfigError(turned_away(self.name, refusal))
        return silence(self.name, failures)

    async def ask(self, peer: PeerId, addresses: Sequence[str] = ()) -> CoverageRecord:
        """What `peer` itself says of itself now. Raises: what dialling raises; RemoteProtocolError, IntegrityError."""
        try:
            with trio.fail_after(ASK_S):
                sealed = await self.node.ask_record(peer, addresses)
        except trio.TooSlowError:
            raise PeerUnavailableError(f"peer {peer} does not answer within {ASK_S:.0f} s", peer) from None
        record = open_record(sealed, self.swarm)
        if record.peer_id != peer:
            raise IntegrityError(f"peer {peer} answered with the record of {record.peer_id}", peer)
        if record.held and not self.may_hold(peer):  # known since we are connected to it
            raise RemoteProtocolError(f"peer {peer} {FORBIDDEN}", peer)
        return record

    async def ask_directory(self, topic: str) -> tuple[Sighting, ...]:
        """Who the directory says takes part in `topic`, each asked whether it is there; by peer id."""
        found: dict[PeerId, Sighting] = {}
        limiter = trio.CapacityLimiter(ASKED_AT_ONCE)

        async def look(peer: PeerId, addresses: tuple[str, ...]) -> None:
            async with limiter:
                sighting = await self._look(peer, addresses)
                if sighting is not None:
                    found[peer] = sighting

        async with trio.open_nursery() as nursery:
            for provider in await self.directory.find(topic):
                if provider.peer_id != self.peer_id:
                    nursery.start_soon(look, provider.peer_id, provider.addresses)
        return tuple(found[peer] for peer in sorted(found))

    async def _look(self, peer: PeerId, addresses: tuple[str, ...]) -> Sighting | None:
        try:
            return Sighting(await self.ask(peer, addresses), True)
        except ShardError as error:
            log.debug("peer_not_there", peer=peer, reason=error.message)
            if not self.may_hold(peer):
                return None
        kept = await self.directory.get(peer)
        return (
            None
            if kept is None
            else Sighting(open_kept(kept, peer, self.swarm, self._joined.membership, time.time()), False)
        )

    def _alive(self) -> Mapping[PeerId, Sequence[str]]:
        return {record.peer_id: record.addresses for record in self.live() if record.addresses}

    def _blame(self, peer: PeerId, error: ShardError) -> None:
        if isinstance(error, (RemoteProtocolError, IntegrityError)):
            self.gossip.strikes.strike(peer, BREACH, trio.current_time())

    # What runs as long as we are a member.

    async def run(self, joined: JoinedSwarm, kept: JoinedSwarms | None, nursery: trio.Nursery, *, serves: bool) -> None:
        """Start everything in `nursery`."""
        await nursery.start(self.gossip.run)
        nursery.start_soon(self._prober.run)
        nursery.start_soon(self.paths.run)
        nursery.start_soon(self._bootstrap)
        if serves:
            nursery.start_soon(self.reachable.run)
            if not self.reachable.standing.is_on_loopback:
                nursery.start_soon(self.find_neighbours)
            nursery.start_soon(self._keep_record)
            if kept is not None:
                self.gossip.add_peers(bootstrap_of(kept.met(self.swarm), self.peer_id))
                nursery.start_soon(self._keep_met, kept)
        nursery.start_soon(self.admission.watch, kept, self.gossip)

    async def _bootstrap(self) -> None:
        await self.directory.bootstrap([(peer.peer_id, peer.addresses) for peer in self.bootstrap])

    async def find_neighbours(self) -> None:
        """Find peers of the swarm on this network by multicast, and let them find us."""
        from shardp2p.host.mdns import open_mdns

        async with open_mdns(self._host, self.swarm) as found:
            if found is not None:
                async for peer in found:
                    self.gossip.add_peers((PeerAddress(peer.peer_id, peer.addresses),))

    async def _keep_record(self) -> None:
        """Keep our newest record in the directory, under the swarm and under each model that we serve."""
        topics: set[str] = set()
        learned: dict[PeerId, tuple[str, ...]] = {}
        before: object = None
        seen = -1
        while True:
            own = self.gossip.own
            self.directory.answer_others(self.paths.answers_directory)
            if own is not None:
                wanted = {self.swarm, *(f"{self.swarm}/{held.model_digest}" for held in own.held)}
                for topic in topics - wanted:
                    self.directory.withdraw(topic)
                for topic in sorted(wanted - topics):
                    await self.directory.advertise(topic)
                topics = wanted
                told = essence(own), trio.current_time() // REPUT_S
                if told != before:
                    try:
                        await self.directory.put(kept_value(self.gossip.own_sealed(), self._joined.proof))
                    except ShardError as error:  # others keep none of a peer that is not admitted any more
                        log.warning("record_not_put", reason=error.message)
                    before = told
            found = {record.peer_id: record.addresses for record in self.live()}
            for peer, addresses in found.items() - learned.items():
                self.directory.learn(peer, addresses)
            learned = found
            with trio.move_on_at(next_beat(trio.current_time(), RECORD_S)):
                seen = await self.gossip.wait_change(seen)

    async def _keep_met(self, kept: JoinedSwarms) -> None:
        """Keep where the peers are that we see, neighbours first."""
        before: list[str] = []
        while True:
            await trio.sleep(MET_S)
            near = set(self.gossip.neighbours)
            others = sorted(self.live(), key=lambda record: record.peer_id not in near)
            met = [one.addresses[0] for one in others if one.peer_id != self.peer_id and one.addresses]
            if not met or met == before:
                continue
            try:
                await trio.to_thread.run_sync(kept.keep_met, self.swarm, met)
            except ConfigError as error:
                log.warning("met_not_kept", reason=error.message)
            before = met


@asynccontextmanager
async def open_member(
    identity: Identity,
    joined: JoinedSwarm,
    listen: Sequence[str] = (),
    *,
    peers: Sequence[str] = (),
    kept: JoinedSwarms | None = None,
    reach: ReachSettings | None = None,
    is_listener: bool = False,
) -> AsyncIterator[Member]:
    """Be a peer of the swarm `joined` until the context is left, which tells the others.

    `peers` are multiaddrs beside those that came with the token. A listener, as a client for one request, says nothing
    of itself; without `listen` addresses nobody can dial us.
    Raises: ConfigError for an address that is malformed, or a membership that has ended.
    """
    if joined.membership is not None and (refusal := joined.membership.own_refusal(time.time())):
        raise ConfigError(turned_away(joined.name, refusal))
    bootstrap = bootstrap_of([*peers, *joined.peers], identity.peer_id)
    sequence_of = partial(kept_sequence, joined.swarm, joined.membership, time.time)
    async with open_host(identity, listen, membership=joined.membership) as host:
        gossip = _make_gossip(host, identity, joined, bootstrap, is_listener=is_listener)
        serves = bool(listen) and not is_listener
        reach, links = reach or ReachSettings(), Links(host.peer_id)
        reachable = Reachable(host, gossip.live, declared=reach.announce)
        async with (
            open_paths(host, reachable, links, gossip, reach) as paths,
            open_directory(host, "shardp2p", sequence_of, is_server=serves) as directory,
        ):
            member = Member(host, joined, gossip, directory, bootstrap, reachable, links, paths)
            with single_errors():
                async with trio.open_nursery() as nursery:
                    await member.run(joined, kept, nursery, serves=serves)
                    try:
                        yield member
                    finally:
                        nursery.cancel_scope.cancel()


def _make_gossip(
    host: Host, identity: Identity, joined: JoinedSwarm, bootstrap: Sequence[PeerAddress], *, is_listener: bool
) -> GossipService:
    def subject(statement: bytes) -> Subject:
        return Subject(*subject_of(read_statement(statement, joined.swarm)))

    return GossipService(
        host,
        identity,
        joined.swarm,
        bootstrap=bootstrap,
        validators={REVOCATIONS: subject, USES: subject},
        is_listener=is_listener,
        admission=joined.membership,
        proof=joined.proof,
    )


def bootstrap_of(addresses: Sequence[str], own: PeerId) -> tuple[PeerAddress, ...]:
    """The peers at `addresses`, ourselves left out. Raises: ConfigError for an address that names no peer."""
    by_peer: dict[PeerId, list[str]] = {}
    for address in dict.fromkeys(addresses):
        peer = parse_address(address).peer
        if peer is None:
            raise ConfigError(f"{address} names no peer; it must end in /p2p/PEER-ID, as `shardp2p up` prints it")
        if peer != own:
            by_peer.setdefault(peer, []).append(address)
    return tuple(PeerAddress(peer, tuple(at)) for peer, at in by_peer.items())
