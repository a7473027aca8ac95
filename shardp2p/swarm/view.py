"""The view: who is live, by what each peer signed itself. Pure.

A peer lives while heartbeats of its newest record arrive. It is gone when none was sent for the lifetime that its
record names, counted on our own clock, or when its record says that it left. What was seen once is never news again,
so nobody can bring back the dead by repeating them.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from shardp2p.errors import RemoteProtocolError
from shardp2p.swarm.disbelief import DISBELIEF_S, REFUSED_S, Disbelief
from shardp2p.swarm.heartbeats import check_proof, is_link
from shardp2p.swarm.pace import longest_lifetime_s
from shardp2p.swarm.roll import Roll
from shardp2p.swarm.sealed_records import OpenRecord, open_record, payload_of, short_id
from shardp2p.swarm.strikes import TokenBucket
from shardp2p.swarm.view_events import Appeared, Hearing, Lesson, Reason, Updated, Vanished, ViewEvent
from shardp2p.vocabulary import PeerId, SwarmId
from shardp2p.wire.news import Heartbeat, RecordNews, ShortId
from shardp2p.wire.records import MAX_CHAIN_LENGTH, MAX_LIFETIME_S, CoverageRecord

MAX_PEERS: Final = 16_384
"""Some 30 MiB of typical records."""
MAX_REMEMBERED: Final = 2 * MAX_PEERS
"""Peers that are gone, by short id and last sequence: 4 MiB."""
DEPARTURE_KEPT_S: Final = 30.0
"""How long a departure is passed on, and its peer's allowance kept."""
LEAST_GAP_S: Final = 1.0
"""Heartbeats of one peer that follow closer are not passed on; the next one will be."""
RECORDS_AT_ONCE: Final = 12
RECORDS_S: Final = 0.5
"""New records of one peer that we take in; `swarm.publisher` stays below."""


@dataclass(slots=True)
class _Entry:
    record: CoverageRecord
    sealed: bytes
    count: int
    proof: bytes
    first_heard_at: float  # of this count: it was not sent later
    alive_at: float  # when this count was sent, as far as we know
    allowance: TokenBucket
    lifetime_s: float


class View:
    """The peers of one swarm as one of them sees it, itself excluded."""

    def __init__(
        self,
        swarm: SwarmId,
        *,
        max_peers: int = MAX_PEERS,
        opener: OpenRecord = open_record,
        roll: Roll | None = None,
    ) -> None:
        self._swarm = swarm
        self._max_peers = max_peers
        self._open = opener
        self.roll = roll or Roll()
        self._entries: dict[ShortId, _Entry] = {}
        self._gone: OrderedDict[ShortId, tuple[int, int]] = OrderedDict()
        self._disbelief = Disbelief(MAX_PEERS)
        self._departed = 0
        self._live: tuple[CoverageRecord, ...] | None = ()
        self._none_silent_before = math.inf

    def __len__(self) -> int:
        return len(self._entries) - self._departed

    def live(self) -> tuple[CoverageRecord, ...]:
        """The newest record of every live peer, by peer id. Call `expire` before."""
        if self._live is None:
            records = [entry.record for entry in self._entries.values() if not entry.record.is_departure]
            self._live = tuple(sorted(records, key=lambda record: record.peer_id))
        return self._live

    def live_sealed(self) -> tuple[bytes, ...]:
        """The same records, as their peers sealed them."""
        return tuple(entry.sealed for entry in self._entries.values() if not entry.record.is_departure)

    def record_of(self, peer: PeerId) -> CoverageRecord | None:
        """The newest record of a live peer."""
        entry = self._entries.get(short_id(peer))
        return None if entry is None or entry.record.is_departure else entry.record

    def shorts(self) -> Iterator[ShortId]:
        """All that can be passed on, departures too."""
        return iter(self._entries)

    def sequence_of(self, short: ShortId) -> int:
        """The sequence of the record that we have; 0 for none."""
        entry = self._entries.get(short)
        return 0 if entry is None else entry.record.sequence

    def heartbeat_of(self, short: ShortId, now: float) -> Heartbeat | None:
        """The newest heartbeat of a peer, with its age."""
        if (entry := self._entries.get(short)) is None:
            return None
        return Heartbeat(short, entry.record.sequence, entry.count, entry.proof, max(0.0, now - entry.alive_at))

    def news_of(self, short: ShortId, now: float) -> RecordNews | None:
        """The newest record of a peer with its newest heartbeat."""
        if (heartbeat := self.heartbeat_of(short, now)) is None:
            return None
        return RecordNews(self._entries[short].sealed, heartbeat, self.roll.proof_of(short))

    def hear(self, heartbeat: Heartbeat, now: float) -> Hearing:
        """Take in a heartbeat that a neighbour sent."""
        short, sequence = heartbeat.short, heartbeat.sequence
        if self._disbelief.holds(short, now):
            return "ignored"
        if (entry := self._entries.get(short)) is None:
            is_known = (sequence, heartbeat.count) <= self._gone.get(short, (0, 0))
            if heartbeat.age_s >= MAX_LIFETIME_S or is_known:
                return "old"
            return "wanted" if len(self._entries) < self._max_peers else "ignored"
        known = entry.record.sequence
        if sequence > known:
            return "wanted" if entry.allowance.has(1, now) else "ignored"
        if sequence < known or heartbeat.count < entry.count or heartbeat.age_s >= entry.lifetime_s:
            return "old"
        return self._hear_current(entry, heartbeat, now)

    def _hear_current(self, entry: _Entry, heartbeat: Heartbeat, now: float) -> Hearing:
        """A heartbeat of the record that we have, not older than the one that we have."""
        steps = heartbeat.count - entry.count
        if steps and now - entry.first_heard_at < LEAST_GAP_S:
            return "ignored"
        if heartbeat.count > entry.record.chain_length or not is_link(heartbeat.proof, steps, entry.proof):
            return "disputed"
        sent_at = now - heartbeat.age_s
        if steps == 0:
            # Who came first with it may have made it look older than it is, but it was there when we heard it first.
            entry.alive_at = max(entry.alive_at, min(entry.first_heard_at, sent_at))
            return "known"
        entry.count, entry.proof = heartbeat.count, heartbeat.proof
        entry.first_heard_at = now
        entry.alive_at = max(entry.alive_at, sent_at)
        return "news"

    def learn(self, news: RecordNews, now: float) -> Lesson:
        """Take in a sealed record with its newest heartbeat.

        Raises: RemoteProtocolError for malformed or mismatching bytes; IntegrityError for a wrong signature or proof.
        """
        short = news.heartbeat.short
        entry = self._entries.get(short)
        if entry is not None and entry.sealed == news.sealed:
            self.hear(news.heartbeat, now)
            return Lesson("same")
        record = self._open(news.sealed, self._swarm)
        if short_id(record.peer_id) != short or record.sequence != news.heartbeat.sequence:
            raise RemoteProtocolError("a record came with the heartbeat of another")
        check_proof(record, news.heartbeat)
        if entry is not None and self._contradicts(entry, record, news.sealed):
            return Lesson("contradiction", self._refuse(short, now + DISBELIEF_S, "contradiction"))
        if not self._is_acceptable(entry, record, news.heartbeat, now):
            return Lesson("old")
        return self._judge(short, record, news, now)

    def _judge(self, short: ShortId, record: CoverageRecord, news: RecordNews, now: float) -> Lesson:
        """Take in a valid record that is newer than what we know, if its peer is a member."""
        judgement = self.roll.judge(record, short, news.membership)
        if judgement == "believed":
            return Lesson("news", self._store(short, record, news, now))
        if judgement == "unproven":
            return Lesson("unproven")
        if judgement == "refused":
            return Lesson("refused", self._refuse(short, now + REFUSED_S, "shut out"))
        return Lesson("forbidden", self._refuse(short, now + DISBELIEF_S, "forbidden"))

    def _contradicts(self, entry: _Entry, record: CoverageRecord, sealed: bytes) -> bool:
        return record.sequence == entry.record.sequence and payload_of(sealed) != payload_of(entry.sealed)

    def _is_acceptable(self, entry: _Entry | None, record: CoverageRecord, heartbeat: Heartbeat, now: float) -> bool:
        """Whether a valid record is newer than what we know, fresh, and within what we take in."""
        if self._disbelief.holds(heartbeat.short, now):
            return False
        if not record.is_departure and heartbeat.age_s >= record.lifetime_s:
            return False
        if entry is not None:
            return record.sequence > entry.record.sequence and entry.allowance.spend(1, now)
        is_new = (record.sequence, heartbeat.count) > self._gone.get(heartbeat.short, (0, 0))
        return is_new and len(self._entries) < self._max_peers

    def _store(self, short: ShortId, record: CoverageRecord, news: RecordNews, now: float) -> ViewEvent | None:
        entry = self._entries.get(short)
        allowance = TokenBucket(RECORDS_S, RECORDS_AT_ONCE, now) if entry is None else entry.allowance
        before = None if entry is None or entry.record.is_departure else entry.record
        self._departed += record.is_departure - (entry is not None and entry.record.is_departure)
        beat, lifetime_s = news.heartbeat, DEPARTURE_KEPT_S if record.is_departure else record.lifetime_s
        self._entries[short] = _Entry(
            record, news.sealed, beat.count, beat.proof, now, now - beat.age_s, allowance, lifetime_s
        )
        self._gone.pop(short, None)
        self._live = None
        longest = longest_lifetime_s(len(self) + 1)
        self._none_silent_before = min(self._none_silent_before, now - beat.age_s + min(lifetime_s, longest))
        if record.is_departure:
            return None if before is None else Vanished(before, "left")
        return Appeared(record) if before is None else Updated(record, before)

    def expire(self, now: float) -> list[ViewEvent]:
        """Forget who was not heard for its lifetime."""
        # A heartbeat only puts off the end of its peer, so before the earliest end of the last look nobody has ended.
        if now < self._none_silent_before:
            return []
        longest = longest_lifetime_s(len(self) + 1)
        ends = {short: entry.alive_at + min(entry.lifetime_s, longest) for short, entry in self._entries.items()}
        silent = [short for short, end in ends.items() if end <= now]
        events = [event for short in silent if (event := self._remove(short, "silent")) is not None]
        self._none_silent_before = min((end for end in ends.values() if end > now), default=math.inf)
        return events

    def recheck(self) -> list[ViewEvent]:
        """Forget who is not admitted any more."""
        return [event for short in self.roll.ended() if (event := self._remove(short, "shut out")) is not None]

    def shut_out(self, peer: PeerId) -> ViewEvent | None:
        """Do not believe this peer until it is let in again: it was revoked."""
        return self._refuse(short_id(peer), math.inf, "shut out")

    def let_in(self, peer: PeerId) -> None:
        """Believe a peer again that was shut out: it has a later invite."""
        self._disbelief.let_in(short_id(peer))

    def _refuse(self, short: ShortId, until: float, reason: Reason) -> ViewEvent | None:
        self._disbelief.refuse(short, until)
        return self._remove(short, reason)

    def _remove(self, short: ShortId, reason: Reason) -> ViewEvent | None:
        entry = self._entries.pop(short, None)
        if entry is None:
            return None
        self._live = None
        self.roll.forget(short)
        self._departed -= entry.record.is_departure
        count = MAX_CHAIN_LENGTH if entry.record.is_departure else entry.count
        self._gone[short] = entry.record.sequence, count
        while len(self._gone) > MAX_REMEMBERED:
            self._gone.popitem(last=False)
        return None if entry.record.is_departure else Vanished(entry.record, reason)
