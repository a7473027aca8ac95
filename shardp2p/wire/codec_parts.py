"""What the codecs of several protocols share: ids, ranges, references and addresses. Pure.

A `read_…` turns protobuf into a value, a `write_…` the reverse, a `check_…` tests a value. All raise InvalidError
(or, where a value tests itself, ConfigError); wire.codec says whose fault that is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, get_args

from google.protobuf.message import Message as ProtobufMessage

from shardp2p.vocabulary import NO_PARENT, ChunkRef, DType, LayerRange, PeerId, SessionId, Slot
from shardp2p.wire.messages import PeerAddress
from shardp2p.wire.pb import types_pb2
from shardp2p.wire.protocols import MAX_ROWS, MAX_SLOT
from shardp2p.wire.tensor_frame import Buffer

M = TypeVar("M")
P = TypeVar("P", bound=ProtobufMessage)

SESSION_BYTES: Final = 16
MAX_ADDRESSES: Final = 32

_DTYPES: Final[dict[str, DType]] = {name: name for name in get_args(DType)}

# Ids are used as names in logs and file names, so their alphabet is narrow; base58 and base32 lie within it.
_PEER_ID = re.compile(r"[0-9A-Za-z._-]{1,128}")
_ADDRESS = re.compile(r"/[\x21-\x7e]{1,511}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class InvalidError(ValueError):
    """A message breaks the rules of its protocol page; wire.codec turns this into a ShardError."""


@dataclass(frozen=True, slots=True)
class MessageCodec(Generic[M, P]):
    """How one message is written, read and tested. `check` sees the value before it is written and after it is
    read, so both sides hold to the same rules. `write` may give the payload in pieces; `read_large`, where there is
    one, reads a large payload where it lies, or gives None where `read` has to.
    """

    wire: type[P]
    write: Callable[[M], Buffer | tuple[Buffer, ...]]
    read: Callable[[P], M]
    check: Callable[[M], None]
    read_large: Callable[[memoryview], M | None] | None = None


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
