"""The messages of /shardp2p/swarm/1 as protobuf and back. Rules: docs/protocols/swarm.md. Pure."""

from __future__ import annotations

import ipaddress
from typing import Final, get_args

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
from shardp2p.wire.dialling_back import AskDialBack, DialBackResult, DialOutcome
from shardp2p.wire.messages import AskRecord, Describe, MemberInfo, OwnRecord, Ping, Pong
from shardp2p.wire.pb import swarm_pb2
from shardp2p.wire.seen import AskSeen, Seen

MAX_SEALED_BYTES: Final = 8 * 1024 + 96
"""What records.MAX_SEALED_BYTES allows."""
MAX_VERSION_CHARACTERS: Final = 64
MAX_MODEL_CHARACTERS: Final = 256
MAX_DEVICE_CHARACTERS: Final = 128
NONCE_BYTES: Final = 16
MAX_PADDING_BYTES: Final = 31 * 1024
"""Eight of them, with their headers, stay below the 256 KiB that a stream takes before its reader must answer."""
MAX_ROOM_BYTES: Final = 2**30
MAX_DIAL_PORTS: Final = 4
"""Where a peer may hope to be reached: it listens on one port, a router may have mapped another, and few have more."""
MAX_PORT: Final = 2**16 - 1

_OUTCOME_TO_WIRE: Final[dict[DialOutcome, swarm_pb2.Outcome]] = {
    "open": swarm_pb2.OPEN,
    "other": swarm_pb2.OTHER,
    "refused": swarm_pb2.REFUSED,
    "timeout": swarm_pb2.TIMEOUT,
}
_OUTCOME_FROM_WIRE: Final[dict[int, DialOutcome]] = {number: name for name, number in _OUTCOME_TO_WIRE.items()}


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


def _write_ask_dial_back(message: AskDialBack) -> bytes:
    return swarm_pb2.AskDialBack(nonce=message.nonce, ports=message.ports).SerializeToString()


def _read_ask_dial_back(wire: swarm_pb2.AskDialBack) -> AskDialBack:
    check_count(len(wire.ports), MAX_DIAL_PORTS, "ports")
    return AskDialBack(wire.nonce, tuple(wire.ports))


def _check_ask_dial_back(message: AskDialBack) -> None:
    _check_nonce(message.nonce)
    check_count(len(message.ports), MAX_DIAL_PORTS, "ports")
    if not message.ports or len(set(message.ports)) < len(message.ports):
        raise InvalidError("a dial-back is asked to at least one port, and to each once")
    for port in message.ports:
        _check_port(port)


def _write_dial_back_result(message: DialBackResult) -> bytes:
    return swarm_pb2.DialBackResult(
        nonce=message.nonce,
        host=message.host,
        port=message.port,
        outcomes=[_OUTCOME_TO_WIRE[outcome] for outcome in message.outcomes],
    ).SerializeToString()


def _read_dial_back_result(wire: swarm_pb2.DialBackResult) -> DialBackResult:
    check_count(len(wire.outcomes), MAX_DIAL_PORTS, "outcomes")
    outcomes = tuple(_OUTCOME_FROM_WIRE.get(number) for number in wire.outcomes)
    return DialBackResult(wire.nonce, wire.host, wire.port, tuple(_known(outcome) for outcome in outcomes))


def _known(outcome: DialOutcome | None) -> DialOutcome:
    if outcome is None:
        raise InvalidError("an outcome is unknown")
    return outcome


def _check_dial_back_result(message: DialBackResult) -> None:
    _check_nonce(message.nonce)
    _check_ip(message.host)
    _check_port(message.port)
    check_count(len(message.outcomes), MAX_DIAL_PORTS, "outcomes")
    if not message.outcomes:
        raise InvalidError("a dial-back without an outcome")
    for outcome in message.outcomes:
        if outcome not in get_args(DialOutcome):
            raise InvalidError(f"the outcome {outcome!r} is unknown")


def _write_seen(message: Seen) -> bytes:
    return swarm_pb2.Seen(host=message.host, port=message.port).SerializeToString()


def _read_seen(wire: swarm_pb2.Seen) -> Seen:
    return Seen(wire.host, wire.port)


def _check_seen(message: Seen) -> None:
    if message != Seen("", 0):
        _check_ip(message.host)
        _check_port(message.port)


def _check_port(port: int) -> None:
    if not 1 <= port <= MAX_PORT:
        raise InvalidError(f"{port} is no port")


def _check_ip(host: str) -> None:
    """The text is an IP address as it is written shortest, without a zone."""
    try:
        is_canonical = len(host) <= MAX_VERSION_CHARACTERS and str(ipaddress.ip_address(host)) == host
    except ValueError:
        is_canonical = False
    if not is_canonical or "%" in host:
        raise InvalidError(f"{host[:64]!r} is no IP address")


CODECS: Final[dict[type, AnyCodec]] = {
    Describe: MessageCodec(swarm_pb2.Describe, lambda _: b"", lambda _: Describe(), accept),
    MemberInfo: MessageCodec(swarm_pb2.MemberInfo, _write_member, _read_member, _check_member),
    AskRecord: MessageCodec(swarm_pb2.AskRecord, lambda _: b"", lambda _: AskRecord(), accept),
    OwnRecord: MessageCodec(
        swarm_pb2.OwnRecord, _write_own_record, lambda wire: OwnRecord(wire.sealed), _check_own_record
    ),
    Ping: MessageCodec(swarm_pb2.Ping, _write_ping, _read_ping, _check_ping),
    Pong: MessageCodec(swarm_pb2.Pong, _write_pong, _read_pong, _check_pong),
    AskSeen: MessageCodec(swarm_pb2.AskSeen, lambda _: b"", lambda _: AskSeen(), accept),
    Seen: MessageCodec(swarm_pb2.Seen, _write_seen, _read_seen, _check_seen),
    AskDialBack: MessageCodec(swarm_pb2.AskDialBack, _write_ask_dial_back, _read_ask_dial_back, _check_ask_dial_back),
    DialBackResult: MessageCodec(
        swarm_pb2.DialBackResult, _write_dial_back_result, _read_dial_back_result, _check_dial_back_result
    ),
}
