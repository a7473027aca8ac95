"""The demo model over real processes and real connections says, token for token, what the whole model says.

Greedy answers are compared with transformers' own decoding of the whole model; sampled ones with the plain ring's,
since the noise is ours: the same for every split, proposer and depth. fp32, as the claim is. `make exact` runs it all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import pytest
import trio

from shardp2p.coordinator.request import GenerationRequest
from shardp2p.identity.keys import Identity
from shardp2p.lab.local_swarm import even_splits, local_swarm
from shardp2p.lab.ring_run import run_ring
from shardp2p.node import Node, open_node
from shardp2p.runtime.reference import Reference
from shardp2p.runtime.tokenizer import Tokenizer
from shardp2p.scheduler.plan import Plan
from shardp2p.scheduler.route import route
from shardp2p.vocabulary import ModelId, SamplingParams, Token
from tests.support.exactness import ARMS, PROMPTS, SAMPLING, SPLITS, Arm, wrong_arm
from tests.support.models import smollm2_directory

LAYERS = 30
AT_ONCE = 10
"""Answers under way at the same time: enough that the stages pack chunks of several sessions into one forward."""

WHOLE_TOKENS = 128
"""Tokens of each answer of the whole product."""

Case = tuple[int, Arm]


@dataclass
class Expectations:
    """The prompts as token ids and the answers that they must get."""

    prompts: list[tuple[Token, ...]]
    greedy: dict[int, tuple[Token, ...]]
    sampled: dict[int, tuple[Token, ...]]


def expectations(tokens: int, wanted: Iterable[int]) -> Expectations:
    directory = smollm2_directory()
    tokenizer = Tokenizer(directory)
    prompts = [tokenizer.encode_chat([{"role": "user", "content": text}]) for _, text in PROMPTS]
    reference = Reference(directory)
    return Expectations(prompts, {i: reference.generate(prompts[i], tokens).tokens for i in wanted}, {})


async def check_split(
    split: int, cases: Sequence[Case], expected: Expectations, tokens: int, note: Callable[[str], None]
) -> None:
    """Run `cases` over a ring of `split` processes and compare each answer."""
    model = str(smollm2_directory())
    async with (
        local_swarm(model, even_splits(LAYERS, split), dtype="float32", threads=1) as stages,
        open_node(Identity.generate()) as client,
    ):
        assert len({stage.pid for stage in stages}) == split
        members = await client.members([address for stage in stages for address in stage.addresses])
        plan = route(ModelId(members[0].info.model), members)
        for arm in dict.fromkeys(arm for _, arm in cases):
            limiter = trio.CapacityLimiter(AT_ONCE)
            differing: list[int] = []
            started = trio.current_time()
            async with trio.open_nursery() as nursery:
                for prompt, of in cases:
                    if of == arm:
                        nursery.start_soon(compare, client, plan, prompt, arm, expected, tokens, limiter, differing)
            assert not differing, f"{split} stages, {arm}: prompts {sorted(differing)} differ"
            seconds = trio.current_time() - started
            note(f"{split} stages, {arm}: {sum(of == arm for _, of in cases)} answers exact in {seconds:.0f} s")


async def compare(
    client: Node,
    plan: Plan,
    prompt: int,
    arm: Arm,
    expected: Expectations,
    tokens: int,
    limiter: trio.CapacityLimiter,
    differing: list[int],
) -> None:
    sampling = replace(SAMPLING, seed=1000 + prompt) if arm.is_sampled else SamplingParams()
    answers = expected.sampled if arm.is_sampled else expected.greedy
    ids = expected.prompts[prompt]
    request = GenerationRequest(ids, tokens, sampling=sampling)
    async with limiter:
        proposer = arm.make_proposer(ids, answers.get(prompt, ()), seed=prompt)
        answer = await run_ring(client, plan, request, proposer=proposer, limits=arm.limits())
    assert len(answer.tokens) == tokens
    if answers.setdefault(prompt, answer.tokens) != answer.tokens:
        differing.append(prompt)


def print_nothing(_: str) -> None:
    pass


async def test_a_spread_of_prompts_splits_and_arms_is_exact() -> None:
    tokens, prompts = 32, (1, 6, 13, 18)
    expected = expectations(tokens, prompts)
    cases = [(prompts[at % len(prompts)], arm) for at, arm in enumerate((*ARMS, wrong_arm(2), wrong_arm(5)))]
    plain_sampled = [(prompt, Arm("none", 1, True)) for prompt, arm in cases if arm.is_sampled]
    for at, split in enumerate(SPLITS):
        spread = [case for number, case in enumerate(cases) if number % len(SPLITS) == at]
        first = [(prompts[at], Arm("none", 1))] + (plain_sampled if at == 0 else [])
        await check_split(split, [*dict.fromkeys([*first, *spread])], expected, tokens, print_nothing)
    assert len(expected.sampled) == len({prompt for prompt, _ in plain_sampled})


@pytest.fixture(scope="module")
def whole() -> Expectations:
    """The whole model's answers; the sampled ones come from the first ring that gives them, for all that follow."""
    return expectations(WHOLE_TOKENS, range(len(PROMPTS)))


@pytest.mark.exact
@pytest.mark.parametrize("split", SPLITS)
async def test_the_whole_product_is_exact(split: int, whole: Expectations, capsys: pytest.CaptureFixture[str]) -> None:
    everyone = range(len(PROMPTS))
    cases = [(prompt, arm) for arm in ARMS for prompt in everyone] + [
        (prompt, wrong_arm(prompt)) for prompt in everyone
    ]

    def note(line: str) -> None:
        with capsys.disabled():
            print(line, flush=True)

    await check_split(split, cases, whole, WHOLE_TOKENS, note)
