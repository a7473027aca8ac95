"""What waits for one neighbour, and in which order it leaves."""

from __future__ import annotations

import math

from shardp2p.swarm.exchange import Allowance, Exchange
from shardp2p.vocabulary import PeerId
from shardp2p.wire.codec_gossip import MAX_HEARTBEATS
from shardp2p.wire.news import Heartbeat, News, RecordNews, ShortId, ValueId, ValueNews


class Shelf:
    """Has a heartbeat of everybody and nothing else."""

    def heartbeat_of(self, short: ShortId, now: float) -> Heartbeat | None:
        return Heartbeat(short, 1, 1, bytes(16))

    def news_of(self, short: ShortId, now: float) -> RecordNews | None:
        return None

    def value_of(self, value: ValueId) -> ValueNews | None:
        return None


def short_of(number: int) -> ShortId:
    return ShortId(number.to_bytes(8, "big"))


def exchange() -> Exchange:
    return Exchange(PeerId("other"), short_of(0), Allowance(0.0))


def taken(one: Exchange, now: float, until: float | None = None) -> list[ShortId]:
    news: News = one.take(Shelf(), lambda *_: (), now, now if until is None else until)
    return [heartbeat.short for heartbeat in news.heartbeats]


def test_news_leave_heartbeats_that_can_wait_where_they_are() -> None:
    one = exchange()
    one.tell(short_of(1), 2.0)
    one.tell(short_of(2), 0.05, is_urgent=True)
    assert one.due_at == 0.05
    assert taken(one, 0.05) == [short_of(2)]
    assert one.due_at == 2.0
    assert taken(one, 1.5) == []
    assert one.due_at == 2.0
    assert taken(one, 1.6, until=2.1) == [short_of(1)]
    assert one.due_at == math.inf


def test_a_heartbeat_that_became_news_is_sent_once() -> None:
    one = exchange()
    one.tell(short_of(1), 2.0)
    one.tell(short_of(1), 0.05, is_urgent=True)
    assert taken(one, 0.05) == [short_of(1)]
    assert taken(one, 2.0) == []


def test_what_the_neighbour_knows_is_not_told() -> None:
    one = exchange()
    one.tell(short_of(1), 2.0)
    one.tell(short_of(2), 0.05, is_urgent=True)
    one.knows(short_of(1))
    one.knows(short_of(2))
    assert taken(one, 3.0) == []


def test_more_than_a_message_holds_follows_at_once() -> None:
    one = exchange()
    for number in range(1, MAX_HEARTBEATS + 11):
        one.tell(short_of(number), 2.0)
    assert len(taken(one, 2.0)) == MAX_HEARTBEATS
    assert one.due_at == 2.0
    assert len(taken(one, 2.0)) == 10
    assert one.due_at == math.inf
