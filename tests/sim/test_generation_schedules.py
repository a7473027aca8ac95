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
from tests.support.schedules import random_ring, run_schedules


@pytest.mark.parametrize("count", [20_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_any_schedule_gives_the_reference_text(count: int) -> None:
    happened = run_schedules(count)
    assert happened["schedules"] == count
    # What these schedules are for must really have happened.
    assert min(happened["skipped"], happened["compactions"], happened["losses"]) > 0.4 * count


@pytest.mark.parametrize("block", range(4))
def test_a_text_that_begins_with_shared_rows_goes_on_as_one_that_does_not(block: int) -> None:
    """And at the end each stage can say where the rows of the whole text lie."""
    kept = 0
    for seed in range(block * 50, (block + 1) * 50):
        rng = random.Random(seed)
        prompt = [rng.randrange(50) for _ in range(rng.randint(2, 40))]
        shared = [rng.randrange(len(prompt)) for _ in range(rng.randint(1, 3))]
        ring = Ring(
            rng,
            prompt,
            max_tokens=32,
            stages=len(shared),
            limits=Limits(max_chunks=4, chunk_tokens=8, prefill_tokens=8, draft_tokens=4, cache_rows=100),
            branches=3,
            needs_tokens=seed % 2 == 0,
            loss_rate=rng.choice((0.0, 0.02)),
            commit_loss=rng.choice((0.0, 0.5)),
            shared=shared,
        )
        assert ring.run() == reference(prompt, 32), f"seed {seed}"
        text = tuple(ring.generation.text)
        for stage in ring.stages:
            rows = stage.session.text_rows()
            assert [stage.rows[row][0] for row in rows] == [text[: at + 1] for at in range(len(rows))]
            kept += len(rows)
    assert kept > 50 * 20


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
