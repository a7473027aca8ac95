"""The view: who is live by what peers signed, whoever carried it, whatever the clocks say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardp2p.errors import IntegrityError, RemoteProtocolError
from shardp2p.identity.membership import revocation_statement
from shardp2p.identity.revocation import sign_revocation
from shardp2p.swarm.disbelief import DISBELIEF_S
from shardp2p.swarm.pace import LIFETIME_STEP, lifetime_s, longest_lifetime_s
from shardp2p.swarm.roll import Roll
from shardp2p.swarm.sealed_records import seal_record
from shardp2p.swarm.view import LEAST_GAP_S, RECORDS_AT_ONCE, View
from shardp2p.swarm.view_events import Appeared, Updated, Vanished
from shardp2p.vocabulary import SwarmId
from shardp2p.wire.news import RecordNews
from tests.support.gossip_parts import Voice, invite_of, membership_of
from tests.support.gossip_swarm import OWNER, SWARM, UNIX_S, identity_of


def view_with(*voices: Voice) -> View:
    view = View(SWARM)
    for voice in voices:
        assert view.learn(voice.news(), 0.0).verdict == "news"
    return view


def test_record_makes_its_peer_live() -> None:
    voice = Voice(1)
    view = View(SWARM)
    assert view.hear(voice.heartbeat(), 0.0) == "wanted"
    assert view.learn(voice.news(), 0.0).event == Appeared(voice.record)
    assert view.live() == (voice.record,)
    assert view.record_of(voice.peer) == voice.record


def test_peer_lives_while_its_heartbeats_arrive_and_not_longer() -> None:
    voice = Voice(1)
    view = view_with(voice)
    for count in range(1, 5):
        assert view.expire(9.0 * count) == []
        assert view.hear(voice.heartbeat(count), 9.0 * count) == "news"
    assert view.expire(45.9) == []
    assert view.expire(46.0) == [Vanished(voice.record, "silent")]
    assert view.live() == ()


def test_time_on_the_way_counts_as_part_of_a_life() -> None:
    voice = Voice(1)
    view = View(SWARM)
    view.learn(voice.news(0, age_s=6.0), 100.0)
    assert view.expire(103.9) == []
    assert view.expire(104.0) == [Vanished(voice.record, "silent")]


def test_repeating_a_heartbeat_with_a_smaller_age_does_not_lengthen_a_life() -> None:
    voice = Voice(1)
    view = view_with(voice)
    assert view.hear(voice.heartbeat(1), 5.0) == "news"
    for now in range(6, 15):
        assert view.hear(voice.heartbeat(1), float(now)) == "known"
    assert view.expire(15.0) == [Vanished(voice.record, "silent")]


def test_who_came_first_with_a_heartbeat_cannot_make_it_look_old() -> None:
    voice = Voice(1)
    view = view_with(voice)
    view.hear(voice.heartbeat(1, age_s=9.0), 5.0)
    view.hear(voice.heartbeat(1, age_s=1.0), 6.0)
    assert view.expire(14.9) == []


@pytest.mark.parametrize("gone_by", ["silence", "departure"])
def test_nobody_can_bring_back_the_dead_by_repeating_them(gone_by: str) -> None:
    voice = Voice(1)
    view = view_with(voice)
    view.hear(voice.heartbeat(3), 2.0)
    if gone_by == "departure":
        assert view.learn(voice.departure(), 3.0).event == Vanished(voice.record, "left")
    view.expire(100.0)
    for count in range(4):
        assert view.hear(voice.heartbeat(count), 101.0) == "old"
        assert view.learn(voice.news(count), 101.0).verdict == "old"
    assert view.live() == ()


def test_departed_peer_that_starts_again_is_back_at_once() -> None:
    voice = Voice(1)
    view = view_with(voice)
    view.learn(voice.departure(), 3.0)
    assert len(view) == 0
    again = Voice(1, sequence=5)
    assert view.hear(again.heartbeat(), 3.5) == "wanted"
    assert view.learn(again.news(), 3.5).event == Appeared(again.record)
    assert len(view) == 1


def test_silent_peer_that_is_heard_again_is_back() -> None:
    voice = Voice(1)
    view = view_with(voice)
    view.expire(20.0)
    assert view.hear(voice.heartbeat(7), 21.0) == "wanted"
    assert view.learn(voice.news(7), 21.0).event == Appeared(voice.record)


def test_newer_record_replaces_the_older_one_and_not_the_reverse() -> None:
    old, new = Voice(1, 1), Voice(1, 2, text="elsewhere")
    view = view_with(old)
    assert view.learn(new.news(), 1.0).event == Updated(new.record, old.record)
    assert view.learn(old.news(5), 1.0).verdict == "old"
    assert view.hear(old.heartbeat(6), 1.0) == "old"
    assert view.live() == (new.record,)


def test_proof_that_does_not_fit_is_disputed_and_changes_nothing() -> None:
    voice = Voice(1)
    view = view_with(voice)
    assert view.hear(replace(voice.heartbeat(2), proof=bytes(16)), 5.0) == "disputed"
    assert view.hear(replace(voice.heartbeat(64), count=65), 5.0) == "disputed"
    assert view.expire(10.0) == [Vanished(voice.record, "silent")]


def test_record_with_a_forged_heartbeat_is_refused() -> None:
    voice = Voice(1)
    with pytest.raises(IntegrityError):
        View(SWARM).learn(RecordNews(voice.sealed, replace(voice.heartbeat(3), proof=bytes(16))), 0.0)


def test_record_about_another_peer_is_refused() -> None:
    victim = Voice(1)
    forged = seal_record(identity_of(2), victim.record)
    liar = Voice(2)
    with pytest.raises(IntegrityError):
        View(SWARM).learn(RecordNews(forged, liar.heartbeat()), 0.0)


def test_record_of_another_swarm_is_refused() -> None:
    voice = Voice(1)
    with pytest.raises(RemoteProtocolError, match="swarm"):
        View(SwarmId(identity_of(9).peer_id)).learn(voice.news(), 0.0)


def test_peer_that_says_two_things_under_one_sequence_is_believed_no_more() -> None:
    one, other = Voice(1, 1, text="here"), Voice(1, 1, text="there")
    view = view_with(one)
    lesson = view.learn(other.news(), 1.0)
    assert lesson.verdict == "contradiction"
    assert lesson.event == Vanished(one.record, "contradiction")
    assert view.hear(Voice(1, 2).heartbeat(), 2.0) == "ignored"


def test_layers_that_a_role_does_not_let_its_peer_hold_are_not_believed_nor_heard_of_again() -> None:
    view = View(SWARM, roll=Roll(membership_of(0), lambda: UNIX_S))
    assert view.learn(Voice(2).news(by=invite_of(1)), 0.0).verdict == "news"
    assert view.learn(Voice(1).news(by=invite_of(2, "client")), 0.0).verdict == "forbidden"
    assert view.live() == (Voice(2).record,)
    assert view.hear(Voice(1, 2).heartbeat(), 1.0) == "ignored"
    assert view.hear(Voice(1, 2).heartbeat(), DISBELIEF_S + 1.0) == "wanted"


def test_members_by_an_invite_that_is_revoked_vanish() -> None:
    known, leaked = membership_of(0), invite_of(1)
    view = View(SWARM, roll=Roll(known, lambda: UNIX_S))
    view.learn(Voice(1).news(by=leaked), 0.0)
    view.learn(Voice(2).news(by=invite_of(2)), 0.0)
    assert view.recheck() == []
    known.receive(revocation_statement(sign_revocation(OWNER, "invite", leaked.grant.invite, UNIX_S)), UNIX_S)
    assert view.recheck() == [Vanished(Voice(1).record, "shut out")]
    assert view.live() == (Voice(2).record,)
    assert view.learn(Voice(1, 2).news(by=leaked), 1.0).verdict == "refused"
    assert view.hear(Voice(1, 3).heartbeat(), 1.0) == "ignored"


def test_record_that_claims_a_life_too_long_for_the_swarm_lives_as_long_as_that_swarm_allows() -> None:
    view = view_with(Voice(1, lifetime_s=600.0))
    assert view.expire(longest_lifetime_s(2) - 0.1) == []
    assert view.expire(longest_lifetime_s(2)) == [Vanished(Voice(1, lifetime_s=600.0).record, "silent")]


def test_record_of_a_larger_swarm_lives_on_for_who_sees_an_eighth_of_it() -> None:
    for size in (8, 100, 1000, 16_000):
        assert longest_lifetime_s(size // 8) > LIFETIME_STEP * lifetime_s(size)


def test_peer_that_was_shut_out_stays_out() -> None:
    voice = Voice(1)
    view = view_with(voice)
    assert view.shut_out(voice.peer) == Vanished(voice.record, "shut out")
    assert view.hear(Voice(1, 2).heartbeat(), 1e6) == "ignored"
    assert view.learn(Voice(1, 2).news(), 1e6).verdict == "old"


def test_peer_that_was_shut_out_is_believed_once_it_is_let_in_again() -> None:
    voice = Voice(1)
    view = view_with(voice)
    view.shut_out(voice.peer)
    view.let_in(voice.peer)
    assert view.hear(Voice(1, 2).heartbeat(), 2.0) == "wanted"
    assert view.learn(Voice(1, 2).news(), 2.0).verdict == "news"


def test_letting_in_forgives_no_contradiction() -> None:
    view = view_with(Voice(1, 1, text="here"))
    view.learn(Voice(1, 1, text="there").news(), 1.0)
    view.let_in(Voice(1).peer)
    assert view.hear(Voice(1, 2).heartbeat(), 2.0) == "ignored"


def test_flood_of_new_records_of_one_peer_is_taken_in_slowly() -> None:
    view = view_with(Voice(1))
    taken = sum(view.learn(Voice(1, sequence).news(), 1.0).verdict == "news" for sequence in range(2, 60))
    assert taken == RECORDS_AT_ONCE
    assert view.hear(Voice(1, 60).heartbeat(), 1.0) == "ignored"
    assert view.hear(Voice(1, 60).heartbeat(), 4.0) == "wanted"


def test_flood_of_heartbeats_of_one_peer_is_not_passed_on() -> None:
    voice = Voice(1)
    view = view_with(voice)
    heard = [view.hear(voice.heartbeat(count), LEAST_GAP_S + count / 100) for count in range(1, 60)]
    assert heard.count("news") == 1


def test_view_takes_in_no_more_peers_than_it_has_room_for() -> None:
    view = View(SWARM, max_peers=3)
    for number in range(5):
        view.learn(Voice(number).news(), 0.0)
    assert len(view) == 3
    assert view.hear(Voice(7).heartbeat(), 0.0) == "ignored"
