"""What is under way between us and one neighbour: what it should hear, what it asked for, what we ask of it. Pure.

Nothing here holds news itself, only their names, so a neighbour that is slow to read costs a bounded memory and gets
the newest state when it reads again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final, Generic, Protocol, TypeVar

from shardp2p.swarm.strikes import TokenBucket
from shardp2p.swarm.view import MAX_PEERS
from shardp2p.vocabulary import PeerId
from shardp2p.wire.codec_gossip import MAX_HEARTBEATS, MAX_OFFERS, MAX_RECORDS, MAX_VALUES, MAX_WANTS
from shardp2p.wire.news import Heartbeat, News, RecordNews, ShortId, ValueId, ValueNews

URGENT_S: Final = 0.05
"""How long a record or a want waits for company."""
CALM_S: Final = 2.0
"""How long a heartbeat waits: most of the messages of a swarm in which nothing happens."""
RETRY_S: Final = 1.0
"""When to look again for something to ask of this neighbour."""
PACKED_BYTES: Final = 32 * 1024
"""Records, and again values, in one message: a few milliseconds of checking signatures."""
MAX_ASKED: Final = 64
"""Records that one neighbour may owe us at a time."""
ANSWER_S: Final = 10.0
"""After so long another neighbour is asked."""
LATE_S: Final = 60.0
"""Until then an answer is late but welcome."""

MESSAGES_S, MESSAGES_AT_ONCE = 25.0, 200.0
BYTES_S, BYTES_AT_ONCE = 64.0 * 1024, 4.0 * 1024 * 1024
"""What a neighbour may send unasked: the heartbeats of the largest view several times at once, then a steady stream."""
WANTS_S, WANTS_AT_ONCE = 64.0, 2.0 * MAX_PEERS
"""What it may have us send: the largest view twice, as after a reconnection, then a trickle."""

MAX_QUEUED: Final = 2 * MAX_PEERS
"""Names that wait for a neighbour which does not read; what comes later it may learn from others."""

MAX_ALLOWANCES: Final = 1024
"""Several times the neighbours that a peer has, those that left lately included."""

K = TypeVar("K")
N = TypeVar("N", RecordNews, ValueNews)


@dataclass(frozen=True, slots=True)
class Asked:
    """When something was asked of a neighbour, and the sequence that the neighbour claimed to have."""

    at: float
    sequence: int = 0
    with_proof: bool = False


class Shelf(Protocol):
    """Where the news that are named here lie."""

    def heartbeat_of(self, short: ShortId, now: float) -> Heartbeat | None: ...
    def news_of(self, short: ShortId, now: float) -> RecordNews | None: ...
    def value_of(self, value: ValueId) -> ValueNews | None: ...


class Allowance:
    """What one peer may send and cause, over all its streams."""

    def __init__(self, now: float) -> None:
        self._messages = TokenBucket(MESSAGES_S, MESSAGES_AT_ONCE, now)
        self._bytes = TokenBucket(BYTES_S, BYTES_AT_ONCE, now)
        self._wants = TokenBucket(WANTS_S, WANTS_AT_ONCE, now)

    def spend(self, news: News, now: float) -> bool:
        """Whether the peer may send this message now."""
        unasked = 34 * len(news.heartbeats) + 17 * len(news.offers)
        wants = len(news.record_wants) + len(news.value_wants) + len(news.proof_wants)
        return self._messages.spend(1, now) and self._bytes.spend(unasked, now) and self._wants.spend(wants, now)


class Allowances:
    """What each peer may send. It outlives the peer's streams, so that a new stream brings no new one."""

    def __init__(self) -> None:
        self._by_peer: dict[PeerId, Allowance] = {}  # whose stream came last is last

    def of(self, peer: PeerId, now: float) -> Allowance:
        """The allowance of a peer that opens a stream."""
        allowance = self._by_peer.pop(peer) if peer in self._by_peer else Allowance(now)
        self._by_peer[peer] = allowance
        while len(self._by_peer) > MAX_ALLOWANCES:
            del self._by_peer[next(iter(self._by_peer))]
        return allowance


class Queue(Generic[K]):
    """Names in order of arrival, each once; no more than a neighbour may want."""

    def __init__(self) -> None:
        self._names: dict[K, None] = {}

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: K) -> bool:
        return name in self._names

    def add(self, name: K) -> None:
        """Append `name` unless it is there."""
        if len(self._names) < MAX_QUEUED:
            self._names.setdefault(name)

    def discard(self, name: K) -> None:
        """Remove `name` if it is there."""
        self._names.pop(name, None)

    def take(self, most: int) -> list[K]:
        """Remove and return the first `most`."""
        if len(self._names) <= most:
            names, self._names = self._names, {}
            return list(names)
        taken = [name for name, _ in zip(self._names, range(most), strict=False)]
        for name in taken:
            del self._names[name]
        return taken


class Exchange:
    """One neighbour. Its queues are bounded by the view and by the neighbour's allowance."""

    def __init__(self, peer: PeerId, short: ShortId, allowance: Allowance) -> None:
        self.peer = peer
        self.short = short
        self.allowance = allowance
        self.heartbeats: Queue[ShortId] = Queue()
        self.urgent: Queue[ShortId] = Queue()
        self.records: Queue[ShortId] = Queue()
        self.proofs: Queue[ShortId] = Queue()
        self.offers: Queue[ValueId] = Queue()
        self.values: Queue[ValueId] = Queue()
        self.offered: Queue[ValueId] = Queue()
        self.asked_values: dict[ValueId, Asked] = {}
        self.has_newer: dict[ShortId, int] = {}
        self.asked: dict[ShortId, Asked] = {}
        self.disputed: set[ShortId] = set()
        self.due_at = math.inf
        self._calm_at = math.inf

    def tell(self, short: ShortId, at: float, *, is_urgent: bool = False) -> None:
        """The heartbeat of a peer is to be sent not later than `at`. One that is urgent takes no others along: what
        both sides were about to say would cross more often.
        """
        if is_urgent:
            self.heartbeats.discard(short)
            self.urgent.add(short)
        else:
            self.heartbeats.add(short)
            self._calm_at = min(self._calm_at, at)
        self.hurry(at)

    def owe(self, news: News) -> None:
        """The neighbour asks for this."""
        for short in news.proof_wants:
            self.proofs.add(short)
        for short in (*news.record_wants, *news.proof_wants):
            self.records.add(short)
        for wanted in news.value_wants:
            self.values.add(wanted)

    def knows(self, short: ShortId) -> None:
        """The neighbour need not hear of that peer."""
        self.heartbeats.discard(short)
        self.urgent.discard(short)

    def hurry(self, at: float) -> None:
        """There is something to send not later than `at`."""
        self.due_at = min(self.due_at, at)

    def take(
        self, shelf: Shelf, asks: Callable[[Exchange, float], tuple[ShortId, ...]], now: float, until: float
    ) -> News:
        """What to send now of that which is due `until` then; `asks` picks the records to ask for.

        Sets `due_at` for what is left.
        """
        self.due_at = math.inf
        records = self._packed(self.records, MAX_RECORDS, lambda short: self._record(shelf, short, now))
        for record in records:
            self.knows(record.heartbeat.short)
        values = self._packed(self.values, MAX_VALUES, shelf.value_of)
        shorts = self.urgent.take(MAX_HEARTBEATS)
        if until >= self._calm_at:
            shorts += self.heartbeats.take(MAX_HEARTBEATS - len(shorts))
            self._calm_at = now if len(self.heartbeats) else math.inf
        heard = (shelf.heartbeat_of(short, now) for short in shorts)
        value_wants = tuple(self.offered.take(min(MAX_WANTS, MAX_ASKED - min(MAX_ASKED, len(self.asked_values)))))
        self.asked_values.update(dict.fromkeys(value_wants, Asked(now)))
        wants = asks(self, now)
        news = News(
            heartbeats=tuple(heartbeat for heartbeat in heard if heartbeat is not None),
            records=tuple(records),
            record_wants=tuple(short for short in wants if not self.asked[short].with_proof),
            proof_wants=tuple(short for short in wants if self.asked[short].with_proof),
            offers=tuple(self.offers.take(MAX_OFFERS)),
            value_wants=value_wants,
            values=tuple(values),
        )
        if len(self.records) or len(self.values) or len(self.urgent) or len(self.offers):
            self.hurry(now)
        self.hurry(self._calm_at)
        if self.has_newer or len(self.offered):
            self.hurry(now + RETRY_S)
        return news

    def forget_answers(self, now: float) -> Iterable[ShortId]:
        """The records that are owed for so long that another neighbour should be asked."""
        self.asked = {short: asked for short, asked in self.asked.items() if now - asked.at < LATE_S}
        self.asked_values = {value: asked for value, asked in self.asked_values.items() if now - asked.at < LATE_S}
        return [short for short, asked in self.asked.items() if now - asked.at >= ANSWER_S]

    def _record(self, shelf: Shelf, short: ShortId, now: float) -> RecordNews | None:
        """The news of a peer, with its proof of membership where the neighbour is to have it."""
        news = shelf.news_of(short, now)
        if news is None or short not in self.proofs:
            return news and replace(news, membership=b"")
        self.proofs.discard(short)
        return news

    def _packed(self, queue: Queue[K], most: int, find: Callable[[K], N | None]) -> list[N]:
        """The first of `queue` that fit into one message."""
        found: list[N] = []
        room = PACKED_BYTES
        while len(queue) and len(found) < most and room > 0:
            (name,) = queue.take(1)
            if (item := find(name)) is not None:
                found.append(item)
                room -= item.size
        return found
