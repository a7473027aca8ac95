"""The arena of caches: taken at once, never handed out twice, whole again when all is given back."""

from __future__ import annotations

import gc
import random

import pytest
import torch

from shardp2p.errors import ConfigError, LocalProtocolError
from shardp2p.runtime.arena import ALIGNMENT_BYTES, CacheArena, Piece
from shardp2p.runtime.cache import LayerShape, RowBatch, RowCache

CPU = torch.device("cpu")
SHAPES = [LayerShape((2, 16), (2, 16)), LayerShape((2, 16), (1, 8), ((4,),))]


def make_cache(rows: int, arena: CacheArena | None) -> RowCache:
    return RowCache(SHAPES, rows, torch.float32, CPU, 0, arena)


def run(cache: RowCache, count: int, value: float) -> list[torch.Tensor]:
    """Store `count` rows of `value`; what attention then sees."""
    batch = RowBatch.chain(cache.rows, count)
    cache.begin(batch)
    seen = [
        *cache.tensors.update(torch.full((1, 2, count, 16), value), torch.full((1, 2, count, 16), value), 0),
        *cache.tensors.update(torch.full((1, 2, count, 16), value), torch.full((1, 1, count, 8), value), 1),
        cache.tensors.update_indexer(torch.full((1, count, 4), value), 1),
    ]
    cache.commit(batch)
    return seen


def test_caches_from_an_arena_do_not_share_a_byte_and_hold_what_was_stored() -> None:
    arena = CacheArena(2**20, CPU)
    caches = [make_cache(50, arena) for _ in range(8)]
    for number, cache in enumerate(caches):
        run(cache, 30, float(number))
    for number, cache in enumerate(caches):
        for seen in run(cache, 20, float(number)):
            assert (seen == number).all()
            assert seen.untyped_storage().data_ptr() == arena._memory.untyped_storage().data_ptr()


def test_closing_or_dropping_a_cache_gives_its_memory_back_once() -> None:
    arena = CacheArena(2**20, CPU)
    first, second = make_cache(50, arena), make_cache(70, arena)
    held = arena.total_bytes - arena.free_bytes
    assert first.bytes + second.bytes <= held <= first.bytes + second.bytes + 10 * ALIGNMENT_BYTES
    first.close()
    first.close()
    del second
    gc.collect()
    assert arena.free_bytes == arena.total_bytes
    assert arena._gaps == [Piece(0, arena.total_bytes)]


def test_days_of_sessions_lose_nothing() -> None:
    rng = random.Random(3)
    arena = CacheArena(2**20, CPU)
    alive: list[RowCache] = []
    for _ in range(600):
        if alive and rng.random() < 0.5:
            alive.pop(rng.randrange(len(alive))).close()
        else:
            alive.append(make_cache(rng.randint(1, 200), arena))
        assert arena.free_bytes == sum(gap.stop - gap.start for gap in arena._gaps)
        assert all(one.stop < other.start for one, other in zip(arena._gaps, arena._gaps[1:], strict=False))
    for cache in alive:
        cache.close()
    assert arena.free_bytes == arena.total_bytes
    assert arena._gaps == [Piece(0, arena.total_bytes)]


def test_what_fits_no_gap_comes_from_the_device() -> None:
    arena = CacheArena(64 * 1024, CPU)
    small, large = make_cache(20, arena), make_cache(2_000, arena)
    assert all((seen == 7.0).all() for seen in run(large, 1_500, 7.0))
    assert all((seen == 1.0).all() for seen in run(small, 20, 1.0))
    small.close()
    large.close()
    assert arena.free_bytes == arena.total_bytes


def test_a_cache_that_cannot_be_made_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = CacheArena(64 * 1024, CPU)

    def refuse(*_: object, **__: object) -> torch.Tensor:
        raise RuntimeError("not enough memory")

    monkeypatch.setattr(torch, "empty", refuse)
    with pytest.raises(RuntimeError):
        make_cache(200, arena)
    gc.collect()
    assert arena.free_bytes == arena.total_bytes


def test_results_do_not_depend_on_where_a_cache_lies() -> None:
    arena = CacheArena(2**20, CPU)
    run(make_cache(64, arena), 64, float("nan"))
    gc.collect()
    ours, plain = make_cache(64, arena), make_cache(64, None)
    for cache in (ours, plain):
        torch.manual_seed(1)
        for first in range(0, 40, 10):
            batch = RowBatch.chain(first, 10)
            cache.begin(batch)
            keys, values = cache.tensors.update(torch.randn(1, 2, 10, 16), torch.randn(1, 2, 10, 16), 0)
            cache.commit(batch)
    query = torch.randn(1, 2, 3, 16)
    attend = torch.nn.functional.scaled_dot_product_attention
    results = [
        attend(query, cache.tensors._keys[0][:, :, :40], cache.tensors._values[0][:, :, :40]) for cache in (ours, plain)
    ]
    assert torch.equal(results[0], results[1])
    assert keys.shape == values.shape == (1, 2, 40, 16)


def test_bad_requests_are_refused() -> None:
    with pytest.raises(LocalProtocolError):
        CacheArena(0, CPU)
    with pytest.raises(ConfigError, match=r"MiB for caches are more than cpu has free; .* smaller --cache-rows"):
        CacheArena(2**62, CPU)
    arena = CacheArena(4 * ALIGNMENT_BYTES, CPU)
    taken = arena.take((10,), torch.float32)
    assert taken is not None
    arena.give_back([taken[1]])
    assert arena.free_bytes == arena.total_bytes
    arena.give_back([taken[1]])
    with pytest.raises(LocalProtocolError, match="twice"):
        arena.take((10,), torch.float32)
