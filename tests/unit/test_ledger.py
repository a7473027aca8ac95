"""What a movable connection keeps: counts, acknowledgements, and whose turn it is to move."""

from __future__ import annotations

import pytest

from shardp2p.errors import RemoteProtocolError
from shardp2p.host.carry.ledger import ACKNOWLEDGE_BYTES, FRAME_BYTES, KEEP_BYTES, Ledger


def ledger_of(*sent: bytes) -> Ledger:
    ledger = Ledger(has_dialled=True)
    for frame in sent:
        ledger.send(frame)
    return ledger


def test_frames_are_kept_until_they_are_acknowledged() -> None:
    ledger = ledger_of(b"a", b"bb", b"ccc")
    ledger.acknowledge(2)
    assert ledger.acknowledged == 2
    assert ledger.kept_bytes == 3 + FRAME_BYTES
    assert list(ledger.resume(2)) == [b"ccc"]


def test_resuming_gives_what_the_peer_lacks_and_keeps_it() -> None:
    ledger = ledger_of(b"a", b"b", b"c")
    assert list(ledger.resume(1)) == [b"b", b"c"]
    assert list(ledger.resume(1)) == [b"b", b"c"]
    assert list(ledger.resume(3)) == []
    assert ledger.kept_bytes == 0


@pytest.mark.parametrize("count", [3, 4, 2**31 - 1])
def test_acknowledging_what_was_never_sent_breaks_the_rules(count: int) -> None:
    ledger = ledger_of(b"a", b"b")
    with pytest.raises(RemoteProtocolError):
        ledger.acknowledge(count)


def test_acknowledgement_that_a_move_has_overtaken_changes_nothing() -> None:
    ledger = ledger_of(b"a", b"b", b"c")
    ledger.resume(2)
    ledger.acknowledge(1)
    assert list(ledger.resume(2)) == [b"c"]


@pytest.mark.parametrize("count", [0, 3, 2**64 - 1])
def test_resuming_where_it_cannot_be_breaks_the_rules(count: int) -> None:
    ledger = ledger_of(b"a", b"b")
    ledger.acknowledge(1)
    with pytest.raises(RemoteProtocolError):
        ledger.resume(count)
    assert ledger.acknowledged == 1


def test_acknowledgements_go_round_their_32_bits() -> None:
    ledger = ledger_of()
    ledger._sent = 2**32 - 1
    for frame in (b"a", b"b", b"c"):
        ledger.send(frame)
    ledger.acknowledge(1)
    assert ledger.acknowledged == 2**32 + 1
    assert list(ledger.resume(2**32 + 1)) == [b"c"]


def test_the_peer_is_told_once_enough_was_received() -> None:
    ledger = ledger_of()
    size = ACKNOWLEDGE_BYTES // 4
    assert [ledger.receive(size) for _ in range(4)] == [False, False, False, True]
    assert ledger.make_acknowledgement() == 4
    assert not ledger.receive(size)


def test_many_small_frames_count_for_what_keeping_them_costs() -> None:
    ledger = ledger_of()
    told = sum(ledger.receive(0) and ledger.make_acknowledgement() > 0 for _ in range(10_000))
    assert told == 10_000 * FRAME_BYTES // ACKNOWLEDGE_BYTES


def test_a_ledger_that_nobody_acknowledges_is_full_in_the_end() -> None:
    ledger = Ledger(has_dialled=False)
    frame = bytes(1024 * 1024)
    frames = 0
    while not ledger.is_full:
        ledger.send(frame)
        frames += 1
    assert frames * len(frame) <= KEEP_BYTES + len(frame)


def test_of_two_moves_at_once_that_of_who_dialled_is_made() -> None:
    dialler, accepter = Ledger(has_dialled=True), Ledger(has_dialled=False)
    turn, crossing = dialler.ask(), accepter.ask()
    assert not dialler.take_turn(crossing)
    assert accepter.take_turn(turn)
    assert dialler.is_current(turn)


def test_a_move_that_comes_late_is_none() -> None:
    dialler, accepter = Ledger(has_dialled=True), Ledger(has_dialled=False)
    late = dialler.ask()
    dialler.give_up(late)
    assert accepter.take_turn(dialler.ask())
    assert not accepter.take_turn(late)


def test_a_move_by_the_peer_ends_an_older_attempt_of_ours() -> None:
    dialler, accepter = Ledger(has_dialled=True), Ledger(has_dialled=False)
    turn = dialler.ask()
    assert accepter.take_turn(turn)
    newer = accepter.ask()
    assert dialler.take_turn(newer)
    assert not dialler.is_current(turn)


def test_an_attempt_that_was_given_up_still_uses_up_its_turn() -> None:
    dialler, accepter = Ledger(has_dialled=True), Ledger(has_dialled=False)
    accepter.give_up(accepter.ask())
    assert not accepter.take_turn(dialler.ask())
    assert accepter.take_turn(dialler.ask())


def test_what_was_sent_before_it_keeps_is_counted_and_not_sent_again() -> None:
    ledger = Ledger(has_dialled=True, is_keeping=False)
    for frame in (b"a", b"b"):
        ledger.send(frame)
    assert (ledger.sent, ledger.acknowledged, ledger.kept_bytes) == (2, 2, 0)
    ledger.keep()
    for frame in (b"c", b"d"):
        ledger.send(frame)
    assert list(ledger.resume(3)) == [b"d"]
    with pytest.raises(RemoteProtocolError, match="had acknowledged"):
        ledger.resume(1)
