"""What exactness is tested on: prompts of five kinds, and arms that differ in everything but the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardp2p.coordinator.commands import Limits, Proposer
from shardp2p.lab.prompts import VARIED_PROMPTS
from shardp2p.runtime.draft import PromptLookup
from shardp2p.vocabulary import SamplingParams, Token
from tests.support.proposers import OracleMix, RandomWrong

_REPEAT_PROMPTS: tuple[tuple[str, str], ...] = (
    ("repeat", "Repeat this sentence five times: The quick brown fox jumps over the lazy dog."),
    ("repeat", "Copy the following text exactly: Röntgen measured 3.14159 µm at 07:45; 'naïve' costs €12.50."),
    ("repeat", "Write the word 'tomorrow' thirty times."),
    ("repeat", "Repeat after me, twice: one fish, two fish, red fish, blue fish."),
)
PROMPTS = (*VARIED_PROMPTS[:12], *_REPEAT_PROMPTS, *VARIED_PROMPTS[12:])

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
