from __future__ import annotations

import math
import random

from shardp2p.host.punch.schedule import FIRST_PAUSE_S, MAX_FAILURES, MAX_PEERS, SETTLE_S, Circumstances, Schedule
from shardp2p.vocabulary import PeerId

PEER = PeerId("12D3KooWPeer")
SAME = Circumstances((("45.45.0.7", 4001),), "independent")
CHANGED = Circumstances((("45.45.0.8", 4001),), "independent")


def schedule(chance: float = 0.5) -> Schedule:
    return Schedule(lambda: chance)


def test_a_peer_that_was_never_tried_is_due() -> None:
    assert schedule().is_due(PEER, SAME, 0.0)


def test_never_while_a_straight_connection_lives() -> None:
    assert not schedule().is_due(PEER, SAME, 0.0, has_straight=True)


def test_pauses_double_and_have_an_end() -> None:
    tries = schedule()
    now, pauses = 0.0, []
    for _ in range(MAX_FAILURES):
        assert tries.is_due(PEER, SAME, now)
        tries.fail(PEER, SAME, now)
        due_at = tries.next_at(PEER, SAME)
        if due_at < math.inf:
            assert not tries.is_due(PEER, SAME, due_at - 0.01)
            pauses.append(due_at - now)
            now = due_at
    assert pauses == [FIRST_PAUSE_S * 2**number for number in range(MAX_FAILURES - 1)]
    assert tries.next_at(PEER, SAME) == math.inf
    assert not tries.is_due(PEER, SAME, 1e9)
    assert "when an address changes" in (tries.why_not(PEER, SAME, 1e9) or "")


def test_a_change_begins_anew_but_not_at_once() -> None:
    tries = schedule()
    for number in range(MAX_FAILURES):
        tries.fail(PEER, SAME, float(number))
    last = float(MAX_FAILURES - 1)
    assert not tries.is_due(PEER, CHANGED, last + 0.1)
    assert tries.is_due(PEER, CHANGED, last + FIRST_PAUSE_S)
    tries.fail(PEER, CHANGED, last + FIRST_PAUSE_S)
    assert tries.next_at(PEER, CHANGED) == last + 2 * FIRST_PAUSE_S


def test_nobody_tries_where_both_routers_give_each_remote_another_port() -> None:
    both = Circumstances(our_kind="dependent", their_kind="dependent")
    assert not schedule().is_due(PEER, both, 0.0)
    assert schedule().next_at(PEER, both) == math.inf
    assert schedule().is_due(PEER, Circumstances(our_kind="dependent", their_kind="unknown"), 0.0)


def test_a_hole_that_closes_at_once_is_punched_again_after_a_while() -> None:
    tries = schedule()
    tries.fail(PEER, SAME, 0.0)
    tries.succeed(PEER, SAME, 100.0)
    assert not tries.is_due(PEER, SAME, 100.1)
    assert not tries.is_due(PEER, CHANGED, 100.1)
    assert tries.is_due(PEER, SAME, 100.0 + SETTLE_S)
    tries.fail(PEER, SAME, 200.0)
    assert tries.next_at(PEER, SAME) == 200.0 + FIRST_PAUSE_S


def test_any_history_has_few_attempts_and_a_bound() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        tries = Schedule(chance.random)
        now, attempts, changes, known = 0.0, 0, 0, SAME
        while now < 3600.0:
            if chance.random() < 0.002:
                known = Circumstances((("45.45.0.7", chance.randrange(1, 60000)),), "independent")
                changes += 1
            if tries.is_due(PEER, known, now):
                attempts += 1
                tries.fail(PEER, known, now)
            now += 1.0
        assert attempts <= (changes + 1) * MAX_FAILURES
        assert attempts >= MAX_FAILURES - 1


def test_who_changes_its_addresses_all_the_time_is_not_tried_all_the_time() -> None:
    tries = schedule()
    attempts, now = 0, 0.0
    while now < 600.0:
        known = Circumstances(their_addresses=(str(now),))
        if tries.is_due(PEER, known, now):
            attempts += 1
            tries.fail(PEER, known, now)
        now += 0.1
    assert attempts <= 600.0 / (FIRST_PAUSE_S / 2) + 1


def test_peers_are_bounded_and_forgotten() -> None:
    tries = schedule()
    for number in range(2 * MAX_PEERS):
        tries.fail(PeerId(str(number)), SAME, float(number))
    assert len(tries) == MAX_PEERS
    last = PeerId(str(2 * MAX_PEERS - 1))
    assert not tries.is_due(last, SAME, 2.0 * MAX_PEERS)
    tries.forget(last)
    assert tries.is_due(last, SAME, 2.0 * MAX_PEERS)
