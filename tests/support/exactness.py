"""What exactness is tested on: prompts of five kinds, and arms that differ in everything but the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardp2p.coordinator.commands import Limits, Proposer
from shardp2p.runtime.draft import PromptLookup
from shardp2p.vocabulary import SamplingParams, Token
from tests.support.proposers import OracleMix, RandomWrong

PROMPTS: tuple[tuple[str, str], ...] = (
    ("chat", "What is the difference between a comet and an asteroid?"),
    ("chat", "My plants keep dying. I water them every day. What am I doing wrong?"),
    ("chat", "Explain to a child why the sky is blue."),
    ("chat", "Give me three reasons to learn to play an instrument, and one reason not to."),
    ("code", "Write a Python function that returns the n-th Fibonacci number without recursion."),
    ("code", "Write a C function that reverses a string in place, with a comment on each line."),
    ("code", "Show an SQL query that lists the five customers with the most orders."),
    ("code", "def quicksort(items):\n    if len(items) <= 1:\n        return items\nComplete this function."),
    ("list", "List the planets of the solar system with one fact each."),
    ("list", "Write the numbers from 1 to 40, separated by commas."),
    ("list", "List ten European countries and their capitals as 'country: capital'."),
    ("list", "Make a packing list for a week of hiking, one item per line."),
    ("repeat", "Repeat this sentence five times: The quick brown fox jumps over the lazy dog."),
    ("repeat", "Copy the following text exactly: Röntgen measured 3.14159 µm at 07:45; 'naïve' costs €12.50."),
    ("repeat", "Write the word 'tomorrow' thirty times."),
    ("repeat", "Repeat after me, twice: one fish, two fish, red fish, blue fish."),
    ("story", "Write the beginning of a story about a lighthouse keeper who finds a letter."),
    ("story", "Tell a short tale about two robots who want to see the sea."),
    ("story", "Continue: It was a bright cold day in April, and the clocks were striking thirteen."),
    ("story", "Write a poem of eight lines about rain on a tin roof."),
)

SAMPLING = SamplingParams(temperature=0.8, top_p=0.95)


@dataclass(frozen=True, slots=True)
class Arm:
    """A way to come to an answer. `depth` is how many chunks are in the ring at once."""

    proposer: str  # none, lookup, wrong (random branches), mixed (the truth among random branches)
    depth: int
    is_sampled: bool = False

    def __str__(self) -> str:
        return f"{'sampled' if self.is_sampled else 'greedy'}, {self.proposer}, depth {self.depth}"

    def limits(self) -> Limits:
        """Narrow chunks, so that a tree takes several of them; few cache rows, so that a stage has room for many."""
        return Limits(max_chunks=self.depth, chunk_tokens=12, prefill_tokens=24, draft_tokens=6, cache_rows=1500)

    def make_proposer(self, prompt: Sequence[Token], answer: Sequence[Token], seed: int) -> Proposer | None:
        """A fresh proposer for one answer; `answer` is what it should come to."""
        match self.proposer:
            case "lookup":
                return PromptLookup()
            case "wrong":
                return RandomWrong(seed, 49_152, branches=2)
            case "mixed":
                return OracleMix((*prompt, *answer), 0.85, seed, branches=2)
            case _:
                return None


DEPTHS = range(1, 9)
ARMS = (
    Arm("none", 1),
    Arm("lookup", 4),
    *(Arm("mixed", depth) for depth in DEPTHS),
    Arm("none", 1, True),
    Arm("lookup", 4, True),
    Arm("mixed", 6, True),
)
"""Every prompt goes through each of these; `wrong_arm` comes on top, at a depth that goes round with the prompts."""
SPLITS = (1, 2, 3, 5)


def wrong_arm(prompt: int) -> Arm:
    """Drafts that are all wrong, the deeper the more wasted work: one depth for each prompt."""
    return Arm("wrong", DEPTHS[prompt % len(DEPTHS)])
