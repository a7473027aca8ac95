"""Thousands of seeded schedules: the answer is always what the model alone would have said.

Each draws a prompt, limits, a proposer and a stop rule, and then what happens next, again and again: chunks, commits,
verdicts and drafts overtake each other, control messages lag or are lost, stages lose their caches.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from shardp2p.coordinator.commands import Limits
from shardp2p.stage.session import Work
from tests.support.ring_model import Corrupt, Ring, reference

SCHEDULES = 2_500
BLOCKS = 10


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


@pytest.mark.parametrize("block", range(BLOCKS))
def test_any_schedule_gives_the_reference_text(block: int) -> None:
    skipped = compactions = losses = 0
    for seed in range(block * SCHEDULES // BLOCKS, (block + 1) * SCHEDULES // BLOCKS):
        ring, expected = random_ring(seed)
        assert ring.run() == expected, f"seed {seed}"
        assert ring.finish is not None
        assert ring.finish.tokens == len(expected)
        skipped, compactions, losses = skipped + ring.skipped, compactions + ring.compactions, losses + ring.losses
    # What these schedules are for must really have happened.
    assert min(skipped, compactions, losses) > 100


@pytest.mark.parametrize("seed", range(12))
def test_long_texts_with_many_dead_rows_are_compacted_again_and_again(seed: int) -> None:
    rng = random.Random(seed)
    prompt = [rng.randrange(50) for _ in range(rng.randint(1, 60))]
    ring = Ring(
        rng,
        prompt,
        max_tokens=250,
        stages=2,
        limits=Limits(max_chunks=4, chunk_tokens=10, draft_tokens=4, cache_rows=len(prompt) + 250 + seed * 10),
        accept=0.5,
        branches=3,
        loss_rate=0.001,
        needs_tokens=seed % 2 == 0,
    )
    assert ring.run() == reference(prompt, 250)
    assert ring.compactions > 4


def wrong_parent(work: Work) -> Work:
    """The last row hangs below the row before its parent, and says so in its position."""
    if not work.rows or work.cache_parents[-1] < 1:
        return work
    return replace(work, cache_parents=(*work.cache_parents[:-1], work.cache_parents[-1] - 1))


def lost_row(work: Work) -> Work:
    return replace(work, keep=work.keep._replace(rows=work.keep.rows[:-1])) if work.keep else work


def swapped_inputs(work: Work) -> Work:
    return replace(work, inputs=work.inputs[::-1])


def computed_twice(work: Work) -> Work:
    return replace(work, inputs=(work.inputs[0],) * len(work.inputs)) if work.inputs else work


FAULTS: list[Callable[[Work], Work]] = [wrong_parent, lost_row, swapped_inputs, computed_twice]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_stage_that_works_wrongly_is_noticed(fault: Corrupt) -> None:
    noticed = 0
    for seed in range(40):
        ring, expected = random_ring(seed, fault)
        try:
            noticed += ring.run(2_000) != expected
        except (AssertionError, IndexError):
            noticed += 1
    assert noticed > 10
