"""What gossip tells: who appeared, changed, and is gone, who broke the rules, what is new. Pure values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shardp2p.swarm.twins import TwinSeen
from shardp2p.vocabulary import PeerId
from shardp2p.wire.records import CoverageRecord

Reason = Literal["left", "silent", "contradiction", "forbidden", "shut out"]


@dataclass(frozen=True, slots=True)
class Appeared:
    """A peer that was not live before."""

    record: CoverageRecord


@dataclass(frozen=True, slots=True)
class Updated:
    """A live peer said something new of itself."""

    record: CoverageRecord
    before: CoverageRecord


@dataclass(frozen=True, slots=True)
class Vanished:
    """A peer is live no more: it left, fell silent, broke the rules of records, or was shut out."""

    record: CoverageRecord
    reason: Reason


Hearing = Literal["news", "known", "old", "wanted", "disputed", "ignored"]
"""What a heartbeat was: news is to be passed on; wanted needs a record that we lack; disputed does not fit our record,
so either its sender lies or the peer said two things under one sequence.
"""

ViewEvent = Appeared | Updated | Vanished


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a sealed record was: `same` is the very record that we have, `news` is to be passed on, `forbidden` names
    layers that its peer's role does not let it hold, `unproven` needs the proof that its peer is a member, and
    `refused` is that of a peer which is none.
    """

    verdict: Literal["news", "same", "old", "contradiction", "forbidden", "unproven", "refused"]
    event: ViewEvent | None = None


@dataclass(frozen=True, slots=True)
class Struck:
    """A peer broke the rules; whether nobody talks to it for a while."""

    peer: PeerId
    reason: str
    is_banned: bool


@dataclass(frozen=True, slots=True)
class ValueAdded:
    """A value of another kind that is new to us."""

    kind: int
    sealed: bytes


GossipEvent = ViewEvent | Struck | ValueAdded | TwinSeen
