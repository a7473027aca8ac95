"""The messages of /shardp2p/gossip/1 as frozen values. Their rules stand in docs/protocols/gossip.md. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

from shardp2p.vocabulary import SwarmId

ShortId = NewType("ShortId", bytes)
"""The first 8 bytes of a peer's public key: a name within one swarm, proof of nothing."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A peer lived `age_s` ago, when it revealed link `count` of the hash chain in its record `sequence`.

    Only `proof` can be checked; the age is what those who carried it say, and can shorten a life but not lengthen it.
    """

    short: ShortId
    sequence: int
    count: int
    proof: bytes
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RecordNews:
    """A sealed coverage record and the newest heartbeat of its chain.

    `membership` is the proof that its peer is in the swarm; empty in an open one, and for who knows it already.
    """

    sealed: bytes
    heartbeat: Heartbeat
    membership: bytes = b""

    @property
    def size(self) -> int:
        """Bytes that it takes, roughly."""
        return len(self.sealed) + len(self.membership)


@dataclass(frozen=True, slots=True)
class ValueId:
    """A value of another kind, by the first 16 bytes of its sha256."""

    kind: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class ValueNews:
    """A sealed value of another kind, as a revocation: opaque to gossip, which asks the kind's validator."""

    kind: int
    sealed: bytes

    @property
    def size(self) -> int:
        """Bytes that it takes, roughly."""
        return len(self.sealed)


@dataclass(frozen=True, slots=True)
class Greeting:
    """First on the stream, from both sides: the swarm that it is about."""

    swarm: SwarmId


@dataclass(frozen=True, slots=True)
class News:
    """All that the sender has for the receiver now. `proof_wants` are record wants that ask for the proof too."""

    heartbeats: tuple[Heartbeat, ...] = ()
    records: tuple[RecordNews, ...] = ()
    record_wants: tuple[ShortId, ...] = ()
    offers: tuple[ValueId, ...] = ()
    value_wants: tuple[ValueId, ...] = ()
    values: tuple[ValueNews, ...] = ()
    proof_wants: tuple[ShortId, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to say."""
        return not (
            self.heartbeats
            or self.records
            or self.record_wants
            or self.offers
            or self.value_wants
            or self.values
            or self.proof_wants
        )


@dataclass(frozen=True, slots=True)
class Farewell:
    """Last on the stream: the sender closes it on purpose."""

    reason: str = ""


GossipMessage = Greeting | News | Farewell
