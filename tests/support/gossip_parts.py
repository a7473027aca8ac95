"""Records, heartbeats and peers for tests of gossip, all from seeds."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from shardp2p.identity.membership import Membership
from shardp2p.identity.token import Invite, Role
from shardp2p.swarm.gossip import Gossip
from shardp2p.swarm.heartbeats import HeartbeatChain
from shardp2p.swarm.publisher import Coverage, Publisher
from shardp2p.swarm.roll import Roll
from shardp2p.swarm.sealed_records import seal_record, short_id
from shardp2p.swarm.shared_values import Validator
from shardp2p.swarm.view_events import GossipEvent
from shardp2p.vocabulary import LayerRange, ModelId, PeerId, SwarmId
from shardp2p.wire.news import Heartbeat, RecordNews
from shardp2p.wire.records import CoverageRecord, HeldLayers, Link
from tests.support.gossip_swarm import OWNER, SWARM, UNIX_S, identity_of

HELD = HeldLayers(
    ModelId("smollm2"), "ab" * 32, 30, LayerRange(0, 15), "serving", "bfloat16", 8192, 10**8, 4096, 4000, 0.001, 0.0001
)


def record_of(number: int, sequence: int = 1, lifetime_s: float = 10.0) -> CoverageRecord:
    """A valid record of peer `number`."""
    peer = identity_of(number).peer_id
    return CoverageRecord(
        swarm=SWARM,
        peer_id=peer,
        sequence=sequence,
        issued_at_s=UNIX_S,
        lifetime_s=lifetime_s,
        state="serving",
        addresses=(f"/ip4/192.0.2.7/tcp/4001/p2p/{peer}",),
        reachability="public",
        memory_bytes=10**9,
        free_memory_bytes=10**8,
        held=(HELD,),
        links=(Link(PeerId("somebody"), 0.05, 0.001, 1e7),),
    )


def invite_of(key: int, role: Role = "member") -> Invite:
    """An invite to SWARM."""
    return Invite.issue(OWNER, "lab", UNIX_S, 86_400.0, role=role, key=identity_of(2**33 + key))


def membership_of(number: int, by: Invite | None = None) -> Membership:
    """The place of peer `number` in SWARM."""
    return Membership((by or invite_of(0)).claim(identity_of(number), UNIX_S))


class Voice:
    """A peer whose record and heartbeats a test makes one by one."""

    def __init__(
        self, number: int, sequence: int = 1, *, lifetime_s: float = 10.0, text: str = "", swarm: SwarmId = SWARM
    ) -> None:
        self.identity = identity_of(number)
        self.peer = self.identity.peer_id
        self.short = short_id(self.peer)
        self.chain = HeartbeatChain(Random(f"{number}/{sequence}/{text}").randbytes(32), 64)
        record = replace(record_of(number, sequence, lifetime_s), region=text, swarm=swarm)
        self.record = replace(record, chain_anchor=self.chain.anchor, chain_length=self.chain.length)
        self.sealed = seal_record(self.identity, self.record)

    def heartbeat(self, count: int = 0, age_s: float = 0.0) -> Heartbeat:
        return Heartbeat(self.short, self.record.sequence, count, self.chain.proof(count), age_s)

    def news(self, count: int = 0, age_s: float = 0.0, *, by: Invite | None = None) -> RecordNews:
        membership = b"" if by is None else by.claim(self.identity, UNIX_S)
        return RecordNews(self.sealed, self.heartbeat(count, age_s), membership)

    def departure(self) -> RecordNews:
        record = replace(
            self.record, sequence=self.record.sequence + 1, lifetime_s=0.0, state="draining", chain_anchor=b"",
            chain_length=0,
        )  # fmt: skip
        heartbeat = Heartbeat(self.short, record.sequence, 0, bytes(16))
        return RecordNews(seal_record(self.identity, record), heartbeat)


def gossip_of(
    number: int, validators: dict[int, Validator] | None = None, membership: Membership | None = None
) -> Gossip:
    """The machine of peer `number`, which has published its first record at time 0. With a membership of a private
    swarm, of an open one without.
    """
    rng = Random(number)
    proof = b"" if membership is None else membership.proof
    own = Publisher(identity_of(number), SWARM, rng, rng.randbytes, membership=proof)
    gossip = Gossip(own, SWARM, validators=validators, roll=Roll(membership, lambda: UNIX_S))
    gossip.own.update(Coverage(state="serving", memory_bytes=number))
    gossip.tick(0.0, UNIX_S)
    return gossip


def exchange_all(gossips: dict[PeerId, Gossip], now: float) -> list[GossipEvent]:
    """Carry news between all neighbours until nobody has anything to say."""
    events: list[GossipEvent] = []
    for _ in range(100):
        is_quiet = True
        for peer, gossip in gossips.items():
            for other in gossip.neighbours:
                news = gossip.take(other, now)
                if not news.is_empty:
                    is_quiet = False
                    events += gossips[other].receive(peer, news, now)
        if is_quiet:
            return events
    raise AssertionError("they never fall silent")
