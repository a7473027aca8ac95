"""The messages of /shardp2p/swarm/1 as protobuf and back. Rules: docs/protocols/swarm.md. Pure."""

from __future__ import annotations

from typing import Final

from shardp2p.vocabulary import PeerId
from shardp2p.wire.codec_parts import (
    AnyCodec,
    InvalidError,
    MessageCodec,
    accept,
    check_count,
    check_digest,
    check_peer_id,
    check_text,
    read_dtype,
    read_layers,
    write_layers,
)
from shardp2p.wire.messages import AskRecord, Describe, MemberInfo, OwnRecord, Ping, Pong
from shardp2p.wire.pb import swarm_pb2

MAX_SEALED_BYTES: Final = 8 * 1024 + 96
"""What records.MAX_SEALED_BYTES allows."""
MAX_VERSION_CHARACTERS: Final = 64
MAX_MODEL_CHARACTERS: Final = 256
MAX_DEVICE_CHARACTERS: Final = 128
NONCE_BYTES: Final = 16
MAX_PADDING_BYTES: Final = 31 * 1024
"""Eight of them, with their headers, stay below the 256 KiB that a stream takes before its reader must answer."""
MAX_ROOM_BYTES: Final = 2**30


def _write_member(message: MemberInfo) -> bytes:
    return swarm_pb2.MemberInfo(
        peer_id=message.peer_id,
        version=message.version,
        model=message.model,
        model_digest=message.model_digest,
        model_layers=message.model_layers,
        layers=None if message.layers is None else write_layers(message.layers),
        dtype=message.dtype,
        context_tokens=message.context_tokens,
        layer_bytes=message.layer_bytes,
        rss_bytes=message.rss_bytes,
        pid=message.pid,
        free_cache_rows=message.free_cache_rows,
        device=message.device,
        load_growth_bytes=message.load_growth_bytes,
    ).SerializeToString()


def _read_member(wire: swarm_pb2.MemberInfo) -> MemberInfo:
    return MemberInfo(
        peer_id=PeerId(wire.peer_id),
        version=wire.version,
        pid=wire.pid,
        rss_bytes=wire.rss_bytes,
        model=wire.model,
        model_digest=wire.model_digest,
        model_layers=wire.model_layers,
        layers=read_layers(wire.layers) if wire.HasField("layers") else None,
        dtype=read_dtype(wire.dtype),
        context_tokens=wire.context_tokens,
        layer_bytes=wire.layer_bytes,
        load_growth_bytes=wire.load_growth_bytes,
        free_cache_rows=wire.free_cache_rows,
        device=wire.device,
    )


def _check_member(message: MemberInfo) -> None:
    check_peer_id(message.peer_id)
    read_dtype(message.dtype)
    check_text(message.version, MAX_VERSION_CHARACTERS, "version")
    check_text(message.model, MAX_MODEL_CHARACTERS, "model name")
    check_text(message.device, MAX_DEVICE_CHARACTERS, "device name")
    if message.model_digest:
        check_digest(message.model_digest)
    if message.layers is not None and message.layers.stop > message.model_layers:
        raise InvalidError(f"the layers {message.layers} lie outside a model of {message.model_layers} layers")


def _write_ping(message: Ping) -> bytes:
    return swarm_pb2.Ping(nonce=message.nonce, padding=message.padding).SerializeToString()


def _read_ping(wire: swarm_pb2.Ping) -> Ping:
    return Ping(wire.nonce, wire.padding)


def _check_ping(message: Ping) -> None:
    _check_nonce(message.nonce)
    check_count(len(message.padding), MAX_PADDING_BYTES, "bytes of padding")


def _write_pong(message: Pong) -> bytes:
    return swarm_pb2.Pong(nonce=message.nonce, room_bytes=message.room_bytes).SerializeToString()


def _read_pong(wire: swarm_pb2.Pong) -> Pong:
    return Pong(wire.nonce, wire.room_bytes)


def _check_pong(message: Pong) -> None:
    _check_nonce(message.nonce)
    check_count(message.room_bytes, MAX_ROOM_BYTES, "bytes of room")


def _check_nonce(nonce: bytes) -> None:
    if len(nonce) != NONCE_BYTES:
        raise InvalidError(f"a nonce has {NONCE_BYTES} bytes, not {len(nonce)}")


def _write_own_record(message: OwnRecord) -> bytes:
    return swarm_pb2.OwnRecord(sealed=message.sealed).SerializeToString()


def _read_own_record(wire: swarm_pb2.OwnRecord) -> OwnRecord:
    return OwnRecord(wire.sealed)


def _check_own_record(message: OwnRecord) -> None:
    check_count(len(message.sealed), MAX_SEALED_BYTES, "bytes of a sealed record")


CODECS: Final[dict[type, AnyCodec]] = {
    Describe: MessageCodec(swarm_pb2.Describe, lambda _: b"", lambda _: Describe(), accept),
    MemberInfo: MessageCodec(swarm_pb2.MemberInfo, _write_member, _read_member, _check_member),
    AskRecord: MessageCodec(swarm_pb2.AskRecord, lambda _: b"", lambda _: AskRecord(), accept),
    OwnRecord: MessageCodec(
        swarm_pb2.OwnRecord, _write_own_record, lambda wire: OwnRecord(wire.sealed), _check_own_record
    ),
    Ping: MessageCodec(swarm_pb2.Ping, _write_ping, _read_ping, _check_ping),
    Pong: MessageCodec(swarm_pb2.Pong, _write_pong, _read_pong, _check_pong),
}
