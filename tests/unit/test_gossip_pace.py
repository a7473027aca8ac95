"""When a peer speaks: its pace by the size of the swarm, its records, its heartbeats and its neighbours."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from shardp2p.swarm.heartbeats import CHAIN_LENGTH, HeartbeatChain, is_link
from shardp2p.swarm.neighbours import CHOSEN, MAX_LOST, MOST_INBOUND, SETTLING_S, Connected, Neighbours
from shardp2p.swarm.pace import lifetime_s, minor_change_s, period_s, remeasured_s
from shardp2p.swarm.publisher import Coverage, Publisher
from shardp2p.vocabulary import PeerId
from shardp2p.wire.messages import PeerAddress
from shardp2p.wire.records import Link
from tests.support.gossip_parts import HELD, record_of
from tests.support.gossip_swarm import SWARM, UNIX_S, identity_of


def publisher_of(number: int) -> Publisher:
    rng = Random(number)
    publisher = Publisher(identity_of(number), SWARM, rng, rng.randbytes)
    publisher.update(Coverage(state="serving", held=(HELD,)))
    return publisher


@pytest.mark.parametrize(("size", "at_most_s"), [(1, 10.0), (50, 10.0), (200, 23.0), (1000, 52.0)])
def test_lifetime_fits_the_size(size: int, at_most_s: float) -> None:
    assert 10.0 <= lifetime_s(size) <= at_most_s
    assert period_s(lifetime_s(size)) * 3 <= lifetime_s(size)


def test_lifetime_does_not_follow_a_size_that_wavers() -> None:
    lifetime = lifetime_s(70)
    assert {lifetime_s(size, lifetime) for size in range(58, 67)} == {lifetime}
    assert lifetime_s(1000, lifetime) > lifetime
    assert lifetime_s(5, lifetime_s(1000)) == lifetime_s(5)


def test_only_the_owner_of_a_chain_can_go_on_with_it() -> None:
    chain = HeartbeatChain(b"secret", 20)
    assert all(is_link(chain.proof(count), count, chain.anchor) for count in range(21))
    assert is_link(chain.proof(9), 4, chain.proof(5))
    assert not is_link(chain.proof(9), 3, chain.proof(5))
    assert not is_link(chain.anchor, 1, chain.anchor)


def test_quiet_peer_says_only_that_it_lives() -> None:
    publisher = publisher_of(1)
    said = sum(publisher.tick(tenth / 10, UNIX_S, 10) for tenth in range(600))
    assert 16 <= said <= 21
    assert publisher.version == (int(UNIX_S * 1000), said - 1)


def test_chain_that_ran_out_is_followed_by_a_new_record() -> None:
    publisher = publisher_of(1)
    now = 0.0
    for _ in range(CHAIN_LENGTH + 5):
        publisher.tick(now, UNIX_S, 10)
        now = publisher.next_at(now, 10)
    sequence, count = publisher.version
    assert sequence == int(UNIX_S * 1000) + 1
    assert count < 10


def test_change_that_moves_requests_is_published_at_once_and_a_small_one_later() -> None:
    publisher = publisher_of(1)
    publisher.tick(0.0, UNIX_S, 100)
    publisher.update(Coverage(state="serving", held=(replace(HELD, free_cache_rows=3999),)))
    publisher.tick(1.0, UNIX_S, 100)
    assert publisher.version[0] == int(UNIX_S * 1000)
    publisher.update(Coverage(state="serving", held=(replace(HELD, free_cache_rows=0),)))
    publisher.tick(1.1, UNIX_S, 100)
    assert publisher.version[0] == int(UNIX_S * 1000) + 1
    publisher.update(Coverage(state="serving", held=(replace(HELD, free_cache_rows=0, cache_rows=9000),)))
    publisher.tick(1.2 + minor_change_s(100), UNIX_S, 100)
    assert publisher.version[0] == int(UNIX_S * 1000) + 2


def links_of(*rtts_s: float) -> Coverage:
    links = tuple(Link(PeerId(f"peer-{number}"), rtt_s, 0.001, 0.0) for number, rtt_s in enumerate(rtts_s))
    return Coverage(state="serving", links=links)


def seconds_until_told(before: Coverage, after: Coverage) -> float:
    publisher = publisher_of(1)
    publisher.update(before)
    publisher.tick(0.0, UNIX_S, 10)
    assert publisher.update(after)
    now = 0.0
    while publisher.version[0] == int(UNIX_S * 1000):
        now += 1.0
        publisher.tick(now, UNIX_S, 10)
    return now


def test_links_that_measure_a_little_otherwise_wait_longest() -> None:
    assert seconds_until_told(links_of(0.02, 0.05), links_of(0.02, 0.07)) == remeasured_s(10)
    assert seconds_until_told(links_of(0.02, 0.05), links_of(0.02, 0.11)) == minor_change_s(10)
    assert seconds_until_told(links_of(0.02), links_of(0.02, 0.05)) == minor_change_s(10)
    assert remeasured_s(10) > minor_change_s(10)


def test_newcomer_tells_the_lifetime_that_the_size_needs_with_its_next_change() -> None:
    publisher = publisher_of(1)
    publisher.tick(0.0, UNIX_S, 1)
    publisher.tick(0.5, UNIX_S, 1000)
    assert publisher.version[0] == int(UNIX_S * 1000)
    publisher.update(Coverage(state="draining", held=(HELD,)))
    publisher.tick(1.0, UNIX_S, 1000)
    assert publisher.record is not None
    assert publisher.record.lifetime_s == lifetime_s(1000)
    publisher.tick(5.0, UNIX_S, 1000)
    assert publisher.version[0] == int(UNIX_S * 1000) + 1


def test_lifetime_that_the_size_needs_is_soon_told_without_any_change() -> None:
    publisher = publisher_of(1)
    publisher.tick(0.0, UNIX_S, 1)
    publisher.tick(2.0, UNIX_S, 1000)
    assert publisher.record is not None
    assert publisher.record.lifetime_s == lifetime_s(1000)


def test_step_that_the_size_takes_back_costs_no_record() -> None:
    publisher = publisher_of(1)
    publisher.tick(0.0, UNIX_S, 60)
    publisher.tick(100.0, UNIX_S, 72)
    publisher.tick(100.5, UNIX_S, 60)
    for second in range(101, 200):
        publisher.tick(float(second), UNIX_S, 60)
    assert publisher.version[0] == int(UNIX_S * 1000)


def test_coverage_that_says_the_same_is_nothing_new() -> None:
    publisher = publisher_of(1)
    assert not publisher.update(Coverage(state="serving", held=(HELD,)))


def test_peer_that_changes_without_end_publishes_at_a_bounded_rate() -> None:
    publisher = publisher_of(1)
    for tenth in range(300):
        publisher.update(Coverage(state="serving" if tenth % 2 else "loading"))
        publisher.tick(tenth / 10, UNIX_S, 10)
    assert publisher.version[0] - int(UNIX_S * 1000) <= 16


def test_last_record_is_a_departure_and_nothing_follows_it() -> None:
    publisher = publisher_of(1)
    publisher.tick(0.0, UNIX_S, 10)
    publisher.leave()
    assert publisher.tick(0.1, UNIX_S, 10)
    assert publisher.record is not None
    assert publisher.record.is_departure
    assert not publisher.tick(100.0, UNIX_S, 10)


def neighbours_of(number: int, *bootstrap: int) -> Neighbours:
    told = [PeerAddress(identity_of(other).peer_id, ("/ip4/192.0.2.1",)) for other in bootstrap]
    return Neighbours(identity_of(number).peer_id, told, Random(number))


def nobody(_: PeerId) -> bool:
    return False


def test_three_are_chosen_in_a_larger_swarm_and_everybody_in_a_small_one() -> None:
    live = [record_of(number) for number in range(1, 30)]
    assert len(neighbours_of(0).to_dial(live, {}, nobody, 0.0)) == CHOSEN
    inbound = {record.peer_id: Connected(False, 0.0) for record in live[:10]}
    assert len(neighbours_of(0).to_dial(live, inbound, nobody, 0.0)) == CHOSEN
    small = neighbours_of(0)
    dialled = {peer.peer_id for _ in range(2) for peer in small.to_dial(live[:4], {}, nobody, 0.0)}
    assert dialled == {record.peer_id for record in live[:4]}


def test_unreachable_peer_is_tried_less_and_less_often() -> None:
    chooser = neighbours_of(0, 1)
    tries = []
    for second in range(600):
        if chooser.to_dial([], {}, nobody, float(second)):
            tries.append(second)
            chooser.failed(identity_of(1).peer_id, float(second))
    gaps = [later - earlier for earlier, later in pairwise(tries)]
    assert gaps[0] <= 2
    assert 30 <= gaps[-1] <= 61


def test_banned_peer_is_not_dialled() -> None:
    assert neighbours_of(0, 1).to_dial([record_of(1)], {}, lambda _: True, 0.0) == []


def test_lost_peers_are_remembered_up_to_a_bound() -> None:
    chooser = neighbours_of(0)
    chooser.lost(record_of(1))
    assert [peer.peer_id for peer in chooser.to_dial([], {}, nobody, 0.0)] == [identity_of(1).peer_id]
    for number in range(2, MAX_LOST + 2):
        chooser.add([PeerAddress(PeerId(f"peer{number}"), ("/ip4/192.0.2.1",))])
    found = {peer.peer_id for now in range(400) for peer in chooser.to_dial([], {}, nobody, float(now))}
    assert identity_of(1).peer_id not in found


def test_surplus_is_sent_on_when_it_had_time_to_hear_the_view() -> None:
    chooser = neighbours_of(0)
    connected = {PeerId(f"peer{n}"): Connected(n < 2, 0.0) for n in range(MOST_INBOUND + 5)}
    assert chooser.surplus(connected, 30, SETTLING_S - 1) == []
    surplus = chooser.surplus(connected, 30, SETTLING_S)
    assert len(surplus) == 3
    assert not {"peer0", "peer1"}.intersection(surplus)
