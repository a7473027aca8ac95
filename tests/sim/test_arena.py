"""The arena of caches: taken at once, never handed out twice, usable to the last byte, whole again in the end."""

from __future__ import annotations

import gc
import random
from itertools import pairwise

import pytest
import torch

from shardp2p.errors import ConfigError
from shardp2p.runtime.arena import ALIGNMENT_BYTES, MOVED_BYTES, CacheArena
from shardp2p.runtime.cache import LayerShape, LayerTensors, RowBatch, RowCache

CPU = torch.device("cpu")
SHAPES = [LayerShape((2, 16), (2, 16)), LayerShape((2, 16), (1, 8), ((4,),))]
TENSORS = 5


def make_cache(rows: int, arena: CacheArena | None) -> RowCache:
    return RowCache(SHAPES, rows, torch.float32, CPU, 0, arena)


def store(cache: RowCache, count: int, value: float) -> list[torch.Tensor]:
    """Store `count` rows of `value`; what attention then sees of all rows."""
    batch = RowBatch.chain(cache.rows, count)
    cache.begin(batch)
    seen = [
        *cache.tensors.update(torch.full((1, 2, count, 16), value), torch.full((1, 2, count, 16), value), 0),
        *cache.tensors.update(torch.full((1, 2, count, 16), value), torch.full((1, 1, count, 8), value), 1),
        cache.tensors.update_indexer(torch.full((1, count, 4), value), 1),
    ]
    cache.commit(batch)
    return seen


def is_inside(tensor: torch.Tensor, arena: CacheArena) -> bool:
    return tensor.untyped_storage().data_ptr() == arena._memory.untyped_storage().data_ptr()


def assert_sound(arena: CacheArena) -> None:
    leases = arena._leases
    assert all(one.stop <= other.start for one, other in pairwise(leases))
    assert all(0 <= lease.start < lease.stop <= arena.total_bytes for lease in leases)
    assert all(lease.start % ALIGNMENT_BYTES == 0 for lease in leases)


def test_caches_from_an_arena_do_not_share_a_byte_and_hold_what_was_stored() -> None:
    arena = CacheArena(2**20, CPU)
    caches = [make_cache(50, arena) for _ in range(8)]
    for number, cache in enumerate(caches):
        store(cache, 30, float(number))
    for number, cache in enumerate(caches):
        for seen in store(cache, 20, float(number)):
            assert (seen == number).all()
            assert is_inside(seen, arena)


def test_closing_or_dropping_a_cache_gives_its_memory_back_once() -> None:
    arena = CacheArena(2**20, CPU)
    first, second = make_cache(50, arena), make_cache(70, arena)
    held = arena.total_bytes - arena.free_bytes
    assert first.bytes + second.bytes <= held <= first.bytes + second.bytes + 2 * TENSORS * ALIGNMENT_BYTES
    first.close()
    first.close()
    del second
    gc.collect()
    assert arena.free_bytes == arena.total_bytes


@pytest.mark.parametrize("seed", range(4))
def test_days_of_sessions_find_all_that_is_free_and_lose_neither_rows_nor_room(seed: int) -> None:
    rng = random.Random(seed)
    arena = CacheArena(300_001, CPU)
    alive: dict[RowCache, float] = {}
    moves = 0
    for number in range(400):
        rows = rng.randint(2, 200)
        if rng.random() < 0.7 and size_of(rows) <= arena.free_bytes:
            before = [lease.start for lease in arena._leases]
            cache = make_cache(rows, arena)
            moves += not set(before) <= {lease.start for lease in arena._leases}
            assert is_inside(cache.tensors._keys[0], arena)
            store(cache, rows // 2, float(number))
            alive[cache] = float(number)
        elif alive:
            cache = rng.choice(list(alive))
            value = alive.pop(cache)
            assert all((seen == value).all() for seen in store(cache, cache.capacity_rows - cache.rows, value))
            cache.close()
        assert_sound(arena)
    assert moves > 10
    for cache in alive:
        cache.close()
    assert arena.free_bytes == 300_001 // ALIGNMENT_BYTES * ALIGNMENT_BYTES


def test_a_cache_that_overlaps_with_where_it_goes_moves_whole() -> None:
    rows = 2 * MOVED_BYTES // (SHAPES[0].row_bytes(torch.float32) + SHAPES[1].row_bytes(torch.float32))
    arena = CacheArena(size_of(3) + size_of(rows) + size_of(5), CPU)
    first, large = make_cache(3, arena), make_cache(rows, arena)
    store(large, rows, 0.0)
    numbers = torch.arange(large.tensors._keys[1].numel(), dtype=torch.float32).view_as(large.tensors._keys[1])
    large.tensors._keys[1].copy_(numbers)
    first.close()
    assert is_inside(make_cache(8, arena).tensors._keys[0], arena)
    assert torch.equal(large.tensors._keys[1], numbers)
    assert arena._leases[0].start == 0


def test_where_there_is_no_room_the_device_gives_more() -> None:
    arena = CacheArena(size_of(30), CPU)
    inside, outside = make_cache(20, arena), make_cache(2_000, arena)
    assert all((seen == 7.0).all() and not is_inside(seen, arena) for seen in store(outside, 1_500, 7.0))
    assert all((seen == 1.0).all() and is_inside(seen, arena) for seen in store(inside, 20, 1.0))
    for cache in (inside, outside):
        cache.close()
    assert arena.free_bytes == arena.total_bytes


def test_results_do_not_depend_on_where_a_cache_lies() -> None:
    arena = CacheArena(2**20, CPU)
    store(make_cache(64, arena), 64, float("nan"))
    gc.collect()
    numbers, query = torch.Generator().manual_seed(1), torch.ones(1, 2, 3, 16)
    rows = torch.randn(2, 1, 2, 40, 16, generator=numbers)
    results = []
    for cache in (make_cache(64, arena), make_cache(64, None)):
        cache.begin(RowBatch.chain(0, 40))
        keys, values = cache.tensors.update(rows[0], rows[1], 0)
        results.append(torch.nn.functional.scaled_dot_product_attention(query, keys, values))
    assert torch.equal(results[0], results[1])


def test_an_arena_that_the_device_has_no_memory_for_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"MiB for caches are more than cpu has free; .* smaller --cache-rows"):
        CacheArena(2**62, CPU)


def size_of(rows: int) -> int:
    """What a cache takes of an arena."""
    return LayerTensors(SHAPES, rows, torch.float32, 0).size_bytes
