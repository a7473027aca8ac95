"""What a generation is asked for, whether a ring can serve it, and how it went."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from shardp2p.coordinator.commands import Finish, Limits, Proposer
from shardp2p.errors import ConfigError
from shardp2p.scheduler.plan import Plan
from shardp2p.vocabulary import ModelId, SamplingParams, Token, WireScheme
from shardp2p.wire.messages import Closed
from shardp2p.wire.protocols import INITIAL_CREDITS

SPARE_ROWS = 256
"""Cache rows beyond the text: dead rows that are not compacted yet."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What to generate. After this point there are only token ids, all below `vocab_size` (0: not known).

    `budget_s` is how long it may take from now on; None: as long as something comes around the ring. `wire_scheme` says
    how hidden states go from stage to stage; where it is raw, the answer is that of the whole model. `wait_s`
    is how long it may wait for room on the ring, where it is driven; without, it is declined at once. `shares_rows`:
    whether the stages may keep its rows, and use those of earlier requests of the same asker that begin the same.
    """

    prompt_tokens: tuple[Token, ...]
    max_tokens: int
    stop_tokens: frozenset[Token] = frozenset()
    sampling: SamplingParams = field(default_factory=SamplingParams)
    vocab_size: int = 0
    budget_s: float | None = None
    wire_scheme: WireScheme = "raw"
    wait_s: float = 0.0
    shares_rows: bool = True


@dataclass(frozen=True, slots=True)
class Lap:
    """One chunk's way around the ring, in seconds; `tokens` in the chunk, `compute_s` of all stages together."""

    tokens: int
    lap_s: float
    compute_s: float


@dataclass
class Result:
    """How a generation went; complete once the context of `open_generation` is left."""

    finish: Finish | None = None
    ttft_s: float | None = None
    total_s: float = 0.0
    shared_tokens: int = 0
    """How much of the prompt the stages had from an earlier generation; only where it is driven here."""
    laps: list[Lap] = field(default_factory=list)
    accounts: dict[int, Closed] = field(default_factory=dict)


def check_length(request: GenerationRequest, model: ModelId, context_tokens: int) -> None:
    """Raises: ConfigError when there is no text, or nothing asked for, or more than fits the model."""
    if not request.prompt_tokens:
        raise ConfigError("the prompt is empty; give at least one token")
    if request.max_tokens < 1:
        raise ConfigError(f"max_tokens is {request.max_tokens}; ask for at least 1")
    if len(request.prompt_tokens) + request.max_tokens > context_tokens:
        raise ConfigError(
            f"the prompt has {len(request.prompt_tokens)} tokens and {request.max_tokens} more are asked for; "
            f"{model} takes {context_tokens} in all: shorten the prompt or lower --max-tokens"
        )


def fit_limits(request: GenerationRequest, plan: Plan, limits: Limits, proposer: Proposer | None) -> Limits:
    """The limits for this request.

    Raises: ConfigError when there is no text, or nothing asked for, or more than fits the model or the ring.
    """
    check_length(request, plan.model, plan.context_tokens)
    text = len(request.prompt_tokens) + request.max_tokens
    if limits.max_chunks > INITIAL_CREDITS:
        raise ConfigError(f"{limits.max_chunks} chunks at once are too many; a ring takes at most {INITIAL_CREDITS}")
    drafts = limits.max_chunks * limits.chunk_tokens if proposer is not None else 0
    return replace(
        limits,
        draft_tokens=limits.draft_tokens if proposer is not None else 0,
        cache_rows=text + drafts + SPARE_ROWS,
    )
