"""Thousands of seeded schedules: the answer is always what the model alone would have said."""

from __future__ import annotations

import random

import pytest

from shardp2p.coordinator.commands import Limits
from tests.support.ring_model import Ring, reference

SCHEDULES = 3_000


def random_ring(seed: int) -> tuple[Ring, list[int]]:
    rng = random.Random(seed)
    prompt = [rng.randrange(50) for _ in range(rng.randint(1, 20))]
    max_tokens = rng.randint(1, 40)
    limits = Limits(
        max_chunks=rng.randint(1, 8),
        chunk_tokens=rng.randint(1, 12),
        prefill_tokens=rng.randint(1, 10),
        draft_tokens=rng.randint(0, 6),
        cache_rows=len(prompt) + max_tokens + rng.choice((0, 0, 3, 20, 500)),
    )
    stop_tokens = frozenset(rng.sample(range(50), rng.choice((0, 0, 1, 3))))
    ring = Ring(
        rng,
        prompt,
        max_tokens=max_tokens,
        stages=rng.randint(1, 4),
        limits=limits,
        accept=rng.choice((0.0, 0.5, 0.8, 1.0)),
        branches=rng.randint(1, 4),
        waits_for_draft=rng.random() < 0.5,
        stop_tokens=stop_tokens,
        needs_tokens=rng.random() < 0.3,
        loss_rate=rng.choice((0.0, 0.0, 0.01, 0.05)),
    )
    return ring, reference(prompt, max_tokens, stop_tokens)


@pytest.mark.parametrize("block", range(10))
def test_any_schedule_gives_the_reference_text(block: int) -> None:
    for seed in range(block * SCHEDULES // 10, (block + 1) * SCHEDULES // 10):
        ring, expected = random_ring(seed)
        assert ring.run() == expected, f"seed {seed}"
        assert ring.finish is not None and ring.finish.tokens == len(expected)
