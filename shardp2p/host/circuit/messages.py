"""The bytes of circuit v2: protobufs with a length before them, by libp2p's own schema. Awaits nothing."""

from __future__ import annotations

from typing import Final

from google.protobuf.message import DecodeError
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.pb import circuit_pb2 as pb

from shardp2p.errors import ConfigError, RemoteProtocolError
from shardp2p.host.circuit.values import (
    Connect,
    HopAnswer,
    HopMessage,
    Incoming,
    Limit,
    Reserve,
    Status,
    StopAnswer,
    StopMessage,
)
from shardp2p.host.peer_ids import id_of, peer_of
from shardp2p.vocabulary import PeerId

MAX_MESSAGE_BYTES: Final = 4096
"""As libp2p has it: a peer id, some addresses and a signed voucher fit."""


class LengthPrefix:
    """The length before a message, taken byte by byte, so that not one byte beyond the message is read."""

    def __init__(self) -> None:
        self._length = 0
        self._shift = 0

    def feed(self, byte: int) -> int | None:
        """The length of what follows, None while bytes of it are missing. Raises: RemoteProtocolError."""
        self._length |= (byte & 0x7F) << self._shift
        if self._length > MAX_MESSAGE_BYTES or (byte & 0x80 and self._shift):
            raise RemoteProtocolError(f"a circuit message is longer than {MAX_MESSAGE_BYTES} bytes")
        self._shift += 7
        return None if byte & 0x80 else self._length


def delimited(message: bytes) -> bytes:
    """`message` with its length before it."""
    size = len(message)
    prefix = bytes((size,)) if size < 0x80 else bytes((size & 0x7F | 0x80, size >> 7))
    return prefix + message


def encode_hop(message: HopMessage) -> bytes:
    """The bytes of a message of HOP, with their length."""
    made = pb.HopMessage()
    match message:
        case Reserve():
            made.type = pb.HopMessage.RESERVE
        case Connect(peer):
            made.type = pb.HopMessage.CONNECT
            made.peer.id = id_of(peer).to_bytes()
        case HopAnswer(status, expires_at_s, limit):
            made.type = pb.HopMessage.STATUS
            made.status = pb.Status.ValueType(status)
            if expires_at_s:
                made.reservation.expire = expires_at_s
            _set_limit(made.limit, limit)
    return delimited(made.SerializeToString(deterministic=True))


def decode_hop(data: bytes) -> HopMessage:
    """The message of HOP in `data`, which comes without its length. Raises: RemoteProtocolError."""
    message = pb.HopMessage()
    _parse(message, data)
    if not message.HasField("type"):
        raise RemoteProtocolError("a hop message has no type")
    if message.type == pb.HopMessage.RESERVE:
        return Reserve()
    if message.type == pb.HopMessage.CONNECT:
        return Connect(_peer_of(message.peer))
    if message.type == pb.HopMessage.STATUS:
        return HopAnswer(_status_of(message.status), message.reservation.expire, _limit_of(message.limit))
    raise RemoteProtocolError(f"a hop message has the unknown type {message.type}")


def encode_stop(message: StopMessage) -> bytes:
    """The bytes of a message of STOP, with their length."""
    made = pb.StopMessage()
    match message:
        case Incoming(peer, limit):
            made.type = pb.StopMessage.CONNECT
            made.peer.id = id_of(peer).to_bytes()
            _set_limit(made.limit, limit)
        case StopAnswer(status):
            made.type = pb.StopMessage.STATUS
            made.status = pb.Status.ValueType(status)
    return delimited(made.SerializeToString(deterministic=True))


def decode_stop(data: bytes) -> StopMessage:
    """The message of STOP in `data`, which comes without its length. Raises: RemoteProtocolError."""
    message = pb.StopMessage()
    _parse(message, data)
    if not message.HasField("type"):
        raise RemoteProtocolError("a stop message has no type")
    if message.type == pb.StopMessage.CONNECT:
        return Incoming(_peer_of(message.peer), _limit_of(message.limit))
    if message.type == pb.StopMessage.STATUS:
        return StopAnswer(_status_of(message.status))
    raise RemoteProtocolError(f"a stop message has the unknown type {message.type}")


def _parse(message: pb.HopMessage | pb.StopMessage, data: bytes) -> None:
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise RemoteProtocolError("a circuit message cannot be decoded") from error


def _peer_of(message: pb.PeerId) -> PeerId:
    try:
        return peer_of(ID(message.id))
    except ConfigError as error:
        raise RemoteProtocolError("a circuit message names no valid peer id") from error


def _set_limit(made: pb.Limit, limit: Limit) -> None:
    """No limit is no field."""
    if limit.duration_s:
        made.duration = limit.duration_s
    if limit.data_bytes:
        made.data = limit.data_bytes


def _limit_of(message: pb.Limit) -> Limit:
    return Limit(message.duration, message.data)


def _status_of(number: int) -> Status:
    try:
        return Status(number)
    except ValueError as error:
        raise RemoteProtocolError(f"a circuit message has the unknown status {number}") from error
