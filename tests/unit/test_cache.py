"""The row cache: ancestor masks against a walk along the paths, compaction, bounds."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shardp2p.errors import LocalProtocolError
from shardp2p.runtime.cache import LayerShape, RowBatch, RowCache
from shardp2p.runtime.masks import Ancestry


class NaiveTree:
    """Parents and positions in lists; every question is answered by walking."""

    def __init__(self) -> None:
        self.parents: list[int] = []
        self.positions: list[int] = []

    def ancestors(self, row: int) -> set[int]:
        found = set()
        while row >= 0:
            found.add(row)
            row = self.parents[row]
        return found

    def mask(self, count: int, window: int) -> list[list[bool]]:
        rows = range(len(self.parents))
        lines = []
        for new in rows[len(rows) - count :]:
            above = self.ancestors(new)
            near = [not window or self.positions[new] - self.positions[row] < window for row in rows]
            lines.append([row in above and near[row] for row in rows])
        return lines

    def keep(self, rows: list[int]) -> None:
        self.parents = [rows.index(p) if (p := self.parents[row]) >= 0 else -1 for row in rows]
        self.positions = [self.positions[row] for row in rows]


def random_batch(rng: random.Random, tree: NaiveTree, chain_bias: float) -> RowBatch:
    parents, positions = [], []
    for _ in range(rng.randint(1, 6)):
        last = len(tree.parents) - 1
        parent = last if rng.random() < chain_bias else rng.randint(-1, last)
        position = tree.positions[parent] + 1 if parent >= 0 else 0
        tree.parents.append(parent)
        tree.positions.append(position)
        parents.append(parent)
        positions.append(position)
    return RowBatch(tuple(parents), tuple(positions))


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**9), chain_bias=st.sampled_from([0.3, 0.8, 0.97]))
def test_masks_equal_a_walk_along_the_paths_through_appends_cuts_and_compactions(seed: int, chain_bias: float) -> None:
    rng = random.Random(seed)
    tree, ancestry = NaiveTree(), Ancestry(200)
    for _ in range(12):
        batch = random_batch(rng, tree, chain_bias)
        count = len(batch.parents)
        for window in (0, 3):
            assert ancestry.mask(batch, window).tolist() == tree.mask(count, window)
        is_chain = ancestry.check(batch)
        assert is_chain == (tree.parents == list(range(-1, len(tree.parents) - 1)))
        ancestry.append(batch)
        if rng.random() < 0.3:
            leaves = rng.sample(range(ancestry.rows), min(2, ancestry.rows))
            rows = sorted(set().union(*(tree.ancestors(leaf) for leaf in leaves)))
            # A head that is kept as it is need not be listed.
            head = rng.randint(0, next(at for at in range(len(rows) + 1) if rows[at : at + 1] != [at]))
            ancestry.keep(rows[head:], head)
            tree.keep(rows)
        elif rng.random() < 0.2:
            rows_left = rng.randint(0, ancestry.rows)
            ancestry.truncate(rows_left)
            del tree.parents[rows_left:], tree.positions[rows_left:]
        assert ancestry.rows == len(tree.parents)
        assert ancestry.positions[: ancestry.rows].tolist() == tree.positions


def test_a_simple_chain_stores_no_ancestry() -> None:
    ancestry = Ancestry(5000)
    for first in range(0, 4000, 500):
        batch = RowBatch.chain(first, 500)
        assert ancestry.check(batch)
        ancestry.append(batch)
    assert ancestry.chain == 4000
    assert ancestry._bits == []


@pytest.mark.parametrize(
    ("parents", "positions"),
    [
        ((), ()),
        ((2,), (3, 4)),
        ((3,), (3,)),
        ((-2,), (0,)),
        ((2,), (4,)),
        ((2, 3), (3, 3)),
        ((-1,), (-1,)),
    ],
    ids=["empty", "lengths", "own_row", "below_none", "position", "position_in_batch", "negative_position"],
)
def test_impossible_batches_are_refused(parents: tuple[int, ...], positions: tuple[int, ...]) -> None:
    cache = make_cache(8)
    append(cache, RowBatch.chain(0, 3))
    with pytest.raises(LocalProtocolError):
        cache.begin(RowBatch(parents, positions))
    assert cache.rows == 3


def test_cache_is_taken_at_once_and_never_exceeded() -> None:
    cache = make_cache(4)
    assert cache.bytes == 4 * 4 * (2 * (2 * 3) + 2 * (1 * 5) + 7)
    tensors = cache.tensors
    held = (*tensors._keys, *tensors._values, *(other for others in tensors._others for other in others))
    assert sum(tensor.nbytes for tensor in held) == cache.bytes
    append(cache, RowBatch.chain(0, 3))
    with pytest.raises(LocalProtocolError, match="2 more rows"):
        cache.begin(RowBatch.chain(3, 2))
    append(cache, RowBatch.chain(3, 1))
    assert cache.rows == 4


def test_rows_that_are_not_committed_do_not_count() -> None:
    cache = make_cache(4)
    cache.begin(RowBatch.chain(0, 3))
    assert cache.rows == 0
    append(cache, RowBatch.chain(0, 2))
    assert cache.rows == 2


@pytest.mark.parametrize(("rows", "first"), [([0, 2, 4], 0), ([2, 4], 1)])
def test_compaction_moves_the_kept_rows_of_every_layer(rows: list[int], first: int) -> None:
    cache = make_cache(8)
    append(cache, RowBatch((-1, 0, 0, 1, 2), (0, 1, 1, 2, 2)))
    cache.keep(rows, first)
    assert cache.rows == 3
    for layer in (5, 6):
        append(cache, RowBatch((2,), (3,)), layers=(layer,), commit=False)
        keys, values = cache.tensors.update(torch.full((1, 2, 1, 3), 9.0), torch.full((1, 1, 1, 5), 9.0), layer)
        assert keys[0, 0, :, 0].tolist() == [0, 2, 4, 9]
        assert values[0, 0, :, 0].tolist() == [0, 2, 4, 9]
    others = cache.tensors.update_indexer(torch.full((1, 1, 7), 9.0), 6)
    assert others[0, :, 0].tolist() == [0, 2, 4, 9]


def test_another_session_begins_with_copies_of_rows_as_one_chain() -> None:
    donor, cache = make_cache(8), make_cache(4)
    append(donor, RowBatch((-1, 0, 1, 1, 3), (0, 1, 2, 2, 3)))
    cache.copy_from(donor, [0, 1, 3])
    append(donor, RowBatch((4,), (4,)))
    assert (cache.rows, cache.ancestry.chain) == (3, 3)
    for layer in (5, 6):
        append(cache, RowBatch((2,), (3,)), layers=(layer,), commit=False)
        keys, values = cache.tensors.update(torch.full((1, 2, 1, 3), 9.0), torch.full((1, 1, 1, 5), 9.0), layer)
        assert keys[0, 0, :, 0].tolist() == [0, 1, 3, 9]
        assert values[0, 0, :, 0].tolist() == [0, 1, 3, 9]
    others = cache.tensors.update_indexer(torch.full((1, 1, 7), 9.0), 6)
    assert others[0, :, 0].tolist() == [0, 1, 3, 9]


@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4], [0, 5], [-1]], ids=["too many", "beyond", "before"])
def test_rows_that_cannot_be_copied_change_nothing(rows: list[int]) -> None:
    donor, cache = make_cache(8), make_cache(4)
    append(donor, RowBatch.chain(0, 5))
    with pytest.raises(LocalProtocolError, match="cannot be copied"):
        cache.copy_from(donor, rows)
    assert cache.rows == 0
    append(cache, RowBatch.chain(0, 1))
    with pytest.raises(LocalProtocolError, match="cannot be copied"):
        cache.copy_from(donor, [0])


@pytest.mark.parametrize(
    ("rows", "first"),
    [([0, 3], 0), ([1, 0], 0), ([0, 0], 0), ([0, 9], 0), ([-1], 0), ([1, 2], 2), ([], 5), ([], -1), ([3], 1)],
    ids=["orphan", "order", "twice", "far", "none", "listed", "beyond", "before", "orphan behind"],
)
def test_impossible_compactions_change_nothing(rows: list[int], first: int) -> None:
    cache = make_cache(8)
    batch = RowBatch((-1, 0, 1, 1), (0, 1, 2, 2))
    append(cache, batch)
    with pytest.raises(LocalProtocolError):
        cache.keep(rows, first)
    assert cache.rows == 4
    mask = cache.ancestry.mask(RowBatch((3,), (3,)))
    assert np.array_equal(mask, [[True, True, False, True, True]])


def test_cut_beyond_the_rows_is_refused() -> None:
    cache = make_cache(8)
    append(cache, RowBatch.chain(0, 2))
    with pytest.raises(LocalProtocolError, match="cannot be cut"):
        cache.truncate(3)
    cache.truncate(0)
    assert cache.rows == 0


def make_cache(capacity: int) -> RowCache:
    """Layers 5 and 6; keys of two heads, values of one, the second with a row of an index."""
    shapes = [LayerShape((2, 3), (1, 5)), LayerShape((2, 3), (1, 5), ((7,),))]
    return RowCache(shapes, capacity, torch.float32, torch.device("cpu"), 5)


def append(cache: RowCache, batch: RowBatch, layers: tuple[int, ...] = (5, 6), *, commit: bool = True) -> None:
    """Stores rows whose every number is the row's own number."""
    first, count = cache.rows, len(batch.parents)
    cache.begin(batch)
    numbers = torch.arange(first, first + count, dtype=torch.float32)
    for layer in layers:
        cache.tensors.update(numbers[:, None].expand(1, 2, count, 3), numbers[:, None].expand(1, 1, count, 5), layer)
    if 6 in layers:
        cache.tensors.update_indexer(numbers[:, None].expand(1, count, 7), 6)
    if commit:
        cache.commit(batch)
