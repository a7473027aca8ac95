"""The epidemic: what one peer takes from its neighbours and passes on to them. Pure; docs/protocols/gossip.md.

Heartbeats are pushed, and name the sequence of their record; whoever lacks that record asks for it. So a change costs
each peer one copy of the record and a few heartbeats, and a newcomer that hears every heartbeat fetches the whole view.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardp2p.errors import IntegrityError, RemoteProtocolError
from shardp2p.swarm.asking import Asking
from shardp2p.swarm.blame import FORBIDDEN, FORGED, Blame
from shardp2p.swarm.exchange import CALM_S, URGENT_S, Allowances, Exchange
from shardp2p.swarm.publisher import Publisher
from shardp2p.swarm.roll import Roll
from shardp2p.swarm.sealed_records import OpenRecord, open_record, payload_of, short_id, short_of
from shardp2p.swarm.shared_values import SharedValues, Validator, value_id
from shardp2p.swarm.strikes import BREACH, FORGERY, NUISANCE, Strikes
from shardp2p.swarm.view import MAX_PEERS, View
from shardp2p.swarm.view_events import GossipEvent, ValueAdded
from shardp2p.vocabulary import PeerId, SwarmId
from shardp2p.wire.news import Heartbeat, News, RecordNews, ShortId, ValueId, ValueNews


class Gossip:
    """One peer's part. Driven by `connect`, `receive`, `take`, `disconnect` for each neighbour, and `tick`."""

    def __init__(
        self,
        own: Publisher,
        swarm: SwarmId,
        *,
        validators: Mapping[int, Validator] | None = None,
        strikes: Strikes | None = None,
        opener: OpenRecord = open_record,
        max_peers: int = MAX_PEERS,
        roll: Roll | None = None,
    ) -> None:
        self.own = own
        self.view = View(swarm, max_peers=max_peers, opener=opener, roll=roll)
        self.values = SharedValues(validators or {})
        self.strikes = strikes or Strikes()
        self._swarm = swarm
        self._open = opener
        self._neighbours: dict[PeerId, Exchange] = {}
        self._allowances = Allowances()
        self._asking = Asking(self._sequence_of, lambda short: short != own.short and self.view.roll.lacks(short))
        self._events: list[GossipEvent] = []
        self._blame = Blame(self.strikes)

    @property
    def neighbours(self) -> tuple[PeerId, ...]:
        """With whom we exchange news."""
        return tuple(self._neighbours)

    def connect(self, peer: PeerId, now: float) -> None:
        """`peer` is a neighbour from now on, and is to hear all that we know. Raises ConfigError for no peer id."""
        self.disconnect(peer)
        exchange = self._neighbours[peer] = Exchange(peer, short_id(peer), self._allowances.of(peer, now))
        exchange.proofs.add(self.own.short)
        if self.own.record is not None:
            exchange.records.add(self.own.short)
        for short in self.view.shorts():
            exchange.tell(short, now)
        for value in self.values.ids():
            exchange.offers.add(value)
        exchange.hurry(now)

    def disconnect(self, peer: PeerId) -> None:
        """`peer` is a neighbour no more; what it owes us is asked of others."""
        exchange = self._neighbours.pop(peer, None)
        if exchange is not None:
            self._asking.release(exchange, exchange.asked)

    def due_at(self, peer: PeerId) -> float:
        """When there is something to send to `peer`; infinite while there is nothing."""
        return self._neighbours[peer].due_at

    def take(self, peer: PeerId, now: float, until: float = 0.0) -> News:
        """What to send to `peer` now; maybe nothing. What is due `until` a later moment may come along."""
        return self._neighbours[peer].take(self, self._asking.asks, now, max(now, until))

    def tick(self, now: float, unix_s: float) -> list[GossipEvent]:
        """Let time pass: our own heartbeat, the silent, the answers that do not come."""
        before = self.own.record
        if self.own.tick(now, unix_s, len(self.view) + 1):
            for exchange in self._neighbours.values():
                if self.own.record is before:
                    exchange.tell(self.own.short, now + CALM_S / 2)
                else:
                    exchange.records.add(self.own.short)
                    exchange.hurry(now)
        self._events += self.view.expire(now)
        for exchange in self._neighbours.values():
            self._asking.release(exchange, exchange.forget_answers(now))
        return self._taken_events()

    def share(self, news: ValueNews, now: float) -> list[GossipEvent]:
        """Give everybody a value of ours. Raises what its validator raises."""
        self._add_value(news, None, now)
        return self._taken_events()

    def shut_out(self, peer: PeerId, now: float) -> list[GossipEvent]:
        """Do not believe `peer` nor pass on its news, until it is let in again."""
        if (event := self.view.shut_out(peer)) is not None:
            self._events.append(event)
        return self._taken_events()

    def recheck(self) -> list[GossipEvent]:
        """Forget who is not admitted any more, by what became known."""
        self._events += self.view.recheck()
        return self._taken_events()

    def let_in(self, peer: PeerId) -> None:
        """Believe `peer` again, which was shut out."""
        self.view.let_in(peer)

    def receive(self, peer: PeerId, news: News, now: float) -> list[GossipEvent]:
        """Take in what a neighbour sent. Its offences become strikes."""
        exchange = self._neighbours[peer]
        if not exchange.allowance.spend(news, now):
            self._blame.strike(exchange.peer, NUISANCE, "sends more than a neighbour may", now)
            return self._taken_events()
        for record in news.records:
            with self._blame.striking(exchange.peer, now):
                self._learn(exchange, record, now)
        for heartbeat in news.heartbeats:
            self._hear(exchange, heartbeat, now)
        exchange.owe(news)
        for offer in news.offers:
            exchange.offers.discard(offer)
            if self.values.lacks(offer):
                exchange.offered.add(offer)
        if news.record_wants or news.proof_wants or news.value_wants or news.offers:
            exchange.hurry(now)
        for value in news.values:
            with self._blame.striking(exchange.peer, now):
                self._take_value(exchange, value, now)
        return self._taken_events()

    # What an Exchange needs of us.

    def heartbeat_of(self, short: ShortId, now: float) -> Heartbeat | None:
        """The newest heartbeat of a peer, ourselves included."""
        return self.own.heartbeat(now) if short == self.own.short else self.view.heartbeat_of(short, now)

    def news_of(self, short: ShortId, now: float) -> RecordNews | None:
        """The newest record of a peer, ourselves included."""
        return self.own.news(now) if short == self.own.short else self.view.news_of(short, now)

    def value_of(self, value: ValueId) -> ValueNews | None:
        """That value, if we have it."""
        return self.values.get(value)

    def _learn(self, exchange: Exchange, news: RecordNews, now: float) -> None:
        short = short_of(news.sealed)
        if short != news.heartbeat.short:
            raise RemoteProtocolError("a record came with the heartbeat of another")
        asked = self._asking.answered(exchange, short)
        is_lie = asked is not None and short in exchange.disputed and asked.sequence == news.heartbeat.sequence
        exchange.disputed.discard(short)
        exchange.knows(short)
        if asked is None and short != exchange.short:
            self._blame.strike(exchange.peer, NUISANCE, "sends records that nobody asked for", now)
            return
        if asked is not None and news.heartbeat.sequence < asked.sequence:
            raise RemoteProtocolError("a neighbour claimed a newer record than it has")
        if short == self.own.short:
            self._learn_of_ourselves(news, is_lie, now)
            return
        lesson = self.view.learn(news, now)
        if lesson.event is not None:
            self._events.append(lesson.event)
        match lesson.verdict:
            case "news":
                self._spread(short, exchange, now + URGENT_S, is_urgent=True)
            case "same" if is_lie:
                raise IntegrityError(FORGED)
            case "old" if news.heartbeat.sequence < self.view.sequence_of(short):
                exchange.tell(short, now + URGENT_S, is_urgent=True)
            case "unproven" if asked is None or not asked.with_proof:
                self._asking.want(exchange, short, news.heartbeat.sequence, now)
            case "contradiction":
                self._blame.strike(self._signer(news), FORGERY, "signed two records under one sequence", now)
            case "forbidden":
                self._blame.strike(self._signer(news), BREACH, FORBIDDEN, now)

    def _signer(self, news: RecordNews) -> PeerId:
        return self._open(news.sealed, self._swarm).peer_id

    def _learn_of_ourselves(self, news: RecordNews, is_lie: bool, now: float) -> None:
        """A record of ours that we did not make in this run: another run did, and we must go beyond it."""
        record = self._open(news.sealed, self._swarm)
        if payload_of(news.sealed) != payload_of(self.own.sealed):
            self._events += self.own.overtake(record, now)
        elif is_lie:
            raise IntegrityError(FORGED)

    def _hear(self, exchange: Exchange, heartbeat: Heartbeat, now: float) -> None:
        short = heartbeat.short
        if short == self.own.short:
            if (heartbeat.sequence, heartbeat.count) > self.own.version:
                self._asking.dispute(exchange, short, heartbeat.sequence, now)
            return
        match self.view.hear(heartbeat, now):
            case "news":
                exchange.knows(short)
                self._spread(short, exchange, now + CALM_S)
            case "known":
                exchange.knows(short)
            case "old" if heartbeat.sequence < self.view.sequence_of(short):
                exchange.tell(short, now + CALM_S)
            case "wanted":
                self._asking.want(exchange, short, heartbeat.sequence, now)
            case "disputed":
                self._asking.dispute(exchange, short, heartbeat.sequence, now)

    def _take_value(self, exchange: Exchange, news: ValueNews, now: float) -> None:
        if exchange.asked_values.pop(value_id(news), None) is None:
            self._blame.strike(exchange.peer, NUISANCE, "sends values that nobody asked for", now)
        else:
            self._add_value(news, exchange, now)

    def _add_value(self, news: ValueNews, source: Exchange | None, now: float) -> None:
        value = self.values.add(news)
        if value is None:
            return
        self._events.append(ValueAdded(news.kind, news.sealed))
        for exchange in self._neighbours.values():
            if exchange is not source:
                exchange.offers.add(value)
                exchange.hurry(now + URGENT_S)

    def _spread(self, short: ShortId, source: Exchange, at: float, *, is_urgent: bool = False) -> None:
        for exchange in self._neighbours.values():
            if exchange is not source:
                exchange.tell(short, at, is_urgent=is_urgent)

    def _sequence_of(self, short: ShortId) -> int:
        return self.own.version[0] if short == self.own.short else self.view.sequence_of(short)

    def _taken_events(self) -> list[GossipEvent]:
        events, self._events = [*self._events, *self._blame.take()], []
        return events
