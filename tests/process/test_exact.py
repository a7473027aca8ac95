"""The demo model over real processes and real connections says, token for token, what the whole model says.

Greedy answers are compared with transformers' own decoding of the whole model; sampled ones with the plain ring's,
since the noise is ours: the same for every split, proposer and depth. fp32, as the claim is. `make exact` runs it all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

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
    events: dict[int, trio.Event] = field(default_factory=dict)

    def event(self, prompt: int) -> trio.Event:
        """Set once the plain ring's sampled answer to the prompt is there."""
        return self.events.setdefault(prompt, trio.Event())


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
        check = Check(client, plan, expected, tokens, trio.CapacityLimiter(AT_ONCE), Counter(arm for _, arm in cases))
        async with trio.open_nursery() as nursery:
            for prompt, arm in cases:
                nursery.start_soon(check.compare, prompt, arm, lambda line: note(f"{split} stages, {line}"))


@dataclass
class Check:
    """Answers of one ring on their way, of all arms together; `left` counts those of each arm that are to come."""

    client: Node
    plan: Plan
    expected: Expectations
    tokens: int
    limiter: trio.CapacityLimiter
    left: Counter[Arm]
    started: float = field(default_factory=trio.current_time)

    async def compare(self, prompt: int, arm: Arm, note: Callable[[str], None]) -> None:
        """Fetch one answer and compare it; `note` hears when it was the last of its arm."""
        expected, ids = self.expected, self.expected.prompts[prompt]
        sampling = replace(SAMPLING, seed=1000 + prompt) if arm.is_sampled else SamplingParams()
        answers = expected.sampled if arm.is_sampled else expected.greedy
        if arm.is_sampled and arm.proposer != "none" and prompt not in answers:
            await expected.event(prompt).wait()  # the plain ring's answer is what it is compared with
        async with self.limiter:
            proposer = arm.make_proposer(ids, answers.get(prompt, ()), seed=prompt)
            request = GenerationRequest(ids, self.tokens, sampling=sampling)
            answer = await run_ring(self.client, self.plan, request, proposer=proposer, limits=arm.limits())
        assert len(answer.tokens) == self.tokens
        assert answers.setdefault(prompt, answer.tokens) == answer.tokens, (
            f"{arm}: the answer to prompt {prompt} differs"
        )
        if arm.is_sampled:
            expected.event(prompt).set()
        self.left[arm] -= 1
        if not self.left[arm]:
            note(f"{arm}: all answers exact, {trio.current_time() - self.started:.0f} s after the start")


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
