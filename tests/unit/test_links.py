"""What a peer knows of its links, whom it probes next and how often, at every bound."""

from __future__ import annotations

import random

import pytest

from shardp2p.swarm.links import (
    BANDWIDTH_ROUND_S,
    FIRST_ROUND_S,
    FIRST_ROUNDS,
    MAX_BACK_OFF_S,
    MAX_MEASURED,
    MAX_NEAREST,
    MAX_NEEDED,
    MAX_PROBED,
    ROTATION_S,
    ROUND_S,
    Links,
    bandwidth_bytes_s,
)
from shardp2p.vocabulary import PeerId
from shardp2p.wire.records import MAX_LINKS, CoverageRecord, Link, decode_record, encode_record

ME = PeerId("me")


def peers(count: int) -> list[PeerId]:
    return [PeerId(f"peer-{number:04}") for number in range(count)]


def measured(distances: dict[PeerId, float], now: float = 0.0) -> Links:
    links = Links(ME)
    for peer, rtt_s in distances.items():
        links.observe_round(peer, [rtt_s] * 5, now)
    return links


def test_a_noisy_link_is_its_median_with_its_spread_to_fractions_of_a_millisecond() -> None:
    rng = random.Random(1)
    links = Links(ME)
    peer = PeerId("far")
    for number in range(8):
        # Jitter is one-sided, and one probe in ten meets a long queue.
        rtts = [0.0355 + rng.expovariate(1 / 0.0002) + (0.4 if rng.random() < 0.1 else 0.0) for _ in range(5)]
        links.observe_round(peer, rtts, now=10.0 * number)
    link = links.link(peer, 70.0)
    assert link is not None
    assert link.rtt_s == pytest.approx(0.0356, abs=0.0002)
    assert 0.00005 < link.spread_s < 0.0004
    assert link.bandwidth_bytes_s == 0.0


def test_a_link_that_nobody_measures_any_more_is_forgotten() -> None:
    links = measured({PeerId("a"): 0.01})
    assert links.snapshot(1_199.0) == (Link(PeerId("a"), 0.01, 0.0, 0.0),)
    assert links.snapshot(1_201.0) == ()


def test_bandwidth_is_the_median_of_the_last_bursts() -> None:
    peer = PeerId("a")
    links = measured({peer: 0.01})
    for bytes_s in (9e6, 1e6, 10e6, 11e6, 10.5e6, 9.5e6):
        links.observe_bandwidth(peer, bytes_s, now=1.0)
    link = links.link(peer, 1.0)
    assert link is not None
    assert link.bandwidth_bytes_s == 10e6


def test_absurd_measurements_still_make_a_valid_record() -> None:
    links = Links(ME)
    links.observe_round(PeerId("instant"), [0.0], now=0.0)
    links.observe_round(PeerId("never"), [1e9], now=0.0)
    links.observe_bandwidth(PeerId("instant"), 1e30, now=0.0)
    record = CoverageRecord(PeerId("swarm"), ME, 1, 0.0, 10.0, "serving", links=links.snapshot(0.0))  # type: ignore[arg-type]
    assert decode_record(encode_record(record)).links == links.snapshot(0.0)


@pytest.mark.parametrize(
    ("elapsed_s", "rtt_s", "bytes_s"), [(0.15, 0.05, 10e6), (0.05, 0.05, 200e6), (0.05, 5.0, 200e6), (0.0, 0.0, 1e12)]
)
def test_bandwidth_leaves_the_empty_trip_out_but_for_a_tenth(elapsed_s: float, rtt_s: float, bytes_s: float) -> None:
    assert bandwidth_bytes_s(1_000_000, elapsed_s, rtt_s) == pytest.approx(bytes_s)


def test_a_peer_that_delays_its_answers_gains_nothing() -> None:
    size, true_rtt_s, transfer_s = 250_000, 0.02, 0.1
    honest = true_rtt_s + size / bandwidth_bytes_s(size, true_rtt_s + transfer_s, true_rtt_s)
    for delay_s in (0.001, 0.01, 0.05, 0.2):
        # It delays pings, and answers bursts at once.
        shown = true_rtt_s + delay_s + size / bandwidth_bytes_s(size, true_rtt_s + transfer_s, true_rtt_s + delay_s)
        assert shown >= honest - 1e-9


def test_targets_are_neighbours_then_the_nearest_then_chance_and_never_ourselves() -> None:
    alive = peers(100)
    distances = {peer: 0.001 * (number + 1) for number, peer in enumerate(alive[:50])}
    links = measured(distances)
    needed = [alive[70], ME, PeerId("gone"), alive[71], alive[2]]
    targets = links.targets([*alive, ME], 1.0, needed=needed)
    assert targets[:3] == (alive[70], alive[71], alive[2])
    assert targets[3:7] == (alive[0], alive[1], alive[3], alive[4])
    assert len(targets) == len(set(targets)) == MAX_PROBED
    assert set(targets) <= set(alive)


def test_targets_are_bounded_whatever_is_needed() -> None:
    alive = peers(300)
    links = measured(dict.fromkeys(alive[:120], 0.01))
    targets = links.targets(alive, 1.0, needed=alive[200:])
    assert targets[:MAX_NEEDED] == tuple(alive[200 : 200 + MAX_NEEDED])
    assert len(targets) == MAX_PROBED
    assert links.targets([], 1.0, needed=alive) == ()
    assert links.targets(alive[:3], 1.0) == tuple(alive[:3])


def test_chance_keeps_to_its_choice_for_a_while_and_meets_everybody_in_time() -> None:
    alive = peers(60)
    links = Links(ME)
    first = links.targets(alive, 1.0)
    assert links.targets(list(reversed(alive)), ROTATION_S - 1.0) == first
    met = {peer for turn in range(40) for peer in links.targets(alive, turn * ROTATION_S)}
    assert met == set(alive)


def test_two_peers_draw_differently_so_that_nobody_is_probed_by_all() -> None:
    alive = peers(400)
    probed = [peer for number in range(400) for peer in Links(PeerId(f"prober-{number}")).targets(alive, 0.0)]
    most = max(probed.count(peer) for peer in set(probed))
    assert most < 3 * MAX_PROBED


def test_the_nearest_stay_targets_once_they_are_known() -> None:
    alive = peers(80)
    near = alive[40:44]
    links = Links(ME)
    for turn in range(60):
        now = turn * ROTATION_S / 2
        for peer in links.targets(alive, now):
            links.observe_round(peer, [0.002 if peer in near else 0.09], now)
    assert set(near) <= set(links.targets(alive, 60 * ROTATION_S / 2))
    assert len(near) == MAX_NEAREST


def test_rounds_come_fast_at_first_and_then_once_a_minute() -> None:
    peer = PeerId("a")
    links = Links(ME)
    assert links.next_round_at(peer) <= 0.0
    now, gaps = 0.0, []
    for _ in range(8):
        links.observe_round(peer, [0.01], now)
        gaps.append(links.next_round_at(peer) - now)
        now = links.next_round_at(peer)
    assert all(0.75 * FIRST_ROUND_S <= gap <= 1.25 * FIRST_ROUND_S for gap in gaps[:FIRST_ROUNDS])
    assert all(0.75 * ROUND_S <= gap <= 1.25 * ROUND_S for gap in gaps[FIRST_ROUNDS:])
    assert len(set(gaps)) > 4


def test_a_silent_peer_is_tried_less_and_less_and_an_answer_ends_that() -> None:
    peer = PeerId("a")
    links = measured({peer: 0.01})
    now, gaps = 0.0, []
    for _ in range(40):
        links.fail(peer, now)
        gaps.append(links.next_round_at(peer) - now)
        now = links.next_round_at(peer)
    assert gaps[0] < 15.0
    assert all(0.75 * MAX_BACK_OFF_S <= gap <= 1.25 * MAX_BACK_OFF_S for gap in gaps[10:])
    links.observe_round(peer, [0.01], now)
    assert links.next_round_at(peer) - now <= 1.25 * FIRST_ROUND_S


def test_bandwidth_is_due_after_a_good_round_and_then_seldom() -> None:
    peer = PeerId("a")
    links = Links(ME)
    assert not links.is_bandwidth_due(peer, 0.0)
    links.observe_round(peer, [0.01], 0.0)
    assert links.is_bandwidth_due(peer, 0.0)
    links.postpone_bandwidth(peer, 0.0)
    assert not links.is_bandwidth_due(peer, ROUND_S - 1.0)
    assert links.is_bandwidth_due(peer, ROUND_S)
    links.observe_bandwidth(peer, 1e6, ROUND_S)
    assert not links.is_bandwidth_due(peer, ROUND_S + 0.7 * BANDWIDTH_ROUND_S)
    assert links.is_bandwidth_due(peer, ROUND_S + 1.3 * BANDWIDTH_ROUND_S)


def test_a_snapshot_has_what_is_needed_and_then_what_is_known_best_within_the_record() -> None:
    alive = peers(60)
    links = measured(dict.fromkeys(alive, 0.01))
    for peer in alive[30:36]:
        links.observe_round(peer, [0.02] * 5, 1.0)
    snapshot = [link.peer for link in links.snapshot(1.0, needed=[alive[9], PeerId("unknown"), *alive[50:]])]
    assert snapshot[:MAX_NEEDED] == [alive[9], *alive[50 : 49 + MAX_NEEDED]]
    assert snapshot[MAX_NEEDED : MAX_NEEDED + 6] == alive[30:36]
    assert len(snapshot) == len(set(snapshot)) == MAX_NEEDED + MAX_PROBED <= MAX_LINKS


def test_what_is_kept_is_bounded_and_the_longest_unheard_goes_first() -> None:
    alive = peers(MAX_MEASURED + 10)
    links = Links(ME)
    for number, peer in enumerate(alive):
        links.observe_round(peer, [0.01], now=float(number) / 100)
    assert links.link(alive[9], 2.0) is None
    assert links.link(alive[10], 2.0) is not None
    links.forget(alive[10])
    assert links.link(alive[10], 2.0) is None


def test_a_link_is_told_as_before_while_it_is_about_so() -> None:
    near, far = peers(2)
    links = measured({far: 0.1012, near: 0.02})
    assert links.told(0.0) == (Link(near, 0.02, 0.0, 0.0), Link(far, 0.1, 0.0, 0.0))
    for turn in range(1, 7):
        links.observe_round(far, [0.112] * 31, 60.0 * turn)
        links.observe_round(near, [0.0201] * 31, 60.0 * turn)
    assert links.told(360.0) == links.told(0.0)
    links.observe_round(far, [0.131] * 31, 420.0)
    assert [link.rtt_s for link in links.told(420.0)] == [0.02, 0.13]


def test_a_link_that_drifts_is_told_anew_before_it_is_a_fifth_off() -> None:
    (peer,) = peers(1)
    links = Links(ME)
    for turn in range(60):
        rtt_s = 0.05 * 1.02**turn
        links.observe_round(peer, [rtt_s] * 31, 60.0 * turn)
        (told,) = links.told(60.0 * turn)
        assert rtt_s / 1.25 < told.rtt_s < rtt_s * 1.25


def test_what_is_told_does_not_depend_on_which_link_is_known_best() -> None:
    one, two = peers(2)
    links = measured({two: 0.01, one: 0.02})
    before = links.told(0.0)
    links.observe_round(two, [0.01] * 5, 1.0)
    assert links.told(1.0) == before
