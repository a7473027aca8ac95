"""The messages of /shardp2p/control/1 as protobuf and back. Rules: docs/protocols/control.md. Pure."""

from __future__ import annotations

import math
from typing import Final

from shardp2p.vocabulary import MAX_LOGIT_BIASES, PeerId, SamplingParams, Slot
from shardp2p.wire.codec_parts import (
    AnyCodec,
    InvalidError,
    MessageCodec,
    check_address,
    check_count,
    check_digest,
    check_ids,
    check_peer_id,
    check_text,
    read_address,
    read_dtype,
    read_layers,
    read_session,
    write_address,
    write_layers,
    write_session,
)
from shardp2p.wire.codec_tensor import read_scheme, write_scheme
from shardp2p.wire.messages import Close, Closed, Commit, Failure, Open, Opened, Tokens
from shardp2p.wire.pb import control_pb2, types_pb2
from shardp2p.wire.prefixes import MAX_PREFIXES, PREFIX_BYTES, Prefixes
from shardp2p.wire.protocols import MAX_SLOT

MAX_SESSION_CHUNKS: Final = 1024
MAX_TOKENS: Final = 131_072
MAX_STATUS_CHARACTERS: Final = 32
MAX_FAILURE_CHARACTERS: Final = 2000


def write_sampling(sampling: SamplingParams) -> types_pb2.SamplingParams:
    """Sampling parameters as protobuf."""
    return types_pb2.SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        frequency_penalty=sampling.frequency_penalty,
        presence_penalty=sampling.presence_penalty,
        logit_bias=[types_pb2.LogitBias(token=token, bias=bias) for token, bias in sampling.logit_bias],
        seed=sampling.seed,
    )


def read_sampling(wire: types_pb2.SamplingParams) -> SamplingParams:
    """Sampling parameters, which test themselves."""
    check_count(len(wire.logit_bias), MAX_LOGIT_BIASES, "logit biases")
    return SamplingParams(
        temperature=wire.temperature,
        top_k=wire.top_k,
        top_p=wire.top_p,
        min_p=wire.min_p,
        repetition_penalty=wire.repetition_penalty,
        frequency_penalty=wire.frequency_penalty,
        presence_penalty=wire.presence_penalty,
        logit_bias=tuple((entry.token, entry.bias) for entry in wire.logit_bias),
        seed=wire.seed,
    )


def _write_prefixes(prefixes: Prefixes | None) -> control_pb2.Prefixes | None:
    if prefixes is None:
        return None
    return control_pb2.Prefixes(step_tokens=prefixes.step_tokens, digests=prefixes.digests)


def _read_prefixes(wire: control_pb2.Open | control_pb2.Close) -> Prefixes | None:
    if not wire.HasField("prefixes"):
        return None
    check_count(len(wire.prefixes.digests), MAX_PREFIXES, "digests of beginnings")
    return Prefixes(wire.prefixes.step_tokens, tuple(wire.prefixes.digests))


def _check_prefixes(prefixes: Prefixes | None) -> None:
    if prefixes is None:
        return
    if not 1 <= len(prefixes.digests) <= MAX_PREFIXES:
        raise InvalidError(f"{len(prefixes.digests)} digests of beginnings; 1 to {MAX_PREFIXES} are allowed")
    if not 1 <= prefixes.step_tokens <= MAX_SLOT // MAX_PREFIXES:
        raise InvalidError(f"digests of beginnings {prefixes.step_tokens} tokens apart")
    if any(len(digest) != PREFIX_BYTES for digest in prefixes.digests):
        raise InvalidError(f"the digest of a beginning has other than {PREFIX_BYTES} bytes")


def _write_open(message: Open) -> bytes:
    return control_pb2.Open(
        session=write_session(message.session),
        model_digest=message.model_digest,
        layers=write_layers(message.layers),
        dtype=message.dtype,
        cache_rows=message.cache_rows,
        max_chunks=message.max_chunks,
        next=write_address(message.next),
        sampling=None if message.sampling is None else write_sampling(message.sampling),
        wire_scheme=write_scheme(message.wire_scheme),
        prompt_tokens=message.prompt_tokens,
        prefixes=_write_prefixes(message.prefixes),
    ).SerializeToString()


def _read_open(wire: control_pb2.Open) -> Open:
    return Open(
        session=read_session(wire.session),
        model_digest=wire.model_digest,
        layers=read_layers(wire.layers),
        dtype=read_dtype(wire.dtype),
        cache_rows=wire.cache_rows,
        max_chunks=wire.max_chunks,
        next=read_address(wire.next),
        sampling=read_sampling(wire.sampling) if wire.HasField("sampling") else None,
        wire_scheme=read_scheme(wire.wire_scheme),
        prompt_tokens=wire.prompt_tokens,
        prefixes=_read_prefixes(wire),
    )


def _check_open(message: Open) -> None:
    check_digest(message.model_digest)
    read_dtype(message.dtype)
    check_address(message.next)
    if not 1 <= message.cache_rows <= MAX_SLOT:
        raise InvalidError(f"a cache of {message.cache_rows} rows")
    if not 1 <= message.max_chunks <= MAX_SESSION_CHUNKS:
        raise InvalidError(f"{message.max_chunks} chunks at once; 1 to {MAX_SESSION_CHUNKS} are allowed")
    if not 0 <= message.prompt_tokens <= MAX_SLOT:
        raise InvalidError(f"a prompt of {message.prompt_tokens} tokens")
    _check_prefixes(message.prefixes)


def _write_opened(message: Opened) -> bytes:
    return control_pb2.Opened(
        layers=write_layers(message.layers),
        cache_rows=message.cache_rows,
        shared_rows=message.shared_rows,
        keeps_rows=message.keeps_rows,
    ).SerializeToString()


def _read_opened(wire: control_pb2.Opened) -> Opened:
    return Opened(read_layers(wire.layers), wire.cache_rows, wire.shared_rows, wire.keeps_rows)


def _check_opened(message: Opened) -> None:
    if not 1 <= message.cache_rows <= MAX_SLOT:
        raise InvalidError(f"a cache of {message.cache_rows} rows")
    if not 0 <= message.shared_rows <= message.cache_rows:
        raise InvalidError(f"{message.shared_rows} shared rows in a cache of {message.cache_rows}")


def _write_commit(message: Commit) -> bytes:
    return control_pb2.Commit(epoch=message.epoch, root=message.root, parent=message.parent).SerializeToString()


def _read_commit(wire: control_pb2.Commit) -> Commit:
    return Commit(wire.epoch, Slot(wire.root), Slot(wire.parent))


def _check_commit(message: Commit) -> None:
    if not 0 <= message.parent < message.root <= MAX_SLOT:
        raise InvalidError(f"the root {message.root} cannot be a child of slot {message.parent}")


def _write_tokens(message: Tokens) -> bytes:
    return control_pb2.Tokens(
        epoch=message.epoch, first_slot=message.first_slot, tokens=message.tokens
    ).SerializeToString()


def _read_tokens(wire: control_pb2.Tokens) -> Tokens:
    check_count(len(wire.tokens), MAX_TOKENS, "tokens")
    return Tokens(wire.epoch, Slot(wire.first_slot), tuple(wire.tokens))


def _check_tokens(message: Tokens) -> None:
    if not 1 <= len(message.tokens) <= MAX_TOKENS:
        raise InvalidError(f"{len(message.tokens)} tokens; 1 to {MAX_TOKENS} are allowed")
    if not 0 <= message.first_slot <= MAX_SLOT + 1 - len(message.tokens):
        raise InvalidError(f"the slots from {message.first_slot} on are out of bounds")
    check_ids(message.tokens, "token ids")


def _write_failure(message: Failure) -> bytes:
    # The text may quote foreign errors of any length: clipped here, so that reporting a failure never fails.
    text = "".join(c if c.isprintable() else " " for c in message.message[:MAX_FAILURE_CHARACTERS])
    return control_pb2.Failure(status=message.status, message=text, peer_id=message.peer_id or "").SerializeToString()


def _read_failure(wire: control_pb2.Failure) -> Failure:
    check_text(wire.message, MAX_FAILURE_CHARACTERS, "failure's text")
    return Failure(wire.status, wire.message, PeerId(wire.peer_id) if wire.peer_id else None)


def _check_failure(message: Failure) -> None:
    check_text(message.status, MAX_STATUS_CHARACTERS, "failure's status")
    if message.peer_id is not None:
        check_peer_id(message.peer_id)


def _write_close(message: Close) -> bytes:
    return control_pb2.Close(prefixes=_write_prefixes(message.prefixes)).SerializeToString()


def _read_close(wire: control_pb2.Close) -> Close:
    return Close(_read_prefixes(wire))


def _check_close(message: Close) -> None:
    _check_prefixes(message.prefixes)


def _write_closed(message: Closed) -> bytes:
    return control_pb2.Closed(
        chunks=message.chunks,
        rows=message.rows,
        skipped_rows=message.skipped_rows,
        compute_s=message.compute_s,
        overhead_s=message.overhead_s,
    ).SerializeToString()


def _read_closed(wire: control_pb2.Closed) -> Closed:
    return Closed(wire.chunks, wire.rows, wire.skipped_rows, wire.compute_s, wire.overhead_s)


def _check_closed(message: Closed) -> None:
    for seconds in (message.compute_s, message.overhead_s):
        if not 0.0 <= seconds < math.inf:
            raise InvalidError(f"{seconds} is no duration in seconds")


CODECS: Final[dict[type, AnyCodec]] = {
    Open: MessageCodec(control_pb2.Open, _write_open, _read_open, _check_open),
    Opened: MessageCodec(control_pb2.Opened, _write_opened, _read_opened, _check_opened),
    Commit: MessageCodec(control_pb2.Commit, _write_commit, _read_commit, _check_commit),
    Tokens: MessageCodec(control_pb2.Tokens, _write_tokens, _read_tokens, _check_tokens),
    Failure: MessageCodec(control_pb2.Failure, _write_failure, _read_failure, _check_failure),
    Close: MessageCodec(control_pb2.Close, _write_close, _read_close, _check_close),
    Closed: MessageCodec(control_pb2.Closed, _write_closed, _read_closed, _check_closed),
}
