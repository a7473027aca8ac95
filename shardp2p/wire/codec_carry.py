"""The messages of /shardp2p/carry/1 as protobuf and back. Rules: docs/protocols/carry.md. Pure."""

from __future__ import annotations

from typing import Final

from shardp2p.wire.carrying import Name, Named, Refused, Resume, Resumed
from shardp2p.wire.codec_parts import AnyCodec, InvalidError, MessageCodec, accept, check_text
from shardp2p.wire.pb import carry_pb2

NAME_BYTES: Final = 16
MAX_REASON_CHARACTERS: Final = 48
"""In four-byte characters it still fits a small message."""


def _check_name(message: Name | Resume) -> None:
    if len(message.name) != NAME_BYTES:
        raise InvalidError(f"the name of a connection has {NAME_BYTES} bytes, not {len(message.name)}")


def _check_resume(message: Resume) -> None:
    _check_name(message)
    if message.turn < 1:
        raise InvalidError("the first turn is 1")


def _write_resume(message: Resume) -> bytes:
    return carry_pb2.Resume(name=message.name, turn=message.turn, received=message.received).SerializeToString()


def _read_resume(wire: carry_pb2.Resume) -> Resume:
    return Resume(wire.name, wire.turn, wire.received)


def _write_resumed(message: Resumed) -> bytes:
    return carry_pb2.Resumed(received=message.received).SerializeToString()


def _read_resumed(wire: carry_pb2.Resumed) -> Resumed:
    return Resumed(wire.received)


def _write_name(message: Name) -> bytes:
    return carry_pb2.Name(name=message.name).SerializeToString()


def _read_name(wire: carry_pb2.Name) -> Name:
    return Name(wire.name)


def _write_refused(message: Refused) -> bytes:
    return carry_pb2.Refused(reason=message.reason).SerializeToString()


def _read_refused(wire: carry_pb2.Refused) -> Refused:
    return Refused(wire.reason)


def _check_refused(message: Refused) -> None:
    check_text(message.reason, MAX_REASON_CHARACTERS, "reason")


CODECS: Final[dict[type, AnyCodec]] = {
    Name: MessageCodec(carry_pb2.Name, _write_name, _read_name, _check_name),
    Named: MessageCodec(carry_pb2.Named, lambda _: b"", lambda _: Named(), accept),
    Resume: MessageCodec(carry_pb2.Resume, _write_resume, _read_resume, _check_resume),
    Resumed: MessageCodec(carry_pb2.Resumed, _write_resumed, _read_resumed, accept),
    Refused: MessageCodec(carry_pb2.Refused, _write_refused, _read_refused, _check_refused),
}
