"""A whole ring over memory streams says what the model alone would say, however slow its links are."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from shardp2p.coordinator.commands import Limits, Proposer
from shardp2p.runtime.draft import PromptLookup
from shardp2p.vocabulary import SamplingParams
from tests.support.fake_block import fake_reference
from tests.support.proposers import OracleMix, RandomWrong
from tests.support.sim_ring import SimRing, prompt, request

SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, seed=11)
PENALISED = SamplingParams(
    temperature=0.9, top_k=20, repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=0.3, seed=5
)


def proposers(truth: tuple[int, ...]) -> dict[str, Proposer | None]:
    return {
        "none": None,
        "lookup": PromptLookup(),
        "wrong": RandomWrong(1, 60),
        "oracle": OracleMix(truth, 0.8, 2),
    }


@pytest.mark.parametrize("kind", ["none", "lookup", "wrong", "oracle"])
@pytest.mark.parametrize("sampling", [SamplingParams(), SAMPLED, PENALISED], ids=["greedy", "sampled", "penalised"])
async def test_any_split_and_any_draft_give_the_reference(
    kind: str, sampling: SamplingParams, autojump_clock: MockClock
) -> None:
    expected = fake_reference(prompt(), 24, sampling=sampling)
    for stages in (1, 2, 3, 4):
        for depth in (1, 4):
            async with trio.open_nursery() as nursery:
                ring = SimRing(nursery, stages, delay_s=0.02)
                tokens, result = await ring.generate(
                    request(24, sampling=sampling),
                    proposer=proposers(prompt() + expected)[kind],
                    limits=Limits(max_chunks=depth, prefill_tokens=5, chunk_tokens=6, draft_tokens=4),
                )
                assert tokens == expected
                assert result.finish is not None
                assert result.finish.tokens == 24
                assert set(result.accounts) == set(range(stages))
                await ring.assert_settled()
