"""Parts of a wide chunk fit into the time until somebody who decodes is back."""

from __future__ import annotations

from math import inf

import pytest

from shardp2p.stage.slicing import LATE, LEAST_ROWS, MOST_STRETCH, Slicing, Step, room_s

BASE_S, ROW_S = 0.020, 0.001


def informed(base_s: float = BASE_S, row_s: float = ROW_S) -> Slicing:
    """One that has seen forwards of several widths."""
    slicing = Slicing()
    for rows in (1, 2, 16, 40, 8, 1, 100):
        slicing.note(rows, base_s + row_s * rows)
    return slicing


def step(left: int = 1000, room: float = inf, *, others_wait: bool = False, was_put_off: bool = False) -> Step:
    return informed().step(left, room, others_wait=others_wait, was_put_off=was_put_off)


@pytest.mark.parametrize("room", [0.037, 0.039, 0.041])  # of which a row takes half
def test_a_part_fits_into_the_room(room: float) -> None:
    rows = step(room=room).rows
    assert BASE_S + ROW_S * rows <= room + 1e-9
    assert BASE_S + ROW_S * (rows + 2) > room


def test_a_part_is_no_wider_than_a_mistake_may_cost() -> None:
    rows = step(room=10.0).rows
    assert rows == step(room=0.5).rows
    assert BASE_S + ROW_S * rows <= MOST_STRETCH * (BASE_S + ROW_S)


def test_who_waits_goes_first_and_only_once() -> None:
    assert step(others_wait=True) == Step(0)
    assert step(others_wait=True, was_put_off=True).rows >= LEAST_ROWS


def test_too_little_room_is_waited_for_in_bounds_and_only_once() -> None:
    least_s = BASE_S + ROW_S * LEAST_ROWS
    for room in (-0.01, 0.0, 0.01, 0.03):
        chosen = step(room=room)
        assert chosen.rows == 0
        assert room <= chosen.wait_s <= least_s + 1e-9
        assert step(room=room, was_put_off=True).rows == LEAST_ROWS


def test_where_nobody_is_known_to_come_a_part_takes_as_long_again_as_decoding() -> None:
    assert step().rows == pytest.approx(21, abs=1)
    assert informed(0.005, 0.00001).step(1000, inf, others_wait=False, was_put_off=False).rows >= 400  # a GPU


def test_the_rest_of_a_chunk_is_no_crumb() -> None:
    for left in range(1, 400):
        rows = step(left, 0.1).rows
        assert rows == left or left - rows >= rows / 2


def test_nothing_is_known_at_first() -> None:
    assert Slicing().step(1000, inf, others_wait=False, was_put_off=False).rows == LEAST_ROWS
    assert Slicing().step(1000, 0.5, others_wait=False, was_put_off=False).rows == LEAST_ROWS


def test_the_room_ends_with_the_first_who_is_not_overdue() -> None:
    assert room_s(10.0, []) == inf
    assert room_s(10.0, [(9.5, inf)]) == inf
    assert room_s(10.0, [(9.9, 0.4), (9.8, 0.5)]) == pytest.approx(0.3)
    assert room_s(10.0, [(9.0, 0.9)]) == pytest.approx(-0.1)
    assert room_s(10.0, [(9.0, 1.0 / LATE - 0.01)]) == inf
