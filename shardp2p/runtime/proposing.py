"""Who proposes for a request at this driver: put together from what was asked for and what there is. Knows no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from shardp2p.runtime.answer_memory import AnswerMemory
from shardp2p.runtime.blend import Blend, Source
from shardp2p.runtime.draft import PromptLookup
from shardp2p.vocabulary import SamplingParams
from shardp2p.wire.driving import DraftKind

MakeDrafts = Callable[[SamplingParams, int], Source]
"""A proposer that a model makes for one request: its parameters, and the target's vocabulary."""


@dataclass(frozen=True, slots=True)
class DraftWish:
    """What a request wants to have proposed; `asker` is whose earlier answers may help."""

    kind: DraftKind
    model_digest: str
    asker: str = ""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    vocab_size: int = 0


class Proposers:
    """Makes a fresh proposer for each request."""

    def __init__(self, memory: AnswerMemory | None = None) -> None:
        """Without a `memory` no answer is kept."""
        self._memory = memory
        self._models: dict[str, MakeDrafts] = {}  # as many as this driver was started with

    def forget(self) -> None:
        """Keep no answer from now on, nor those that were kept."""
        self._memory = None

    def add_model(self, model_digest: str, make: MakeDrafts) -> None:
        """Let `make` draft for the model of that digest."""
        self._models[model_digest] = make

    def make(self, wish: DraftWish) -> Source | None:
        """The proposer; None where nobody is to propose. A model that is not here leaves the text to look in."""
        if wish.kind == "none":
            return None
        if wish.kind == "lookup" and self._memory is not None:
            return PromptLookup(self._memory.shelf(wish.model_digest, wish.asker), sampling=wish.sampling)
        make = self._models.get(wish.model_digest)
        if wish.kind == "model" and make is not None:
            return Blend([PromptLookup(), make(wish.sampling, wish.vocab_size)])
        return PromptLookup(sampling=wish.sampling)
