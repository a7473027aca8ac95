"""The messages of /shardp2p/generate/1 as protobuf and back. Rules: docs/protocols/generate.md. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Final, TypeVar

from shardp2p.vocabulary import ModelId
from shardp2p.wire import codec_control
from shardp2p.wire.codec_control import MAX_SESSION_CHUNKS, MAX_TOKENS, read_sampling, write_sampling
from shardp2p.wire.codec_parts import (
    AnyCodec,
    InvalidError,
    MessageCodec,
    accept,
    check_address,
    check_count,
    check_digest,
    check_ids,
    check_text,
    read_address,
    read_dtype,
    read_layers,
    write_address,
    write_layers,
)
from shardp2p.wire.codec_tensor import read_scheme, write_scheme
from shardp2p.wire.driving import Batch, DraftKind, EndReason, Finished, Generate, LapTime, RingStage, Working
from shardp2p.wire.messages import Failure, PeerAddress
from shardp2p.wire.pb import generate_pb2
from shardp2p.wire.protocols import MAX_ROWS, MAX_SLOT

MAX_STAGES: Final = 64
"""More hops than any ring that answers in useful time; all their addresses fit the message."""

MAX_STOP_TOKENS: Final = 1024
MAX_MODEL_CHARACTERS: Final = 256

MAX_LAPS: Final = 4096
"""What a client reads of the laps; a longer answer says how its end went."""

MAX_SECONDS: Final = 1e9

MAX_WAIT_S: Final = 3600.0
"""Whoever waits takes up one of the driver's places."""

T = TypeVar("T")

_DRAFTS: Final[dict[str, DraftKind]] = {"none": "none", "text": "text", "lookup": "lookup", "model": "model"}
_REASONS: Final[dict[str, EndReason]] = {"stop": "stop", "length": "length"}


def _write_generate(message: Generate) -> bytes:
    return generate_pb2.Generate(
        model=message.model,
        model_digest=message.model_digest,
        dtype=message.dtype,
        context_tokens=message.context_tokens,
        stages=[
            generate_pb2.RingStage(peer=write_address(_address(stage)), layers=write_layers(stage.layers))
            for stage in message.stages
        ],
        prompt_tokens=message.prompt_tokens,
        max_tokens=message.max_tokens,
        stop_tokens=message.stop_tokens,
        vocab_size=message.vocab_size,
        sampling=write_sampling(message.sampling),
        budget_s=message.budget_s,
        draft=message.draft,
        max_chunks=message.max_chunks,
        chunk_tokens=message.chunk_tokens,
        prefill_tokens=message.prefill_tokens,
        draft_tokens=message.draft_tokens,
        # Left out as before there was a choice, so that a driver of then takes the message as well.
        wire_scheme=None if message.wire_scheme == "raw" else write_scheme(message.wire_scheme),
        wait_s=message.wait_s,
        shares_rows=message.shares_rows,
        wants_signs=message.wants_signs,
    ).SerializeToString()


def _read_generate(wire: generate_pb2.Generate) -> Generate:
    check_count(len(wire.stages), MAX_STAGES, "stages")
    check_count(len(wire.prompt_tokens), MAX_TOKENS, "prompt tokens")
    check_count(len(wire.stop_tokens), MAX_STOP_TOKENS, "stop tokens")
    return Generate(
        model=ModelId(wire.model),
        model_digest=wire.model_digest,
        dtype=read_dtype(wire.dtype),
        context_tokens=wire.context_tokens,
        stages=tuple(map(_read_stage, wire.stages)),
        prompt_tokens=tuple(wire.prompt_tokens),
        max_tokens=wire.max_tokens,
        stop_tokens=tuple(wire.stop_tokens),
        vocab_size=wire.vocab_size,
        sampling=read_sampling(wire.sampling),
        budget_s=wire.budget_s or None,
        draft=_read_name(_DRAFTS, wire.draft, "kind of drafts"),
        max_chunks=wire.max_chunks,
        chunk_tokens=wire.chunk_tokens,
        prefill_tokens=wire.prefill_tokens,
        draft_tokens=wire.draft_tokens,
        wire_scheme=read_scheme(wire.wire_scheme) if wire.wire_scheme else "raw",
        wait_s=wire.wait_s,
        shares_rows=wire.shares_rows,
        wants_signs=wire.wants_signs,
    )


def _check_generate(message: Generate) -> None:
    check_text(message.model, MAX_MODEL_CHARACTERS, "model's name")
    check_digest(message.model_digest)
    read_dtype(message.dtype)
    _read_name(_DRAFTS, message.draft, "kind of drafts")
    _check_stages(message.stages)
    for tokens, most, what in (
        (message.prompt_tokens, MAX_TOKENS, "prompt tokens"),
        (message.stop_tokens, MAX_STOP_TOKENS, "stop tokens"),
    ):
        check_count(len(tokens), most, what)
        check_ids(tokens, what)
    for number, least, most, what in (
        (len(message.prompt_tokens), 1, MAX_TOKENS, "prompt tokens"),
        (message.max_tokens, 1, MAX_SLOT, "tokens asked for"),
        (message.context_tokens, 1, MAX_SLOT, "tokens of context"),
        (message.vocab_size, 0, MAX_SLOT, "tokens in the vocabulary"),
        (message.max_chunks, 1, MAX_SESSION_CHUNKS, "chunks at once"),
        (message.chunk_tokens, 1, MAX_ROWS, "tokens in a chunk"),
        (message.prefill_tokens, 1, MAX_ROWS, "tokens in a chunk of text"),
        (message.draft_tokens, 0, MAX_ROWS, "tokens in a draft"),
    ):
        if not least <= number <= most:
            raise InvalidError(f"{number} {what}; {least} to {most} are allowed")
    if message.budget_s is not None and not 0.0 < message.budget_s <= MAX_SECONDS:
        raise InvalidError(f"a budget of {message.budget_s} s")
    if not 0.0 <= message.wait_s <= MAX_WAIT_S:
        raise InvalidError(f"a wait of {message.wait_s} s; at most {MAX_WAIT_S:.0f} s are allowed")


def _check_stages(stages: Sequence[RingStage]) -> None:
    if not 1 <= len(stages) <= MAX_STAGES:
        raise InvalidError(f"{len(stages)} stages; 1 to {MAX_STAGES} are allowed")
    at = 0
    for stage in stages:
        check_address(_address(stage))
        if stage.layers.start != at:
            raise InvalidError(f"the stages have a gap or an overlap at layer {at}")
        at = stage.layers.stop


def _read_stage(wire: generate_pb2.RingStage) -> RingStage:
    peer = read_address(wire.peer)
    return RingStage(peer.peer_id, peer.addresses, read_layers(wire.layers))


def _address(stage: RingStage) -> PeerAddress:
    return PeerAddress(stage.peer_id, stage.addresses)


def _write_batch(message: Batch) -> bytes:
    return generate_pb2.Batch(tokens=message.tokens).SerializeToString()


def _read_batch(wire: generate_pb2.Batch) -> Batch:
    check_count(len(wire.tokens), MAX_TOKENS, "tokens")
    return Batch(tuple(wire.tokens))


def _check_batch(message: Batch) -> None:
    if not 1 <= len(message.tokens) <= MAX_TOKENS:
        raise InvalidError(f"{len(message.tokens)} tokens; 1 to {MAX_TOKENS} are allowed")
    check_ids(message.tokens, "token ids")


def _write_finished(message: Finished) -> bytes:
    return generate_pb2.Finished(
        reason=message.reason,
        tokens=message.tokens,
        laps=message.laps,
        ttft_s=message.ttft_s,
        total_s=message.total_s,
        lap_tokens=[lap.tokens for lap in message.by_lap],
        lap_s=[lap.lap_s for lap in message.by_lap],
        lap_compute_s=[lap.compute_s for lap in message.by_lap],
    ).SerializeToString()


def _read_finished(wire: generate_pb2.Finished) -> Finished:
    lengths = {len(wire.lap_tokens), len(wire.lap_s), len(wire.lap_compute_s)}
    check_count(max(lengths), MAX_LAPS, "laps")
    if len(lengths) > 1:
        raise InvalidError("the lists of laps are not of one length")
    return Finished(
        reason=_read_name(_REASONS, wire.reason, "reason to end"),
        tokens=wire.tokens,
        laps=wire.laps,
        ttft_s=wire.ttft_s,
        total_s=wire.total_s,
        by_lap=tuple(map(LapTime, wire.lap_tokens, wire.lap_s, wire.lap_compute_s)),
    )


def _check_finished(message: Finished) -> None:
    _read_name(_REASONS, message.reason, "reason to end")
    check_count(len(message.by_lap), MAX_LAPS, "laps")
    seconds = [message.ttft_s, message.total_s]
    for lap in message.by_lap:
        seconds += (lap.lap_s, lap.compute_s)
    if not all(isfinite(value) and value >= 0.0 for value in seconds):
        raise InvalidError("a duration that is negative or no number")


def _read_name(names: dict[str, T], name: str, what: str) -> T:
    try:
        return names[name]
    except KeyError:
        raise InvalidError(f"the {what} {name[:32]!r} is unknown") from None


CODECS: Final[dict[type, AnyCodec]] = {
    Generate: MessageCodec(generate_pb2.Generate, _write_generate, _read_generate, _check_generate),
    Batch: MessageCodec(generate_pb2.Batch, _write_batch, _read_batch, _check_batch),
    Finished: MessageCodec(generate_pb2.Finished, _write_finished, _read_finished, _check_finished),
    Working: MessageCodec(generate_pb2.Working, lambda _: b"", lambda _: Working(), accept),
    Failure: codec_control.CODECS[Failure],
}
