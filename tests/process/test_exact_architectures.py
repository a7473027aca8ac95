"""Every architecture that we claim, as a tiny random checkpoint in three stages, says what transformers says."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from shardp2p.coordinator.commands import Limits
from shardp2p.coordinator.request import GenerationRequest
from shardp2p.runtime.reference import Reference
from tests.support.checkpoints import ARCHITECTURES, make_checkpoint
from tests.support.live_ring import live_ring, run, splits
from tests.support.proposers import OracleMix, RandomWrong
from tests.support.replayed_ops import ReplayedOps

TOKENS = 32


@pytest.mark.parametrize("architecture", ARCHITECTURES)
async def test_three_stages_say_what_the_whole_model_says(architecture: str, tmp_path: Path) -> None:
    directory = make_checkpoint(architecture, tmp_path)
    rng = random.Random(architecture)
    prompt = tuple(rng.randrange(3, 300) for _ in range(20))
    expected = Reference(directory).generate(prompt, TOKENS).tokens
    assert len(expected) == TOKENS
    request = GenerationRequest(prompt, TOKENS)
    async with live_ring(directory, splits(6, 3)) as (client, plan):
        plain, _ = await run(client, plan, request)
        assert plain == expected
        limits = Limits(max_chunks=3, chunk_tokens=6, prefill_tokens=7, draft_tokens=3)
        wrong, result = await run(client, plan, request, RandomWrong(1, 300, branches=2), limits)
        assert wrong == expected
        assert sum(account.skipped_rows for account in result.accounts.values()) > 0
        mixed, result = await run(client, plan, request, OracleMix((*prompt, *expected), 0.7, 2), limits)
        assert mixed == expected
        assert result.finish is not None
        assert result.finish.laps < TOKENS * 3


@pytest.mark.parametrize("architecture", ["gemma3_text", "qwen3_moe"])
async def test_stages_that_replay_few_rows_say_what_the_whole_model_says(architecture: str, tmp_path: Path) -> None:
    directory = make_checkpoint(architecture, tmp_path)
    rng = random.Random(architecture)
    prompt = tuple(rng.randrange(3, 300) for _ in range(20))
    expected = Reference(directory).generate(prompt, TOKENS).tokens
    graphs = ReplayedOps()
    async with live_ring(directory, splits(6, 3), replays=graphs) as (client, plan):
        limits = Limits(max_chunks=3, chunk_tokens=6, prefill_tokens=7, draft_tokens=3)
        proposer = OracleMix((*prompt, *expected), 0.7, 2)
        mixed, _ = await run(client, plan, GenerationRequest(prompt, TOKENS), proposer, limits)
    assert mixed == expected
    assert graphs.replays > graphs.made
