"""Our own record and heartbeats: when a change becomes a record, and when it is time to say that we live. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Final

from shardp2p.identity.keys import Identity
from shardp2p.swarm.chance import Chance
from shardp2p.swarm.heartbeats import HeartbeatChain
from shardp2p.swarm.links import is_near
from shardp2p.swarm.pace import lifetime_s, minor_change_s, period_s, remeasured_s
from shardp2p.swarm.resizing import Resizing
from shardp2p.swarm.sealed_records import seal_record, short_id
from shardp2p.swarm.strikes import TokenBucket
from shardp2p.swarm.twins import Twins, TwinSeen
from shardp2p.vocabulary import SwarmId
from shardp2p.wire.news import Heartbeat, RecordNews
from shardp2p.wire.records import CHAIN_BYTES, MAX_SEQUENCE, CoverageRecord, HeldLayers, Link, NodeState, Reachability

RECORDS_AT_ONCE: Final = 6
RECORDS_S: Final = 1 / 3
"""Below what a view takes in of one peer, so that none of ours is lost."""
MUCH: Final = 2.0
MUCH_S: Final = 1e-3
"""A round trip that changed by this factor, and by more than a millisecond, is told sooner than others."""
JITTER: Final = 0.1
"""Peers that started together drift apart."""
SEED_BYTES: Final = 32
OVERTAKING: Final = 3_600_000
"""How far we go beyond a record of ours that another run made: an hour, so beyond what an earlier run has said, even
where our clock was set back."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """What a peer has to say of itself: a coverage record without what gossip adds to it."""

    state: NodeState = "joining"
    addresses: tuple[str, ...] = ()
    reachability: Reachability = "unknown"
    region: str = ""
    version: str = ""
    memory_bytes: int = 0
    free_memory_bytes: int = 0
    held: tuple[HeldLayers, ...] = ()
    links: tuple[Link, ...] = ()

    def moves_requests(self, before: Coverage) -> bool:
        """Whether somebody may send a request elsewhere because of it, so that it should be known at once."""
        return essence(self) != essence(before)

    def remeasures(self, before: Coverage) -> bool:
        """Whether nothing differs but measurements of the same links, and those not by much."""
        if [link.peer for link in self.links] != [link.peer for link in before.links]:
            return False
        pairs = zip(self.links, before.links, strict=True)
        is_near_all = all(is_near(new.rtt_s, old.rtt_s, MUCH, MUCH_S) for new, old in pairs)
        return is_near_all and replace(self, links=before.links) == before


def essence(coverage: Coverage | CoverageRecord) -> Hashable:
    """Of what a peer says of itself that which decides whether requests go to it, and where."""
    held = tuple((held.model_digest, held.layers, held.state, held.free_cache_rows > 0) for held in coverage.held)
    return coverage.state, coverage.addresses, coverage.reachability, held


class Publisher:
    """Makes our records and heartbeats. `entropy(n)` gives n secret random bytes; `membership` is our proof of it."""

    def __init__(
        self,
        identity: Identity,
        swarm: SwarmId,
        rng: Chance,
        entropy: Callable[[int], bytes],
        *,
        is_silent: bool = False,
        membership: bytes = b"",
    ) -> None:
        self.short = short_id(identity.peer_id)
        self._identity = identity
        self._swarm = swarm
        self._rng = rng
        self._entropy = entropy
        self._is_silent = is_silent
        self._membership = membership
        self._wanted = Coverage()
        self._published: Coverage | None = None
        self._is_leaving = False
        self._is_overtaken = False
        self._twins = Twins()
        self._resizing = Resizing(rng)
        self._started_at_s = 0.0
        self._sequence = 0
        self._record: CoverageRecord | None = None
        self._sealed = b""
        self._chain: HeartbeatChain | None = None
        self._count = 0
        self._recorded_at = 0.0
        self._alive_at = 0.0
        self._next_at = 0.0
        self._allowance: TokenBucket | None = None

    @property
    def record(self) -> CoverageRecord | None:
        """Our newest record; None before the first."""
        return self._record

    @property
    def sealed(self) -> bytes:
        """Our newest record as it was sealed; b"" before the first."""
        return self._sealed

    @property
    def version(self) -> tuple[int, int]:
        """Sequence and count of our newest heartbeat."""
        return self._sequence, self._count

    def update(self, coverage: Coverage) -> bool:
        """From now on we have this to say; whether that is anything new."""
        is_new = coverage != self._wanted
        self._wanted = coverage
        return is_new

    def leave(self) -> None:
        """The next record is our last."""
        self._is_leaving = True

    def overtake(self, record: CoverageRecord, now: float) -> list[TwinSeen]:
        """Somebody has a record of ours that this run did not make: go beyond it. Says so once another run lives.

        From then on the younger of the two is silent.
        """
        if record.sequence < self._sequence or self._record is None:
            return []
        self._sequence = min(record.sequence + OVERTAKING, MAX_SEQUENCE - 1)
        self._is_overtaken = True
        seen = self._twins.hear(record.started_at_s, self._started_at_s, now)
        self._is_silent |= any(twin.is_older for twin in seen)
        return seen

    def news(self, now: float) -> RecordNews | None:
        """Our newest record with its newest heartbeat."""
        heartbeat = self.heartbeat(now)
        return None if heartbeat is None else RecordNews(self._sealed, heartbeat, self._membership)

    def heartbeat(self, now: float) -> Heartbeat | None:
        """Our newest heartbeat; None before the first record."""
        if self._record is None:
            return None
        proof = bytes(CHAIN_BYTES) if self._chain is None else self._chain.proof(self._count)
        return Heartbeat(self.short, self._record.sequence, self._count, proof, max(0.0, now - self._alive_at))

    def tick(self, now: float, unix_s: float, size: int) -> bool:
        """Whether there is a new record or heartbeat in a swarm of `size`, ourselves included."""
        if self._is_silent or (self._record is not None and self._record.is_departure):
            return False
        lifetime = lifetime_s(size, 0.0 if self._record is None else self._record.lifetime_s)
        if self._needs_record(now, size, lifetime) and self._may_record(now):
            self._make_record(now, unix_s, lifetime)
            return True
        if self._record is None or self._chain is None or now < self._next_at:
            return False
        # A chain that has run out is replaced by a new record as soon as the allowance permits.
        self._count = min(self._count + 1, self._chain.length)
        self._beat(now)
        return True

    def next_at(self, now: float, size: int) -> float:
        """When `tick` has something to do next."""
        if self._is_silent:
            return float("inf")
        if self._record is None:
            return now
        if self._record.is_departure:
            return float("inf")
        if self._wanted != self._published:
            return min(self._next_at, max(now, self._recorded_at + self._patience_s(size)))
        return self._next_at

    def _needs_record(self, now: float, size: int, lifetime: float) -> bool:
        record, published, chain = self._record, self._published, self._chain
        if record is None or published is None or chain is None or self._is_leaving or self._is_overtaken:
            return True
        if self._count >= chain.length:
            return True
        if self._resizing.is_due(now, size, is_off=lifetime != record.lifetime_s):
            return True
        if self._wanted == published:
            return False
        return self._wanted.moves_requests(published) or now >= self._recorded_at + self._patience_s(size)

    def _patience_s(self, size: int) -> float:
        """How long a change that moves no request may wait."""
        published = self._published
        is_remeasured = published is not None and self._wanted.remeasures(published)
        return remeasured_s(size) if is_remeasured else minor_change_s(size)

    def _may_record(self, now: float) -> bool:
        if self._allowance is None:
            self._allowance = TokenBucket(RECORDS_S, RECORDS_AT_ONCE, now)
        return self._is_leaving or self._allowance.spend(1, now)

    def _make_record(self, now: float, unix_s: float, lifetime: float) -> None:
        if self._record is None:
            self._started_at_s = unix_s
        # A clock that was set back must not take us below what we said before.
        self._sequence = max(self._sequence + 1, int(unix_s * 1000) if self._record is None else 0)
        self._chain = None if self._is_leaving else HeartbeatChain(self._entropy(SEED_BYTES))
        wanted = replace(self._wanted, state="draining") if self._is_leaving else self._wanted
        self._record = CoverageRecord(
            swarm=self._swarm,
            peer_id=self._identity.peer_id,
            sequence=self._sequence,
            issued_at_s=unix_s,
            lifetime_s=0.0 if self._is_leaving else lifetime,
            state=wanted.state,
            addresses=wanted.addresses,
            reachability=wanted.reachability,
            region=wanted.region,
            version=wanted.version,
            memory_bytes=wanted.memory_bytes,
            free_memory_bytes=wanted.free_memory_bytes,
            held=() if self._is_leaving else wanted.held,
            links=() if self._is_leaving else wanted.links,
            chain_anchor=b"" if self._chain is None else self._chain.anchor,
            chain_length=0 if self._chain is None else self._chain.length,
            started_at_s=self._started_at_s,
        )
        self._sealed = seal_record(self._identity, self._record)
        self._published = self._wanted
        self._count = 0
        self._is_overtaken = False
        self._recorded_at = now
        self._resizing.recorded(now)
        self._beat(now)

    def _beat(self, now: float) -> None:
        assert self._record is not None
        self._alive_at = now
        jitter = 1.0 + JITTER * (2.0 * self._rng.random() - 1.0)
        self._next_at = now + jitter * period_s(self._record.lifetime_s or 1.0)
