"""The epidemic between pure machines: what spreads, what does not, and who is blamed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from shardp2p.errors import IntegrityError
from shardp2p.swarm.exchange import MESSAGES_AT_ONCE
from shardp2p.swarm.gossip import Gossip
from shardp2p.swarm.publisher import Coverage, Publisher
from shardp2p.swarm.shared_values import REVOCATIONS, Subject
from shardp2p.swarm.twins import TwinSeen
from shardp2p.swarm.view_events import Struck, ValueAdded
from shardp2p.vocabulary import PeerId
from shardp2p.wire.news import News, RecordNews, ShortId, ValueNews
from shardp2p.wire.records import NodeState
from tests.support.gossip_parts import Voice, exchange_all, gossip_of, invite_of, membership_of
from tests.support.gossip_swarm import SWARM, UNIX_S, identity_of


def peer(number: int) -> PeerId:
    return identity_of(number).peer_id


def connected(count: int, now: float = 0.0) -> dict[PeerId, Gossip]:
    """A line of peers: each knows the next, so that news must be passed on."""
    gossips = {peer(number): gossip_of(number) for number in range(count)}
    for number in range(count - 1):
        gossips[peer(number)].connect(peer(number + 1), now)
        gossips[peer(number + 1)].connect(peer(number), now)
    return gossips


def strikes_of(events: Sequence[object]) -> list[Struck]:
    return [event for event in events if isinstance(event, Struck)]


def test_everybody_learns_of_everybody_along_a_line() -> None:
    gossips = connected(6)
    events = exchange_all(gossips, 0.0)
    assert not strikes_of(events)
    for own, gossip in gossips.items():
        assert {record.peer_id for record in gossip.view.live()} == set(gossips) - {own}


def test_record_is_fetched_from_one_neighbour_though_many_have_it() -> None:
    hub = gossip_of(0)
    voice = Voice(9)
    for number in (1, 2, 3):
        hub.connect(peer(number), 0.0)
        hub.receive(peer(number), News(heartbeats=(voice.heartbeat(),)), 0.0)
    wants = [hub.take(peer(number), 0.1).record_wants for number in (1, 2, 3)]
    assert wants == [(voice.short,), (), ()]


def test_another_neighbour_is_asked_when_the_first_one_is_lost() -> None:
    hub, voice = gossip_of(0), Voice(9)
    for number in (1, 2):
        hub.connect(peer(number), 0.0)
        hub.receive(peer(number), News(heartbeats=(voice.heartbeat(),)), 0.0)
    assert hub.take(peer(1), 0.1).record_wants == (voice.short,)
    assert hub.take(peer(2), 0.1).record_wants == ()
    hub.disconnect(peer(1))
    assert hub.due_at(peer(2)) < 2.0
    assert hub.take(peer(2), 1.2).record_wants == (voice.short,)


def test_another_neighbour_is_asked_when_the_first_one_does_not_answer() -> None:
    hub, voice = gossip_of(0), Voice(9)
    for number in (1, 2):
        hub.connect(peer(number), 0.0)
        hub.receive(peer(number), News(heartbeats=(voice.heartbeat(),)), 0.0)
    hub.take(peer(1), 0.1)
    hub.tick(15.0, UNIX_S)
    assert hub.take(peer(2), 15.0).record_wants == (voice.short,)


def test_heartbeat_is_not_sent_back_to_who_sent_it() -> None:
    gossips = connected(2)
    exchange_all(gossips, 0.0)
    one, other = gossips.values()
    one.tick(5.0, UNIX_S + 5)
    news = one.take(peer(1), 6.0)
    assert len(news.heartbeats) == 1
    other.receive(peer(0), news, 6.0)
    assert other.take(peer(0), 10.0).is_empty


def test_restart_with_a_clock_that_was_set_back_jumps_past_its_own_past() -> None:
    gossips = connected(3)
    exchange_all(gossips, 0.0)
    past = gossips[peer(1)].view.record_of(peer(0))
    assert past is not None
    for gossip in gossips.values():
        gossip.disconnect(peer(0))
    again = Gossip(Publisher(identity_of(0), SWARM, Random(77), Random(77).randbytes), SWARM)
    again.own.update(Coverage(state="loading"))
    again.tick(1.0, UNIX_S - 600)
    gossips[peer(0)] = again
    again.connect(peer(1), 1.0)
    gossips[peer(1)].connect(peer(0), 1.0)
    assert not strikes_of(exchange_all(gossips, 1.0))
    again.tick(2.0, UNIX_S - 599)
    assert not strikes_of(exchange_all(gossips, 2.0))
    seen = gossips[peer(2)].view.record_of(peer(0))
    assert seen is not None
    assert seen.state == "loading"
    assert seen.sequence > past.sequence


def twin_of(number: int, unix_s: float, seed: int) -> Gossip:
    """Another run of peer `number`, which began at `unix_s`, that is at time 0."""
    gossip = Gossip(Publisher(identity_of(number), SWARM, Random(seed), Random(seed).randbytes), SWARM)
    gossip.own.update(Coverage(state="loading", region=str(seed)))
    gossip.tick(0.0, unix_s)
    return gossip


@pytest.mark.parametrize("is_ahead", [True, False], ids=["clocks agree", "the later one's clock is behind"])
def test_of_two_processes_with_one_identity_the_younger_falls_silent_and_both_know(is_ahead: bool) -> None:
    between = gossip_of(1)
    twins = (twin_of(0, UNIX_S, 70), twin_of(0, UNIX_S + (5.0 if is_ahead else -5.0), 71))
    seen: list[list[TwinSeen]] = [[], []]
    for second in range(40):
        for number, twin in enumerate(twins):
            # Whoever comes last with an id has the only stream, so the two take turns.
            now = second + number / 2
            between.connect(peer(0), now)
            twin.connect(peer(1), now)
            for gossip in (between, twin):
                gossip.tick(now, UNIX_S + now)
            events = exchange_all({peer(0): twin, peer(1): between}, now)
            assert not strikes_of(events)
            seen[number] += [event for event in events if isinstance(event, TwinSeen)]
            twin.disconnect(peer(1))
            between.disconnect(peer(0))
    assert seen == ([[TwinSeen(False)], [TwinSeen(True)]] if is_ahead else [[TwinSeen(True)], [TwinSeen(False)]])
    (stays, ends) = twins if is_ahead else reversed(twins)
    before = ends.own.version
    ends.own.leave()
    ends.tick(100.0, UNIX_S + 100.0)
    assert ends.own.record is not None
    assert not ends.own.record.is_departure
    assert ends.own.version == before
    seen_of_both = between.view.record_of(peer(0))
    assert seen_of_both is not None
    assert stays.own.record is not None
    assert seen_of_both.region == stays.own.record.region


def test_ten_thousand_garbage_records_ban_their_sender_and_cost_nothing() -> None:
    gossip = gossip_of(0)
    gossip.connect(peer(1), 0.0)
    rng = Random(1)
    for number in range(10_000 // 50):
        records = tuple(RecordNews(rng.randbytes(300), Voice(2).heartbeat()) for _ in range(50))
        gossip.receive(peer(1), News(records=records), number * 0.1)
        if gossip.strikes.is_banned(peer(1), number * 0.1):
            break
    assert gossip.strikes.is_banned(peer(1), number * 0.1)
    assert number < 2
    assert len(gossip.view) == 0


def test_record_that_nobody_asked_for_is_not_even_checked() -> None:
    gossip = gossip_of(0)
    gossip.connect(peer(1), 0.0)
    events = gossip.receive(peer(1), News(records=(Voice(2).news(),)), 0.0)
    assert [strike.peer for strike in strikes_of(events)] == [peer(1)]
    assert len(gossip.view) == 0


def test_forged_heartbeat_is_blamed_on_its_sender_once_it_cannot_show_its_record() -> None:
    gossip, voice = gossip_of(0), Voice(9)
    for number in (1, 2):
        gossip.connect(peer(number), 0.0)
    gossip.receive(peer(1), News(heartbeats=(voice.heartbeat(),)), 0.0)
    gossip.take(peer(1), 0.1)
    gossip.receive(peer(1), News(records=(voice.news(),)), 0.2)
    forged = replace(voice.heartbeat(3), proof=b"x" * 16)
    assert not strikes_of(gossip.receive(peer(2), News(heartbeats=(forged,)), 3.0))
    assert gossip.take(peer(2), 3.1).record_wants == (voice.short,)
    events = gossip.receive(peer(2), News(records=(voice.news(),)), 3.2)
    assert [strike.peer for strike in strikes_of(events)] == [peer(2)]


def test_who_carries_a_contradiction_is_not_blamed_for_it() -> None:
    gossip, one, other = gossip_of(0), Voice(9, 1, text="here"), Voice(9, 1, text="there")
    for number, voice in ((1, one), (2, other)):
        gossip.connect(peer(number), 0.0)
        gossip.receive(peer(number), News(heartbeats=(voice.heartbeat(number),)), 0.0)
    gossip.take(peer(1), 0.1)
    gossip.receive(peer(1), News(records=(one.news(1),)), 0.2)
    gossip.receive(peer(2), News(heartbeats=(other.heartbeat(3),)), 3.0)
    assert gossip.take(peer(2), 3.1).record_wants == (one.short,)
    events = gossip.receive(peer(2), News(records=(other.news(3),)), 3.2)
    assert [strike.peer for strike in strikes_of(events)] == [one.peer]
    assert gossip.view.record_of(one.peer) is None


def test_layers_of_a_client_are_blamed_on_the_client_and_not_on_who_carried_them() -> None:
    client = Voice(9)
    gossip = gossip_of(0, membership=membership_of(0))
    gossip.connect(peer(1), 0.0)
    gossip.receive(peer(1), News(heartbeats=(client.heartbeat(),)), 0.0)
    assert gossip.take(peer(1), 0.1).proof_wants == (client.short,)
    events = gossip.receive(peer(1), News(records=(client.news(by=invite_of(1, "client")),)), 0.2)
    assert [strike.peer for strike in strikes_of(events)] == [client.peer]
    assert gossip.view.live() == ()


def test_client_that_hides_its_role_is_struck_once_it_is_known() -> None:
    client, gossip = Voice(9), gossip_of(0, membership=membership_of(0))
    gossip.connect(client.peer, 0.0)
    assert strikes_of(gossip.receive(client.peer, News(records=(client.news(),)), 0.0)) == []
    assert gossip.view.live() == ()
    assert gossip.take(client.peer, 0.1).proof_wants == (client.short,)
    events = gossip.receive(client.peer, News(records=(client.news(by=invite_of(1, "client")),)), 1.0)
    assert [strike.peer for strike in strikes_of(events)] == [client.peer]


def test_invented_peer_is_neither_believed_nor_passed_on() -> None:
    invented, gossip = Voice(9), gossip_of(0, membership=membership_of(0))
    gossip.connect(peer(1), 0.0)
    gossip.connect(peer(2), 0.0)
    gossip.take(peer(2), 0.0)
    gossip.receive(peer(1), News(heartbeats=(invented.heartbeat(),)), 0.0)
    gossip.take(peer(1), 0.1)
    assert strikes_of(gossip.receive(peer(1), News(records=(invented.news(),)), 0.2)) == []
    forged = invite_of(1).claim(identity_of(1), UNIX_S)
    gossip.receive(peer(1), News(heartbeats=(invented.heartbeat(),)), 1.0)
    gossip.take(peer(1), 1.1)
    lie = News(records=(replace(invented.news(), membership=forged),))
    assert [strike.peer for strike in strikes_of(gossip.receive(peer(1), lie, 1.2))] == [peer(1)]
    assert gossip.view.live() == ()
    assert gossip.take(peer(2), 5.0).is_empty


def test_proof_of_membership_crosses_once_to_who_has_not_seen_it() -> None:
    number_of = {peer(number): number for number in range(3)}
    gossips = {one: gossip_of(number, membership=membership_of(number)) for one, number in number_of.items()}
    for one, two in ((0, 1), (1, 2)):
        gossips[peer(one)].connect(peer(two), 0.0)
        gossips[peer(two)].connect(peer(one), 0.0)
    proofs: list[bytes] = []
    state: NodeState
    for now, state in ((1.0, "joining"), (3.0, "draining")):
        gossips[peer(0)].own.update(Coverage(state=state))
        for gossip in gossips.values():
            gossip.tick(now, UNIX_S + now)
        for _ in range(10):
            for one, gossip in gossips.items():
                for other in gossip.neighbours:
                    news = gossip.take(other, now, now + 5.0)
                    proofs += [record.membership for record in news.records if other == peer(2) and record.membership]
                    gossips[other].receive(one, news, now)
    record = gossips[peer(2)].view.record_of(peer(0))
    assert record is not None
    assert record.state == "draining"
    assert sorted(proofs) == sorted(membership_of(number).proof for number in range(2))


def test_claim_of_a_record_that_is_not_there_is_blamed() -> None:
    gossip, voice = gossip_of(0), Voice(9)
    gossip.connect(peer(1), 0.0)
    gossip.receive(peer(1), News(heartbeats=(replace(voice.heartbeat(), sequence=2**47),)), 0.0)
    gossip.take(peer(1), 0.1)
    events = gossip.receive(peer(1), News(records=(voice.news(),)), 0.2)
    assert len(strikes_of(events)) == 1


def test_claim_about_ourselves_does_not_move_our_sequence() -> None:
    gossip = gossip_of(0)
    before = gossip.own.version
    gossip.connect(peer(1), 0.0)
    claim = replace(Voice(0).heartbeat(), sequence=2**47)
    gossip.receive(peer(1), News(heartbeats=(claim,)), 0.0)
    assert gossip.take(peer(1), 0.1).record_wants == (gossip.own.short,)
    news = Voice(0, 2**47).news()
    forged = replace(news, sealed=news.sealed[:40] + bytes((news.sealed[40] ^ 1,)) + news.sealed[41:])
    events = gossip.receive(peer(1), News(records=(forged,)), 0.2)
    assert len(strikes_of(events)) == 1
    assert gossip.own.version == before


def test_flood_of_messages_ends_in_a_ban_that_ends() -> None:
    gossip = gossip_of(0)
    gossip.connect(peer(1), 0.0)
    for _ in range(round(MESSAGES_AT_ONCE) + 20):
        gossip.receive(peer(1), News(heartbeats=(Voice(2).heartbeat(),)), 0.0)
    assert gossip.strikes.is_banned(peer(1), 0.0)
    assert not gossip.strikes.is_banned(peer(1), 100.0)


def test_new_stream_brings_no_new_allowance() -> None:
    gossip = gossip_of(0)
    for _ in range(round(MESSAGES_AT_ONCE) + 20):
        gossip.connect(peer(1), 0.0)
        gossip.receive(peer(1), News(heartbeats=(Voice(2).heartbeat(),)), 0.0)
    assert gossip.strikes.is_banned(peer(1), 0.0)


def test_unknown_wants_are_answered_with_silence() -> None:
    gossip = gossip_of(0)
    gossip.connect(peer(1), 0.0)
    gossip.take(peer(1), 0.0)
    gossip.receive(peer(1), News(record_wants=(ShortId(b"nobody!!"),)), 0.0)
    assert gossip.take(peer(1), 0.1).is_empty


def read_plain(sealed: bytes) -> Subject:
    """A validator of test values: a letter for the subject, a digit for the version."""
    if len(sealed) != 2:
        raise IntegrityError("no value")
    return Subject(sealed[:1], sealed[1])


def test_values_reach_everybody_and_newcomers_and_the_newest_wins() -> None:
    gossips = {peer(number): gossip_of(number, {REVOCATIONS: read_plain}) for number in range(4)}
    for number in range(2):
        gossips[peer(number)].connect(peer(number + 1), 0.0)
        gossips[peer(number + 1)].connect(peer(number), 0.0)
    gossips[peer(0)].share(ValueNews(REVOCATIONS, b"a1"), 0.0)
    events = exchange_all(gossips, 0.0)
    assert events.count(ValueAdded(REVOCATIONS, b"a1")) == 2
    gossips[peer(2)].share(ValueNews(REVOCATIONS, b"a2"), 1.0)
    exchange_all(gossips, 1.0)
    gossips[peer(3)].connect(peer(0), 2.0)
    gossips[peer(0)].connect(peer(3), 2.0)
    exchange_all(gossips, 2.0)
    for gossip in gossips.values():
        assert gossip.values.of_kind(REVOCATIONS) == (b"a2",)


def test_value_that_its_validator_refuses_is_blamed_on_its_sender() -> None:
    validators = {REVOCATIONS: read_plain}
    gossip, liar = gossip_of(0, validators), gossip_of(1, {REVOCATIONS: lambda sealed: Subject(sealed, 1)})
    gossips = {peer(0): gossip, peer(1): liar}
    liar.share(ValueNews(REVOCATIONS, b"garbage"), 0.0)
    gossip.connect(peer(1), 0.0)
    liar.connect(peer(0), 0.0)
    events = exchange_all(gossips, 0.0)
    assert [strike.peer for strike in strikes_of(events)] == [peer(1)]
