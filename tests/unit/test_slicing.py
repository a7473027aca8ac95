"""Parts of a wide chunk are as wide as takes little longer than decoding does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shardp2p.stage.slicing import FIRST_ROWS, LEAST_ROWS, MOST_ROWS, STRETCH, SliceWidth


def settled(cost_s: Callable[[int], float], parts: int = 60) -> SliceWidth:
    """The width after some forwards whose time is `cost_s` of their rows."""
    width = SliceWidth()
    for _ in range(parts):
        width.note_narrow(cost_s(1))
        width.note_slice(width.rows, cost_s(width.rows))
    return width


@pytest.mark.parametrize(
    ("base_s", "row_s", "rows"),
    [
        (0.020, 0.001, 11.5),  # a CPU
        (0.020, 0.0001, 101),
        (0.005, 0.00001, 251),  # a GPU
    ],
)
def test_the_width_settles_where_a_part_takes_half_as_long_again(base_s: float, row_s: float, rows: float) -> None:
    found = settled(lambda n: base_s + row_s * n).rows
    assert rows / 1.5 <= found <= rows * 1.5


def test_the_width_stays_within_its_bounds() -> None:
    assert settled(lambda n: 0.001 * n).rows == LEAST_ROWS
    assert settled(lambda n: 0.001).rows == MOST_ROWS


def test_nothing_is_learned_before_it_is_known_what_decoding_takes() -> None:
    width = SliceWidth()
    width.note_slice(FIRST_ROWS, 100.0)
    assert width.rows == FIRST_ROWS


def test_a_last_part_of_other_width_says_nothing() -> None:
    width = SliceWidth()
    width.note_narrow(1.0)
    width.note_slice(FIRST_ROWS // 2, 100.0)
    assert width.rows == FIRST_ROWS
    width.note_slice(FIRST_ROWS, STRETCH + 0.1)
    assert width.rows < FIRST_ROWS


def test_parts_cover_a_chunk_and_none_is_much_smaller_than_the_others() -> None:
    width = SliceWidth()
    for rows in range(FIRST_ROWS + 1, 300):
        at, sizes = 0, list[int]()
        while at < rows:
            end = width.end_of_part(at, rows)
            sizes.append(end - at)
            at = end
        assert at == rows
        assert min(sizes) >= FIRST_ROWS / 2
        assert max(sizes) < 1.5 * FIRST_ROWS
