"""Seeded schedules of one generation, for as many processes as there are cores."""

from __future__ import annotations

import multiprocessing
import os
import random
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed

from shardp2p.coordinator.commands import Limits
from tests.support.ring_model import Corrupt, Ring, reference

BLOCK = 250
"""Schedules that one process runs at a time."""


def random_ring(seed: int, corrupt: Corrupt = lambda work: work) -> tuple[Ring, list[int]]:
    rng = random.Random(seed)
    prompt = [rng.randrange(50) for _ in range(rng.choice((1, 1, 2, 5, 12, 20)))]
    max_tokens = rng.randint(1, 32)
    limits = Limits(
        max_chunks=rng.randint(1, 8),
        chunk_tokens=rng.randint(1, 12),
        prefill_tokens=rng.randint(1, 10),
        draft_tokens=rng.randint(0, 6),
        cache_rows=len(prompt) + max_tokens + rng.choice((0, 0, 3, 20, 500)),
        draft_rounds=rng.choice((0, 0, 1, 3)),
        is_paced=rng.random() < 0.7,
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
        control_lag=rng.choice((0.0, 0.5, 0.95)),
        commit_loss=rng.choice((0.0, 0.0, 0.5, 1.0)),
        corrupt=corrupt,
    )
    return ring, reference(prompt, max_tokens, stop_tokens)


def run_schedules(count: int) -> Counter[str]:
    """Run the schedules of the first `count` seeds; how often what they are for has happened.

    Raises: AssertionError that names the seed, when an answer is not the reference.
    """
    happened: Counter[str] = Counter()
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=spawn) as pool:
        blocks = [pool.submit(_run_block, first, min(first + BLOCK, count)) for first in range(0, count, BLOCK)]
        try:
            for block in as_completed(blocks):
                happened += block.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    return happened


def _run_block(first: int, end: int) -> Counter[str]:
    happened: Counter[str] = Counter()
    for seed in range(first, end):
        ring, expected = random_ring(seed)
        assert ring.run() == expected, f"seed {seed}"
        assert ring.finish is not None
        assert ring.finish.tokens == len(expected), f"seed {seed}"
        happened += Counter(
            schedules=1, skipped=ring.skipped, compactions=ring.compactions, losses=ring.losses, laps=ring.finish.laps
        )
    return happened
