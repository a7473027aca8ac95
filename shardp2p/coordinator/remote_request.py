"""A ring, a request and its limits as the message that asks a peer to drive them, and back. Pure."""

from __future__ import annotations

from shardp2p.coordinator.commands import Limits
from shardp2p.coordinator.request import GenerationRequest
from shardp2p.errors import ConfigError
from shardp2p.scheduler.plan import Plan, Stage
from shardp2p.wire.codec_control import MAX_TOKENS
from shardp2p.wire.codec_generate import MAX_STAGES, MAX_STOP_TOKENS
from shardp2p.wire.driving import DraftKind, Generate, RingStage


def to_message(plan: Plan, request: GenerationRequest, limits: Limits, draft: DraftKind) -> Generate:
    """The message for a driver. Raises: ConfigError for what is too long to send."""
    for count, most, what in (
        (len(request.prompt_tokens), MAX_TOKENS, "tokens in the prompt"),
        (len(request.stop_tokens), MAX_STOP_TOKENS, "stop tokens"),
        (len(plan.stages), MAX_STAGES, "stages in the ring"),
    ):
        if count > most:
            raise ConfigError(
                f"{count} {what} are too many to hand to another peer, which takes {most}; drive the request here, "
                "with --local-driver"
            )
    return Generate(
        model=plan.model,
        model_digest=plan.model_digest,
        dtype=plan.dtype,
        context_tokens=plan.context_tokens,
        stages=tuple(RingStage(stage.peer_id, stage.addresses, stage.layers) for stage in plan.stages),
        prompt_tokens=request.prompt_tokens,
        max_tokens=request.max_tokens,
        stop_tokens=tuple(sorted(request.stop_tokens)),
        vocab_size=request.vocab_size,
        sampling=request.sampling,
        budget_s=request.budget_s,
        draft=draft,
        max_chunks=limits.max_chunks,
        chunk_tokens=limits.chunk_tokens,
        prefill_tokens=limits.prefill_tokens,
        draft_tokens=limits.draft_tokens,
        wire_scheme=request.wire_scheme,
        wait_s=request.wait_s,
        shares_rows=request.shares_rows,
        wants_signs=True,
    )


def from_message(message: Generate) -> tuple[Plan, GenerationRequest, Limits]:
    """What `to_message` was given."""
    plan = Plan(
        model=message.model,
        model_digest=message.model_digest,
        dtype=message.dtype,
        context_tokens=message.context_tokens,
        stages=tuple(Stage(stage.peer_id, stage.layers, stage.addresses) for stage in message.stages),
    )
    request = GenerationRequest(
        prompt_tokens=message.prompt_tokens,
        max_tokens=message.max_tokens,
        stop_tokens=frozenset(message.stop_tokens),
        sampling=message.sampling,
        vocab_size=message.vocab_size,
        budget_s=message.budget_s,
        wire_scheme=message.wire_scheme,
        wait_s=message.wait_s,
        shares_rows=message.shares_rows,
    )
    limits = Limits(
        max_chunks=message.max_chunks,
        chunk_tokens=message.chunk_tokens,
        prefill_tokens=message.prefill_tokens,
        draft_tokens=message.draft_tokens,
    )
    return plan, request, limits
