"""When a peer is pinged, and what its silence means."""

from __future__ import annotations

import pytest

from shardp2p.host.vigil import PING_INTERVAL_S, ROUND_TRIP_S, SILENCE_S, Vigil


class Day:
    """A vigil that is looked at as its link does, while the peer answers, or not."""

    def __init__(self, *, is_early: bool, round_trip_s: float = 0.1) -> None:
        self.vigil = Vigil(is_early=is_early)
        self.now = 100.0
        self.frames = 0
        self.pings: list[float] = []
        self.is_answering = True
        self.is_writing = False
        self._round_trip_s = round_trip_s
        self._pongs: list[tuple[float, int]] = []
        self.vigil.start(self.now)

    def pass_by(self, seconds: float, *, frames_each_look: int = 0) -> None:
        end = self.now + seconds
        while self.now < end:
            self.frames += frames_each_look
            if self.is_writing:
                self.vigil.sent_at = self.now
            value = self.vigil.ping(self.now, self.frames)
            if value is not None:
                self.pings.append(self.now)
                self._pongs += [(self.now + self._round_trip_s, value)] if self.is_answering else []
            self.now += self.vigil.pause(self.now, is_waiting=False)
            for at, answer in self._pongs:
                if at <= self.now:
                    self.vigil.pong(at, answer)
                    self.vigil.heard_at = at
            self._pongs = [pong for pong in self._pongs if pong[0] > self.now]
            self.silence_s = self.vigil.look(self.now)

    def until_suspect(self, *, frames_each_look: int = 0) -> float:
        """How long after the last sign of life the path is suspected."""
        start = self.now
        while not self.vigil.is_suspect:
            self.pass_by(0.01, frames_each_look=frames_each_look)
            assert self.now - start < 10
        return self.now - self.vigil.heard_at


def test_an_idle_peer_is_pinged_now_and_then_and_its_round_trip_known() -> None:
    day = Day(is_early=True)
    day.pass_by(20)
    assert 6 <= len(day.pings) <= 11
    assert day.vigil.round_trip_s == pytest.approx(0.1)
    assert not day.vigil.is_suspect


def test_a_busy_path_that_falls_silent_is_suspected_within_a_second() -> None:
    day = Day(is_early=True)
    day.pass_by(5, frames_each_look=1)
    day.is_answering = False
    assert 0.6 <= day.until_suspect(frames_each_look=1) <= 1.1 + PING_INTERVAL_S


def test_a_path_that_swallows_what_was_just_written_is_suspected_in_half_a_second_whenever_it_was_pinged_last() -> None:
    for early_s in (0.0, 0.15, 0.3, 0.45, 0.6, 0.75):
        day = Day(is_early=True, round_trip_s=0.05)
        day.is_writing = True
        day.pass_by(3 + early_s, frames_each_look=1)
        day.is_answering = False
        day.vigil.heard_at = day.now
        assert 0.35 <= day.until_suspect(frames_each_look=1) <= 0.5 + 0.05


def test_who_only_waits_does_not_ask_more_often_than_once_a_second() -> None:
    day = Day(is_early=True, round_trip_s=0.05)
    day.frames = 1
    day.pass_by(2.5)
    assert len(day.pings) <= 3


def test_a_busy_path_of_long_round_trips_is_given_more_time() -> None:
    day = Day(is_early=True, round_trip_s=0.6)
    day.pass_by(10, frames_each_look=1)
    assert not day.vigil.is_suspect
    day.is_answering = False
    assert day.until_suspect(frames_each_look=1) >= 4 * 0.6


def test_an_idle_path_that_falls_silent_is_suspected_before_it_is_lost() -> None:
    day = Day(is_early=True)
    day.pass_by(8)
    day.is_answering = False
    assert day.until_suspect() < SILENCE_S


def test_a_path_that_nothing_could_replace_is_not_asked_while_it_says_something_now_and_then() -> None:
    day = Day(is_early=False)
    day.pass_by(3)
    pings = len(day.pings)
    for _ in range(20):
        day.pass_by(2.0)
        day.vigil.heard_at = day.now
    assert len(day.pings) - pings <= 40 / ROUND_TRIP_S


def test_a_path_that_nothing_could_replace_is_asked_a_second_before_it_would_be_lost() -> None:
    day = Day(is_early=False)
    for tenth in range(30):
        day.pass_by(0.1 * tenth)
        day.vigil.heard_at = heard_at = day.now
        day.pings.clear()
        day.pass_by(SILENCE_S - 1)
        assert day.pings
        assert day.pings[0] <= heard_at + SILENCE_S - 1


def test_nothing_is_suspected_where_nothing_can_take_over() -> None:
    day = Day(is_early=False)
    day.pass_by(5, frames_each_look=1)
    day.is_answering = False
    day.pass_by(6, frames_each_look=1)
    assert not day.vigil.is_suspect
    assert day.silence_s > SILENCE_S


def test_a_suspect_that_speaks_is_none() -> None:
    day = Day(is_early=True)
    day.pass_by(3, frames_each_look=1)
    day.is_answering = False
    day.until_suspect(frames_each_look=1)
    day.vigil.heard_at = day.now
    day.is_answering = True
    day.pass_by(3, frames_each_look=1)
    assert not day.vigil.is_suspect


def test_our_own_pause_is_not_the_peers_silence() -> None:
    vigil = Vigil(is_early=True)
    vigil.start(0.0)
    vigil.ping(0.0, 1)
    vigil.pause(0.0, is_waiting=False)
    assert vigil.look(30.0) == 0.0
    assert not vigil.is_suspect


def test_a_short_pause_of_ours_asks_again_before_it_suspects() -> None:
    vigil = Vigil(is_early=True)
    vigil.start(0.0)
    vigil.pong(0.1, vigil.ping(0.0, 1) or 0)
    vigil.heard_at = 0.1
    assert vigil.ping(1.0, 2) is not None
    vigil.pause(1.0, is_waiting=False)
    vigil.look(1.8)
    assert not vigil.is_suspect


def test_a_new_path_is_measured_anew() -> None:
    day = Day(is_early=True)
    day.pass_by(5)
    day.vigil.start(day.now)
    assert day.vigil.round_trip_s == 0
    assert day.vigil.ping(day.now, 0) is not None


def test_the_pong_of_a_ping_from_before_a_path_began_measures_nothing() -> None:
    vigil = Vigil(is_early=True)
    value = vigil.ping(100.0, 0)
    assert value is not None
    vigil.start(100.01)
    vigil.pong(100.1, value)
    assert vigil.round_trip_s == 0


def test_pings_that_nothing_follows_are_counted() -> None:
    day = Day(is_early=False)
    day.pass_by(20)
    assert day.vigil.missed_pings == 0
    day.is_answering = False
    day.pass_by(7)
    assert day.vigil.missed_pings >= 2
    day.is_answering = True
    day.pass_by(3)
    missed = day.vigil.missed_pings
    day.pass_by(20)
    assert day.vigil.missed_pings == missed
