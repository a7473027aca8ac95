"""What fits into the memory that a peer offers, against plain sums; and what it says when nothing does."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardp2p.errors import ConfigError, LocalProtocolError
from shardp2p.runtime.budget import Budget
from shardp2p.vocabulary import LayerRange, ModelId, parse_bytes

MIB = 2**20


@dataclass(frozen=True)
class Sizes:
    """Layers of some sizes; the first and the last bring more."""

    sizes: tuple[int, ...]
    ends: tuple[int, int] = (0, 0)
    row: int = 1

    @property
    def model(self) -> ModelId:
        return ModelId("toy")

    @property
    def layers(self) -> int:
        return len(self.sizes)

    def weight_bytes(self, layers: LayerRange) -> int:
        ends = (layers.start == 0) * self.ends[0] + (layers.stop == self.layers) * self.ends[1]
        return sum(self.sizes[layers.start : layers.stop]) + ends

    def row_bytes(self, layers: LayerRange) -> int:
        return self.row * len(layers)


def test_a_fifth_stays_free_and_the_cache_counts() -> None:
    needs = Sizes((100,) * 10, row=2)
    budget = Budget(1_000, cache_rows=50)
    assert (budget.headroom_bytes, budget.free_bytes) == (200, 800)
    assert budget.need_bytes(needs, LayerRange(0, 4)) == 4 * (100 + 50 * 2)
    assert budget.fits(needs, LayerRange(2, 6))
    assert not budget.fits(needs, LayerRange(2, 7))
    assert not Budget(999, 50).fits(needs, LayerRange(2, 6))


def test_blocks_share_one_budget() -> None:
    needs = Sizes((100,) * 10, row=2)
    budget = Budget(1_000, 50).with_block(needs, LayerRange(0, 3))
    assert budget.free_bytes == 200
    assert budget.fits_layers(needs) == 1
    with pytest.raises(ConfigError, match=r"0\.0 MiB are in use"):
        budget.with_block(needs, LayerRange(5, 7))
    assert budget.with_block(needs, LayerRange(5, 6)).free_bytes == 0


@given(
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=12),
    ends=st.tuples(st.integers(0, 100), st.integers(0, 100)),
    memory=st.integers(1, 600),
    rows=st.integers(1, 9),
)
def test_how_many_layers_fit_is_what_trying_every_range_says(
    sizes: list[int], ends: tuple[int, int], memory: int, rows: int
) -> None:
    needs, budget = Sizes(tuple(sizes), ends), Budget(memory, rows)
    count = len(sizes)
    by_length = {
        length: [budget.fits(needs, LayerRange(start, start + length)) for start in range(count - length + 1)]
        for length in range(1, count + 1)
    }
    assert budget.fits_layers(needs) <= count
    assert budget.fits_layers(needs) == max((n for n, fits in by_length.items() if any(fits)), default=0)
    assert budget.fits_layers(needs, everywhere=True) == max(
        (n for n, fits in by_length.items() if all(fits)), default=0
    )
    for start in range(count):
        longest = budget.longest_from(needs, start)
        stop = start if longest is None else longest.stop
        assert all(budget.fits(needs, LayerRange(start, end)) == (end <= stop) for end in range(start + 1, count + 1))


def test_what_does_not_fit_says_how_many_bytes_are_missing_and_what_would_do() -> None:
    needs = Sizes((10 * MIB,) * 6, ends=(40 * MIB, 30 * MIB), row=1024)
    budget = Budget(64 * MIB, cache_rows=1024)
    with pytest.raises(ConfigError) as caught:
        budget.require(needs, LayerRange(1, 6))
    missing = 5 * 10 * MIB + 30 * MIB + 5 * MIB - budget.free_bytes
    assert f"are {math.ceil(10 * missing / MIB) / 10} MiB more than the 51.2 MiB" in caught.value.message
    remedy = "layers 1:6 of toy do not fit: take --layers 1:5, offer --memory 107MiB or more; "
    assert caught.value.message.startswith(remedy)
    assert "--cache-rows" not in caught.value.message


def test_the_ways_out_do_work_and_no_smaller_ones() -> None:
    needs = Sizes((10 * MIB,) * 4, ends=(5 * MIB, 5 * MIB), row=2048)
    budget = Budget(20 * MIB, cache_rows=10_000)
    with pytest.raises(ConfigError, match="not even one layer of toy fits") as caught:
        budget.require_any(needs)
    memory = re.search(r"--memory (\w+) or more", caught.value.message)
    rows = re.search(r"--cache-rows to at most (\d+)", caught.value.message)
    assert memory is not None
    assert rows is not None
    size = parse_bytes(memory[1])
    Budget(size, 10_000).require_any(needs)
    with pytest.raises(ConfigError):
        Budget(size - MIB, 10_000).require_any(needs)
    Budget(20 * MIB, int(rows[1])).require_any(needs)
    with pytest.raises(ConfigError):
        Budget(20 * MIB, int(rows[1]) + 1).require_any(needs)


def test_one_layer_that_fits_is_enough() -> None:
    needs = Sizes((30, 5, 30), row=1)
    Budget(10, 1).require_any(needs)
    assert Budget(10, 1).longest_from(needs, 1) == LayerRange(1, 2)
    assert Budget(10, 1).longest_from(needs, 0) is None


@pytest.mark.parametrize("wrong", [(0, 1, 0), (1, 0, 0), (1, 1, -1)])
def test_an_empty_budget_is_our_bug(wrong: tuple[int, int, int]) -> None:
    with pytest.raises(LocalProtocolError):
        Budget(*wrong)
