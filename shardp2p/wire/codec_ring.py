"""The messages of /shardp2p/ring/1 as protobuf and back. Rules: docs/protocols/ring.md. Pure."""

from __future__ import annotations

from typing import Final

from shardp2p.vocabulary import Slot
from shardp2p.wire.codec_parts import (
    AnyCodec,
    InvalidError,
    MessageCodec,
    accept,
    check_count,
    check_ids,
    check_rows,
    read_ref,
    read_session,
    write_ref,
    write_session,
)
from shardp2p.wire.codec_tensor import check_tensor, find_tensor_data, length_prefix, read_tensor, write_tensor
from shardp2p.wire.messages import Activations, Chunk, Credit, End, Hello, Verdict
from shardp2p.wire.pb import ring_pb2, types_pb2
from shardp2p.wire.protocols import MAX_ROWS, MAX_SLOT
from shardp2p.wire.tensor_frame import Buffer, TensorFrame

MAX_CREDITS: Final = 1024
"""More in one grant is no flow control any more."""

_SKIPPED_CHOICE: Final = -1
_HIDDEN_FIELD: Final = ring_pb2.Activations.HIDDEN_FIELD_NUMBER


def _write_hello(message: Hello) -> bytes:
    return ring_pb2.Hello(session=write_session(message.session), layer=message.layer).SerializeToString()


def _read_hello(wire: ring_pb2.Hello) -> Hello:
    return Hello(read_session(wire.session), wire.layer)


def _write_chunk(message: Chunk) -> bytes:
    return ring_pb2.Chunk(
        ref=write_ref(message.ref),
        tokens=message.tokens,
        parents=message.parents,
        root=message.root,
        quiet=message.quiet,
    ).SerializeToString()


def _read_chunk(wire: ring_pb2.Chunk) -> Chunk:
    check_count(max(len(wire.tokens), len(wire.parents)), MAX_ROWS, "rows")
    return Chunk(
        ref=read_ref(wire.ref),
        tokens=tuple(wire.tokens),
        parents=tuple(map(Slot, wire.parents)),
        root=Slot(wire.root),
        quiet=wire.quiet,
    )


def _check_chunk(message: Chunk) -> None:
    check_rows(message.ref, message.parents, message.root, message.quiet)
    if len(message.tokens) != len(message.parents):
        raise InvalidError(f"{len(message.tokens)} tokens have {len(message.parents)} parents")
    check_ids(message.tokens, "token ids")


def _write_activations(message: Activations) -> tuple[Buffer, ...]:
    head = ring_pb2.Activations(
        ref=write_ref(message.ref),
        parents=message.parents,
        root=message.root,
        quiet=message.quiet,
        skipped=message.skipped,
    ).SerializeToString()
    tail = ring_pb2.Activations(compute_us=message.compute_us, slowest_us=message.slowest_us).SerializeToString()
    if message.hidden is None:
        return head, tail
    tensor = write_tensor(message.hidden)
    return head, length_prefix(_HIDDEN_FIELD, sum(map(len, tensor))), *tensor, tail


def _read_activations(wire: ring_pb2.Activations) -> Activations:
    return _activations_of(wire, read_tensor(wire.hidden) if wire.HasField("hidden") else None)


def _read_large_activations(payload: memoryview) -> Activations | None:
    """As `_read_activations`, with the data where it lies; None where protobuf has to read it."""
    found = find_tensor_data(payload, _HIDDEN_FIELD)
    if found is None or found[0].end > len(payload):
        return None
    hidden, data = found
    wire = ring_pb2.Activations.FromString(b"".join((payload[: hidden.tag_at], payload[hidden.end :])))
    tensor = types_pb2.TensorFrame.FromString(
        b"".join((payload[hidden.start : data.tag_at], payload[data.end : hidden.end]))
    )
    if wire.HasField("hidden") or tensor.data:
        return None  # given twice: what that comes to is for protobuf to say
    return _activations_of(wire, read_tensor(tensor, payload[data.start : data.end]))


def find_activations_data(head: memoryview) -> int:
    """Where the data of a tensor begins in Activations of which `head` is the beginning; 0 where that is not seen."""
    found = find_tensor_data(head, _HIDDEN_FIELD)
    return 0 if found is None else found[1].start


def _activations_of(wire: ring_pb2.Activations, hidden: TensorFrame | None) -> Activations:
    check_count(max(len(wire.skipped), len(wire.parents)), MAX_ROWS, "rows")
    return Activations(
        ref=read_ref(wire.ref),
        parents=tuple(map(Slot, wire.parents)),
        root=Slot(wire.root),
        quiet=wire.quiet,
        skipped=tuple(wire.skipped),
        hidden=hidden,
        compute_us=wire.compute_us,
        slowest_us=wire.slowest_us,
    )


def _check_activations(message: Activations) -> None:
    check_rows(message.ref, message.parents, message.root, message.quiet)
    rows = len(message.parents)
    earlier = -1
    for row in message.skipped:
        if not earlier < row < rows:
            raise InvalidError(f"the skipped row {row} of {rows} is out of range or order")
        earlier = row
    computed = 0 if message.hidden is None else message.hidden.shape[0]
    if computed + len(message.skipped) != rows:
        raise InvalidError(f"{computed} hidden and {len(message.skipped)} skipped rows are not the chunk's {rows}")
    if message.hidden is not None:
        check_tensor(message.hidden)


def _write_verdict(message: Verdict) -> bytes:
    choices = [_SKIPPED_CHOICE if choice is None else choice for choice in message.choices]
    return ring_pb2.Verdict(
        ref=write_ref(message.ref),
        quiet=message.quiet,
        choices=choices,
        compute_us=message.compute_us,
        slowest_us=message.slowest_us,
    ).SerializeToString()


def _read_verdict(wire: ring_pb2.Verdict) -> Verdict:
    check_count(len(wire.choices), MAX_ROWS, "choices")
    choices = tuple(None if choice == _SKIPPED_CHOICE else choice for choice in wire.choices)
    return Verdict(read_ref(wire.ref), wire.quiet, choices, wire.compute_us, wire.slowest_us)


def _check_verdict(message: Verdict) -> None:
    rows = message.quiet + len(message.choices)
    if not (message.quiet >= 0 and 1 <= rows <= MAX_ROWS):
        raise InvalidError(f"a verdict on {rows} rows; 1 to {MAX_ROWS} are allowed")
    if not 0 <= message.ref.first_slot <= MAX_SLOT + 1 - rows:
        raise InvalidError(f"the slots from {message.ref.first_slot} on are out of bounds")
    check_ids([choice for choice in message.choices if choice is not None], "choices")


def _write_credit(message: Credit) -> bytes:
    return ring_pb2.Credit(messages=message.messages).SerializeToString()


def _read_credit(wire: ring_pb2.Credit) -> Credit:
    return Credit(wire.messages)


def _check_credit(message: Credit) -> None:
    if not 1 <= message.messages <= MAX_CREDITS:
        raise InvalidError(f"a credit of {message.messages}; 1 to {MAX_CREDITS} are allowed")


CODECS: Final[dict[type, AnyCodec]] = {
    Hello: MessageCodec(ring_pb2.Hello, _write_hello, _read_hello, accept),
    Chunk: MessageCodec(ring_pb2.Chunk, _write_chunk, _read_chunk, _check_chunk),
    Activations: MessageCodec(
        ring_pb2.Activations, _write_activations, _read_activations, _check_activations, _read_large_activations
    ),
    Verdict: MessageCodec(ring_pb2.Verdict, _write_verdict, _read_verdict, _check_verdict),
    Credit: MessageCodec(ring_pb2.Credit, _write_credit, _read_credit, _check_credit),
    End: MessageCodec(ring_pb2.End, lambda _: b"", lambda _: End(), accept),
}
