"""What a peer lets others send as probes: honest probers always pass, floods do not."""

from __future__ import annotations

import pytest

from shardp2p.errors import RemoteProtocolError
from shardp2p.swarm.allowance import (
    ALL_BYTES_AT_ONCE,
    ALL_BYTES_S,
    BURST_BYTES,
    BURST_PINGS,
    MAX_PROBERS,
    PINGS_AT_ONCE,
    PINGS_S,
    PROBE_BYTES,
    PROBER_BYTES_S,
    ProbeAllowance,
)
from shardp2p.swarm.links import BANDWIDTH_ROUND_S, FIRST_ROUND_S
from shardp2p.swarm.probes import PINGS
from shardp2p.vocabulary import PeerId
from shardp2p.wire.codec_swarm import MAX_PADDING_BYTES, MAX_ROOM_BYTES

ONE = PeerId("one")


def test_a_prober_that_keeps_to_the_pace_is_never_refused_and_always_has_room_when_it_is_due() -> None:
    allowance = ProbeAllowance(0.0)
    now = 0.0
    for turn in range(200):
        room = [allowance.answer(ONE, 0, now + 0.05 * number, is_busy=False) for number in range(PINGS)]
        if turn % int(0.75 * BANDWIDTH_ROUND_S / (0.75 * FIRST_ROUND_S)) == 0:
            assert room[-1] == PROBE_BYTES
            for _ in range(2 * BURST_PINGS):
                allowance.answer(ONE, MAX_PADDING_BYTES, now + 1.0, is_busy=False)
        now += 0.75 * FIRST_ROUND_S


def test_padding_needs_room_that_was_announced_before() -> None:
    allowance = ProbeAllowance(0.0)
    with pytest.raises(RemoteProtocolError, match="where there was room for 0"):
        allowance.answer(ONE, 1, 0.0, is_busy=False)
    assert PROBE_BYTES == 2 * BURST_BYTES <= MAX_ROOM_BYTES


def test_a_flood_of_padding_is_refused_and_one_of_many_minutes_is_bounded() -> None:
    allowance = ProbeAllowance(0.0)
    taken = room = 0
    for second in range(3_000):
        room = allowance.answer(ONE, min(room, MAX_PADDING_BYTES), float(second), is_busy=False)
        taken += min(room, MAX_PADDING_BYTES)
    assert taken <= PROBE_BYTES + 3_000 * PROBER_BYTES_S + MAX_PADDING_BYTES
    with pytest.raises(RemoteProtocolError, match="bytes of padding"):
        allowance.answer(ONE, room + 1, 3_000.0, is_busy=False)


def test_a_flood_of_pings_is_refused_and_the_next_honest_one_is_not() -> None:
    allowance = ProbeAllowance(0.0)
    for _ in range(PINGS_AT_ONCE):
        allowance.answer(ONE, 0, 0.0, is_busy=False)
    with pytest.raises(RemoteProtocolError, match="pings at once"):
        allowance.answer(ONE, 0, 0.0, is_busy=False)
    allowance.answer(PeerId("two"), 0, 0.0, is_busy=False)
    allowance.answer(ONE, 0, 1.0 / PINGS_S, is_busy=False)


def test_a_busy_peer_gives_no_room_but_takes_what_is_under_way() -> None:
    allowance = ProbeAllowance(0.0)
    assert allowance.answer(ONE, 0, 0.0, is_busy=False) == PROBE_BYTES
    for _ in range(2 * BURST_PINGS):
        assert allowance.answer(ONE, MAX_PADDING_BYTES, 0.1, is_busy=True) == 0
    with pytest.raises(RemoteProtocolError):
        allowance.answer(ONE, 1, 0.2, is_busy=True)


def test_many_probers_together_get_no_more_than_all_may() -> None:
    allowance = ProbeAllowance(0.0)
    taken = 0
    for number in range(3_000):
        prober, now = PeerId(f"sybil-{number}"), number / 100
        room = allowance.answer(prober, 0, now, is_busy=False)
        while room >= MAX_PADDING_BYTES:
            room = allowance.answer(prober, MAX_PADDING_BYTES, now, is_busy=False)
            taken += MAX_PADDING_BYTES
    assert taken <= ALL_BYTES_AT_ONCE + 30.0 * ALL_BYTES_S
    assert allowance.answer(ONE, 0, 1_000.0, is_busy=False) == PROBE_BYTES


def test_the_accounts_are_bounded_and_the_longest_idle_goes_first() -> None:
    allowance = ProbeAllowance(0.0)
    for number in range(MAX_PROBERS):
        allowance.answer(PeerId(f"prober-{number}"), 0, 0.0, is_busy=False)
    room = allowance.answer(PeerId("prober-0"), 0, 500.0, is_busy=False)
    allowance.answer(PeerId("new"), 0, 500.0, is_busy=True)
    allowance.answer(PeerId("prober-0"), room, 500.0, is_busy=False)
    assert len(allowance._accounts) == MAX_PROBERS
    assert "prober-1" not in allowance._accounts
