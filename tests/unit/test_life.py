"""What a serving peer does from joining to leaving."""

from __future__ import annotations

from random import Random

import pytest

from shardp2p.errors import LocalProtocolError
from shardp2p.swarm.life import (
    DRAIN_S,
    MAX_MOVES,
    MAX_RETRY_S,
    RETRY_S,
    REVIEW_S,
    SETTLE_S,
    SYNC_S,
    Choose,
    Command,
    Drain,
    Leave,
    Life,
    Load,
    Seat,
)
from shardp2p.vocabulary import LayerRange, ModelId

FRONT = (Seat(ModelId("smollm2"), "ab" * 32, LayerRange(0, 15)),)
BACK = (Seat(ModelId("smollm2"), "ab" * 32, LayerRange(15, 30)),)


def commands(life: Life) -> list[Command]:
    return list(iter(life.next_command, None))


def placing(now: float = 0.0) -> Life:
    life = Life(now, is_founder=True)
    life.tick(now)
    assert commands(life) == [Choose()]
    return life


def loading(now: float = 0.0) -> Life:
    life = placing(now)
    life.chosen(FRONT, "nobody holds them", now)
    life.tick(now + SETTLE_S)
    assert commands(life) == [Choose()]
    life.chosen(FRONT, "nobody holds them", now + SETTLE_S)
    assert commands(life) == [Load(FRONT)]
    return life


def serving(now: float = 0.0) -> Life:
    life = loading(now)
    life.loaded(now + 5)
    return life


def test_a_peer_waits_until_somebody_answers_and_says_why() -> None:
    life = Life(0.0)
    life.tick(1e6)
    assert life.state == "joining"
    assert commands(life) == []
    life.not_joined("192.0.2.1 refuses connections")
    assert life.waits_for == "192.0.2.1 refuses connections"


def test_a_peer_looks_for_a_place_once_it_has_heard_the_swarm() -> None:
    life = Life(0.0)
    life.connected(7.0)
    life.tick(7.0 + SYNC_S / 2)
    assert commands(life) == []
    life.connected(7.0 + SYNC_S / 2)
    life.tick(7.0 + SYNC_S)
    assert (life.state, commands(life)) == ("placing", [Choose()])


def test_a_founder_waits_for_nobody() -> None:
    assert placing().state == "placing"


def test_a_choice_stands_for_a_while_before_it_is_loaded() -> None:
    life = placing()
    life.chosen(FRONT, "nobody holds them", 0.0)
    assert (life.state, life.seats) == ("placing", FRONT)
    life.tick(SETTLE_S / 2)
    assert commands(life) == []
    life.tick(SETTLE_S)
    assert commands(life) == [Choose()]
    life.chosen(FRONT, "nobody holds them", SETTLE_S)
    assert (life.state, commands(life)) == ("loading", [Load(FRONT)])


def test_a_peer_gives_way_a_few_times_and_then_loads() -> None:
    life = placing()
    now, places = 0.0, (FRONT, BACK, FRONT, BACK, FRONT, BACK)
    moves = -1
    for place in places:
        life.chosen(place, "others took the rest", now)
        moves += 1
        if life.state == "loading":
            break
        now += SETTLE_S
        life.tick(now)
        assert commands(life) == [Choose()]
    assert moves == MAX_MOVES + 1
    assert commands(life) == [Load(places[moves])]


def test_a_peer_without_a_place_looks_again_ever_less_often() -> None:
    life = placing()
    now, waits = 0.0, []
    for _ in range(10):
        life.chosen((), "not one layer fits", now)
        assert "not one layer fits" in life.waits_for
        assert (life.trouble, life.has_no_place) == ("no place: not one layer fits", True)
        waits.append(life.due_at - now)
        now = life.due_at
        life.tick(now)
        assert commands(life) == [Choose()]
    assert waits[:3] == [RETRY_S, 2 * RETRY_S, 4 * RETRY_S]
    assert waits[-1] == MAX_RETRY_S


def test_loading_that_fails_is_tried_again_with_the_reason() -> None:
    life = loading()
    life.failed("the disk is full", 10.0)
    assert (life.state, life.seats) == ("placing", ())
    assert "the disk is full" in life.waits_for
    assert (life.trouble, life.has_no_place) == ("loading failed: the disk is full", False)
    life.tick(10.0 + RETRY_S)
    assert commands(life) == [Choose()]


def test_progress_is_told() -> None:
    life = loading()
    life.progress(25, 100)
    assert life.waits_for == "loading layers 0:15 of smollm2: 25%"


def test_a_serving_peer_stays_where_it_is() -> None:
    life = serving()
    for turn in range(1, 5):
        now = 5 + turn * REVIEW_S
        life.tick(now)
        assert commands(life) == [Choose(is_review=True)]
        life.chosen(FRONT if turn % 2 else (), "nothing is missing", now)
        assert (life.state, life.seats, commands(life)) == ("serving", FRONT, [])


def test_a_serving_peer_moves_where_layers_are_missing_and_the_claim_settles_first() -> None:
    life = serving()
    life.tick(5 + REVIEW_S)
    commands(life)
    life.chosen(BACK, "nobody holds them", 5 + REVIEW_S)
    assert (life.state, life.seats) == ("placing", BACK)
    life.tick(5 + REVIEW_S + SETTLE_S)
    assert commands(life) == [Choose()]
    life.chosen(BACK, "nobody holds them", 5 + REVIEW_S + SETTLE_S)
    assert commands(life) == [Load(BACK)]


def test_draining_finishes_what_runs_and_then_leaves() -> None:
    life = serving()
    life.drain(20.0)
    assert (life.state, commands(life)) == ("draining", [Drain()])
    life.drained()
    assert (life.state, commands(life)) == ("left", [Leave()])


def test_a_peer_that_is_about_to_move_finishes_what_runs_before_it_leaves() -> None:
    life = serving()
    life.tick(5 + REVIEW_S)
    commands(life)
    life.chosen(BACK, "nobody holds them", 5 + REVIEW_S)
    life.drain(5.5 + REVIEW_S)
    assert (life.state, commands(life)) == ("draining", [Drain()])


def test_draining_is_bounded() -> None:
    life = serving()
    life.drain(20.0)
    commands(life)
    life.tick(20.0 + DRAIN_S)
    assert commands(life) == [Leave()]


@pytest.mark.parametrize("make", [serving, loading])
def test_a_second_word_leaves_at_once(make: type[Life]) -> None:
    life = make(0.0)
    life.drain(20.0)
    life.drain(20.5)
    assert commands(life) == [Drain(), Leave()]


def test_a_peer_that_holds_nothing_leaves_at_once() -> None:
    life = placing()
    life.drain(1.0)
    assert (life.state, commands(life)) == ("left", [Leave()])


def test_a_choice_that_nobody_asked_for_is_a_bug() -> None:
    life = serving()
    with pytest.raises(LocalProtocolError):
        life.chosen(BACK, "", 6.0)


def test_an_answer_that_comes_too_late_changes_nothing() -> None:
    life = placing()
    life.drain(1.0)
    commands(life)
    life.chosen(FRONT, "nobody holds them", 2.0)
    life.loaded(3.0)
    life.failed("too late", 3.0)
    life.drained()
    assert (life.state, commands(life)) == ("left", [])


def test_any_schedule_keeps_one_question_open_and_ends_once_told() -> None:
    for seed in range(500):
        rng = Random(seed)
        life, now, asked, left = Life(0.0, is_founder=rng.random() < 0.3), 0.0, 0, 0
        for step in range(120):
            now += rng.choice((0.0, 0.1, SYNC_S, SETTLE_S, REVIEW_S, DRAIN_S))
            for command in commands(life):
                asked += isinstance(command, Choose)
                left += isinstance(command, Leave)
            assert asked <= 1
            match rng.randrange(7):
                case 0:
                    life.connected(now)
                case 1 | 2:
                    life.tick(now)
                case 3 if asked:
                    asked = 0
                    life.chosen(rng.choice((FRONT, BACK, ())), "", now)
                case 4:
                    life.loaded(now)
                case 5:
                    life.failed("", now)
                case 6 if step > 90:
                    life.drain(now)
        for _ in range(3):
            life.drain(now)
        left += sum(isinstance(command, Leave) for command in commands(life))
        assert (life.state, left) == ("left", 1)
