"""Strikes and allowances decay, and their memory is bounded."""

from __future__ import annotations

from shardp2p.swarm.strikes import (
    BAN_SCORE,
    BREACH,
    FIRST_BAN_S,
    FORGERY,
    HALF_LIFE_S,
    MAX_STRUCK,
    NUISANCE,
    Strikes,
    TokenBucket,
)
from shardp2p.vocabulary import PeerId

PEER = PeerId("peer")


def test_second_forgery_is_the_last() -> None:
    strikes = Strikes()
    assert not strikes.strike(PEER, FORGERY, 0.0)
    assert strikes.strike(PEER, FORGERY, 1.0)
    assert strikes.is_banned(PEER, 1.0)
    assert not strikes.is_banned(PeerId("another"), 1.0)


def test_old_strikes_weigh_nothing() -> None:
    strikes = Strikes()
    for minutes in range(0, 1000, 10):
        assert not strikes.strike(PEER, BREACH, minutes * 60.0)
    assert strikes.score(PEER, 1000 * 60.0 + 20 * HALF_LIFE_S) < 0.01


def test_ban_ends_and_the_next_one_is_longer() -> None:
    strikes = Strikes()
    strikes.strike(PEER, BAN_SCORE, 0.0)
    assert strikes.is_banned(PEER, FIRST_BAN_S - 1)
    assert not strikes.is_banned(PEER, FIRST_BAN_S)
    strikes.strike(PEER, BAN_SCORE, FIRST_BAN_S)
    assert strikes.is_banned(PEER, 3 * FIRST_BAN_S - 1)
    assert not strikes.is_banned(PEER, 3 * FIRST_BAN_S)


def test_memory_of_strikes_is_bounded_and_keeps_the_latest() -> None:
    strikes = Strikes()
    for number in range(MAX_STRUCK + 100):
        strikes.strike(PeerId(f"peer{number}"), NUISANCE, 0.0)
    assert len(strikes) == MAX_STRUCK
    assert strikes.score(PeerId(f"peer{MAX_STRUCK + 99}"), 0.0) == NUISANCE
    assert strikes.score(PeerId("peer0"), 0.0) == 0.0


def test_bucket_lets_a_burst_through_and_then_its_rate() -> None:
    bucket = TokenBucket(rate=2.0, burst=5.0, now=0.0)
    assert sum(bucket.spend(1, 0.0) for _ in range(10)) == 5
    assert sum(bucket.spend(1, 3.0) for _ in range(10)) == 5
    assert sum(bucket.spend(1, 4.0) for _ in range(10)) == 2
