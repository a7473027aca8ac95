"""What the codecs of several protocols share: ids, ranges, references, addresses and tensors. Pure.

A `read_…` turns protobuf into a value, a `write_…` the reverse, a `check_…` tests a value. All raise InvalidError
(or, where a value tests itself, ConfigError); wire.codec says whose fault that is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from google.protobuf.message import Message as ProtobufMessage

from shardp2p.vocabulary import NO_PARENT, ChunkRef, DType, LayerRange, PeerId, SessionId, Slot
from shardp2p.wire.messages import PeerAddress, Scheme, TensorFrame
from shardp2p.wire.pb import types_pb2
from shardp2p.wire.protocols import MAX_ROWS, MAX_SLOT

M = TypeVar("M")
P = TypeVar("P", bound=ProtobufMessage)

SESSION_BYTES: Final = 16
MAX_ADDRESSES: Final = 32
MAX_HIDDEN: Final = 2**20

ITEM_BYTES: Final[dict[DType, int]] = {"float32": 4, "float16": 2, "bfloat16": 2}
SCALE_BYTES: Final = 4

_SCHEME_TO_WIRE: Final = {"raw": types_pb2.TensorFrame.RAW, "int8": types_pb2.TensorFrame.INT8}
_SCHEME_FROM_WIRE: Final[dict[int, Scheme]] = {
    types_pb2.TensorFrame.RAW: "raw",
    types_pb2.TensorFrame.INT8: "int8",
}
_DTYPE_TO_WIRE: Final = {
    "float32": types_pb2.TensorFrame.FLOAT32,
    "float16": types_pb2.TensorFrame.FLOAT16,
    "bfloat16": types_pb2.TensorFrame.BFLOAT16,
}
_DTYPE_FROM_WIRE: Final[dict[int, DType]] = {
    types_pb2.TensorFrame.FLOAT32: "float32",
    types_pb2.TensorFrame.FLOAT16: "float16",
    types_pb2.TensorFrame.BFLOAT16: "bfloat16",
}
_DTYPES: Final[dict[str, DType]] = {name: name for name in ITEM_BYTES}

_DATA_FIELD: Final = types_pb2.TensorFrame.DATA_FIELD_NUMBER

# Ids are used as names in logs and file names, so their alphabet is narrow; base58 and base32 lie within it.
_PEER_ID = re.compile(r"[0-9A-Za-z._-]{1,128}")
_ADDRESS = re.compile(r"/[\x21-\x7e]{1,511}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class InvalidError(ValueError):
    """A message breaks the rules of its protocol page; wire.codec turns this into a ShardError."""


@dataclass(frozen=True, slots=True)
class MessageCodec(Generic[M, P]):
    """How one message is written, read and tested. `check` sees the value before it is written and after it is
    read, so both sides hold to the same rules.
    """

    wire: type[P]
    write: Callable[[M], bytes]
    read: Callable[[P], M]
    check: Callable[[M], None]


AnyCodec = MessageCodec[Any, Any]


def accept(_message: object) -> None:
    """The check of a message that its types say everything about."""


def write_session(session: SessionId) -> bytes:
    """The 16 bytes of a session id."""
    raw = bytes.fromhex(session)
    if len(raw) != SESSION_BYTES or raw.hex() != session:
        raise InvalidError(f"{session!r} is no session id: it has 32 lower-case hexadecimal digits")
    return raw


def read_session(raw: bytes) -> SessionId:
    """The session id that 16 bytes stand for."""
    if len(raw) != SESSION_BYTES:
        raise InvalidError(f"a session id has {SESSION_BYTES} bytes, not {len(raw)}")
    return SessionId(raw.hex())


def read_dtype(name: str) -> DType:
    """The dtype of that name."""
    dtype = _DTYPES.get(name)
    if dtype is None:
        raise InvalidError(f"the dtype {name[:32]!r} is unknown")
    return dtype


def write_scheme(scheme: Scheme) -> types_pb2.TensorFrame.Scheme:
    """The number of a tensor scheme."""
    return _SCHEME_TO_WIRE[scheme]


def read_scheme(number: int) -> Scheme:
    """The tensor scheme of that number."""
    scheme = _SCHEME_FROM_WIRE.get(number)
    if scheme is None:
        raise InvalidError(f"the tensor scheme {number} is unknown")
    return scheme


def write_layers(layers: LayerRange) -> types_pb2.LayerRange:
    """A layer range as protobuf."""
    return types_pb2.LayerRange(start=layers.start, stop=layers.stop)


def read_layers(wire: types_pb2.LayerRange) -> LayerRange:
    """A layer range, which tests itself; an absent one is empty and fails."""
    return LayerRange(wire.start, wire.stop)


def write_ref(ref: ChunkRef) -> types_pb2.ChunkRef:
    """A chunk reference as protobuf."""
    return types_pb2.ChunkRef(
        session=write_session(ref.session), epoch=ref.epoch, seq=ref.seq, first_slot=ref.first_slot
    )


def read_ref(wire: types_pb2.ChunkRef) -> ChunkRef:
    """A chunk reference; an absent one has no session and fails."""
    return ChunkRef(read_session(wire.session), wire.epoch, wire.seq, Slot(wire.first_slot))


def write_address(address: PeerAddress) -> types_pb2.PeerAddress:
    """A peer's address as protobuf."""
    return types_pb2.PeerAddress(peer_id=address.peer_id, addresses=address.addresses)


def read_address(wire: types_pb2.PeerAddress) -> PeerAddress:
    """A peer's address."""
    check_count(len(wire.addresses), MAX_ADDRESSES, "addresses")
    return PeerAddress(PeerId(wire.peer_id), tuple(wire.addresses))


def write_tensor(frame: TensorFrame) -> tuple[bytes, ...]:
    """The protobuf bytes of a tensor in pieces to be joined, field by field as protobuf itself would write them.

    protobuf copies a nested message and grows its output by doubling, which costs a large tensor more than its
    encryption does.
    """
    head = types_pb2.TensorFrame(
        scheme=_SCHEME_TO_WIRE[frame.scheme], dtype=_DTYPE_TO_WIRE[frame.dtype], shape=frame.shape
    ).SerializeToString()
    scales = types_pb2.TensorFrame(scales=frame.scales).SerializeToString()
    return head, length_prefix(_DATA_FIELD, len(frame.data)), frame.data, scales


def length_prefix(field: int, length: int) -> bytes:
    """What stands before a bytes or message field of `length` bytes: tag (wire type 2) and length, as varints."""
    prefix = bytearray((field << 3 | 2,))
    while length > 0x7F:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    prefix.append(length)
    return bytes(prefix)


def read_tensor(wire: types_pb2.TensorFrame) -> TensorFrame:
    """A tensor of two dimensions and a known scheme and dtype; `check_tensor` tests the lengths."""
    dtype = _DTYPE_FROM_WIRE.get(wire.dtype)
    if dtype is None:
        raise InvalidError(f"the tensor dtype {wire.dtype} is unknown")
    if len(wire.shape) != 2:
        raise InvalidError(f"a tensor has the shape [rows, hidden], not {len(wire.shape)} dimensions")
    rows, hidden = wire.shape
    return TensorFrame(read_scheme(wire.scheme), dtype, (rows, hidden), wire.data, wire.scales)


def check_tensor(frame: TensorFrame) -> None:
    """The lengths are those that shape, scheme and dtype demand."""
    rows, hidden = frame.shape
    if not (1 <= rows <= MAX_ROWS and 1 <= hidden <= MAX_HIDDEN):
        raise InvalidError(f"the tensor shape [{rows}, {hidden}] is out of bounds")
    is_raw = frame.scheme == "raw"
    data_bytes = rows * hidden * (ITEM_BYTES[frame.dtype] if is_raw else 1)
    scales_bytes = 0 if is_raw else rows * SCALE_BYTES
    if len(frame.data) != data_bytes or len(frame.scales) != scales_bytes:
        raise InvalidError(
            f"a {frame.scheme} tensor [{rows}, {hidden}] of {frame.dtype} has {data_bytes} bytes and {scales_bytes} "
            f"of scales, not {len(frame.data)} and {len(frame.scales)}"
        )


def check_peer_id(peer_id: str) -> None:
    """The text could be a peer id: letters, digits, dot, hyphen, underscore."""
    if _PEER_ID.fullmatch(peer_id) is None:
        raise InvalidError(f"{peer_id[:64]!r} is no peer id")


def check_address(address: PeerAddress) -> None:
    """The peer id and each multiaddr are plausible text, and there are not too many."""
    check_peer_id(address.peer_id)
    check_count(len(address.addresses), MAX_ADDRESSES, "addresses")
    for text in address.addresses:
        if _ADDRESS.fullmatch(text) is None:
            raise InvalidError(f"{text[:64]!r} is no multiaddr")


def check_digest(digest: str) -> None:
    """The text is a lower-case hexadecimal sha256."""
    if _DIGEST.fullmatch(digest) is None:
        raise InvalidError("a digest has 64 lower-case hexadecimal digits")


def check_text(text: str, longest: int, what: str) -> None:
    """At most `longest` characters, all printable: the text of a stranger is shown on terminals."""
    if len(text) > longest or not text.isprintable():
        raise InvalidError(f"the {what} is longer than {longest} characters or not printable")


def check_count(count: int, most: int, what: str) -> None:
    """There are at most `most` of `what`."""
    if count > most:
        raise InvalidError(f"{count} {what}; at most {most} are allowed")


def check_ids(numbers: Sequence[int], what: str) -> None:
    """Every number is one that a slot or a token id may be."""
    if numbers and not 0 <= min(numbers) <= max(numbers) <= MAX_SLOT:
        raise InvalidError(f"the {what} are not all between 0 and {MAX_SLOT}")


def check_rows(ref: ChunkRef, parents: Sequence[Slot], root: Slot, quiet: int) -> None:
    """The rules of a chunk's rows: every parent is a smaller slot, and root and quiet lie within what was sent."""
    rows = len(parents)
    if not 1 <= rows <= MAX_ROWS:
        raise InvalidError(f"a chunk has 1 to {MAX_ROWS} rows, not {rows}")
    last = ref.first_slot + rows - 1
    if not 0 <= ref.first_slot <= last <= MAX_SLOT:
        raise InvalidError(f"the slots from {ref.first_slot} on are out of bounds")
    for slot, parent in enumerate(parents, ref.first_slot):
        if not (0 <= parent < slot or (slot == 0 and parent == NO_PARENT)):
            raise InvalidError(f"slot {slot} names {parent} as its parent")
    if not 0 <= root <= last:
        raise InvalidError(f"the root {root} was not sent: the last slot is {last}")
    if not 0 <= quiet <= rows:
        raise InvalidError(f"{quiet} of {rows} rows are quiet")
