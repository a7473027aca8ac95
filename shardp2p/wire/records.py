"""Coverage records: what a peer says of itself, as frozen values and as the bytes that it seals. Pure.

The rules of each field stand in docs/protocols/gossip.md; both sides apply them, so a value that was decoded has passed
every one. Who signed the bytes, and whether that is the peer they speak of: `swarm.sealed_records`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final, Literal, get_args

from google.protobuf.message import DecodeError

from shardp2p.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from shardp2p.vocabulary import DType, LayerRange, ModelId, PeerId, SwarmId
from shardp2p.wire.codec_parts import (
    InvalidError,
    check_address,
    check_count,
    check_digest,
    check_peer_id,
    check_text,
    read_dtype,
    read_layers,
    write_layers,
)
from shardp2p.wire.deflated import deflate, inflate
from shardp2p.wire.messages import PeerAddress
from shardp2p.wire.pb import records_pb2

NodeState = Literal["joining", "placing", "loading", "serving", "draining"]
Reachability = Literal["unknown", "public", "punchable", "relayed", "unreachable"]

RECORD_DOMAIN: Final = "coverage/1"
"""The domain tag under which a record is sealed: the same bytes mean nothing elsewhere."""

MAX_RECORD_BYTES: Final = 8 * 1024
"""Deflated or not; typical records have 1 KiB, then 0.7. A view of MAX_PEERS of the largest stays within 128 MiB."""
MAX_SEALED_BYTES: Final = MAX_RECORD_BYTES + 96
"""With the key and the signature of `identity.signed`."""
MAX_HELD: Final = 16
"""Ranges in the memory of one machine; more would be worth merging."""
MAX_LINKS: Final = 32
"""Peers that one machine measures: a bounded sample is enough to place every peer in a network map."""
MAX_ADDRESSES: Final = 16
MAX_LAYERS: Final = 10_000
MAX_BYTES: Final = 2**50
"""No machine has a pebibyte of memory: what claims more is a mistake or a lie."""
MAX_LAYER_S: Final = 600.0
MAX_RTT_S: Final = 60.0
MAX_BANDWIDTH_BYTES_S: Final = 1e12
MAX_LIFETIME_S: Final = 600.0
"""A dead peer is believed in no longer than this, whatever its last record says."""
MAX_SEQUENCE: Final = 2**48 - 1
"""Sequences begin at the Unix time in milliseconds, so that a restart goes on above its past."""
MAX_ISSUED_AT_S: Final = 1e11
MAX_ROWS_OR_TOKENS: Final = 2**31 - 1
MAX_NAME_CHARACTERS: Final = 256
MAX_LABEL_CHARACTERS: Final = 64
CHAIN_BYTES: Final = 16
MAX_CHAIN_LENGTH: Final = 1024
"""What a receiver may have to hash for one heartbeat: under a millisecond."""

_NESTED: Final = ("held", "layers", "links")


@dataclass(frozen=True, slots=True)
class HeldLayers:
    """A layer range that a peer holds, or is loading: `state` is loading, serving or draining.

    `layer_bytes` counts the whole range. The two speeds are seconds that one layer takes under load, for a chunk of one
    token and for each token of a wide chunk; both are 0 only while the range is loading and nothing was measured.
    """

    model: ModelId
    model_digest: str
    model_layers: int
    layers: LayerRange
    state: NodeState
    dtype: DType
    context_tokens: int
    layer_bytes: int
    cache_rows: int
    free_cache_rows: int
    decode_layer_s: float
    prefill_layer_s: float


@dataclass(frozen=True, slots=True)
class Link:
    """What a peer measured on its way to another. A bandwidth of 0 was not measured."""

    peer: PeerId
    rtt_s: float
    spread_s: float
    bandwidth_bytes_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CoverageRecord:
    """What a peer says of itself. The newest `sequence` counts; `issued_at_s` is its own clock's, good for display.

    `chain_anchor` is the end of the hash chain that its heartbeats reveal (`swarm.heartbeats`), or b"" for none.
    `started_at_s` is when the run of the peer began that made it, by the same clock, or 0 where it does not tell.
    """

    swarm: SwarmId
    peer_id: PeerId
    sequence: int
    issued_at_s: float
    lifetime_s: float
    state: NodeState
    addresses: tuple[str, ...] = ()
    reachability: Reachability = "unknown"
    region: str = ""
    version: str = ""
    memory_bytes: int = 0
    free_memory_bytes: int = 0
    held: tuple[HeldLayers, ...] = ()
    links: tuple[Link, ...] = ()
    chain_anchor: bytes = b""
    chain_length: int = 0
    started_at_s: float = 0.0

    @property
    def is_departure(self) -> bool:
        """Whether it is a peer's last word: it has left."""
        return self.lifetime_s == 0.0


def encode_record(record: CoverageRecord) -> bytes:
    """The bytes to be sealed. Raises LocalProtocolError for a record that breaks the rules."""
    try:
        check_record(record)
        payload = _write(record).SerializeToString(deterministic=True)
        for data in (payload, deflated := deflate(payload)):
            check_count(len(data), MAX_RECORD_BYTES, "bytes")
    except (ValueError, TypeError, KeyError) as error:
        raise LocalProtocolError(f"this coverage record must not be published: {error}") from error
    return deflated


def decode_record(payload: bytes) -> CoverageRecord:
    """The record in unsealed bytes. Raises RemoteProtocolError, and nothing else, whatever the bytes."""
    try:
        check_count(len(payload), MAX_RECORD_BYTES, "bytes")
        record = _read(records_pb2.CoverageRecord.FromString(inflate(payload, MAX_RECORD_BYTES)))
        check_record(record)
    except (DecodeError, InvalidError, ConfigError) as error:
        raise RemoteProtocolError(f"a coverage record is malformed: {error}") from error
    return record


def check_record(record: CoverageRecord) -> None:
    """Every rule of docs/protocols/gossip.md. Raises InvalidError."""
    check_peer_id(record.swarm)
    check_address(PeerAddress(record.peer_id, record.addresses))
    check_count(len(record.addresses), MAX_ADDRESSES, "addresses")
    _check_among(record.state, get_args(NodeState), "state")
    _check_among(record.reachability, get_args(Reachability), "reachability")
    check_text(record.region, MAX_LABEL_CHARACTERS, "region")
    check_text(record.version, MAX_LABEL_CHARACTERS, "version")
    _check_between(record.sequence, 1, MAX_SEQUENCE, "sequence")
    _check_between(record.issued_at_s, 0, MAX_ISSUED_AT_S, "time of issue")
    _check_between(record.started_at_s, 0, MAX_ISSUED_AT_S, "time of the start")
    _check_between(record.lifetime_s, 0, MAX_LIFETIME_S, "lifetime")
    _check_between(record.memory_bytes, 0, MAX_BYTES, "memory")
    _check_between(record.free_memory_bytes, 0, record.memory_bytes, "free memory")
    if record.is_departure and record.state != "draining":
        raise InvalidError("a record without a lifetime is a departure, whose state is draining")
    is_chained = len(record.chain_anchor) == CHAIN_BYTES and 1 <= record.chain_length <= MAX_CHAIN_LENGTH
    if not is_chained and (record.chain_anchor or record.chain_length):
        raise InvalidError(f"a heartbeat chain has {CHAIN_BYTES} bytes and 1 to {MAX_CHAIN_LENGTH} links")
    check_count(len(record.held), MAX_HELD, "held ranges")
    for held in record.held:
        _check_held(held)
    check_count(len(record.links), MAX_LINKS, "links")
    for link in record.links:
        _check_link(link, record.peer_id)
    if len({(held.model_digest, held.layers) for held in record.held}) < len(record.held):
        raise InvalidError("a held range is named twice")
    if len({link.peer for link in record.links}) < len(record.links):
        raise InvalidError("a link is named twice")


def _check_held(held: HeldLayers) -> None:
    is_measured = held.state != "loading"
    check_text(held.model, MAX_NAME_CHARACTERS, "model name")
    check_digest(held.model_digest)
    read_dtype(held.dtype)
    _check_among(held.state, ("loading", "serving", "draining"), "state of held layers")
    _check_between(held.model_layers, 1, MAX_LAYERS, "number of layers")
    if held.layers.stop > held.model_layers:
        raise InvalidError(f"the layers {held.layers} lie outside a model of {held.model_layers} layers")
    _check_between(held.context_tokens, 1, MAX_ROWS_OR_TOKENS, "context")
    _check_between(held.layer_bytes, 1, MAX_BYTES, "size of the layers")
    _check_between(held.cache_rows, 1 if is_measured else 0, MAX_ROWS_OR_TOKENS, "number of cache rows")
    _check_between(held.free_cache_rows, 0, held.cache_rows, "number of free cache rows")
    for seconds in (held.decode_layer_s, held.prefill_layer_s):
        _check_between(seconds, 0, MAX_LAYER_S, "time of a layer")
        if is_measured and seconds == 0:
            raise InvalidError("a layer that serves takes some time")


def _check_link(link: Link, owner: PeerId) -> None:
    check_peer_id(link.peer)
    if link.peer == owner:
        raise InvalidError("a link leads to the peer itself")
    _check_between(link.rtt_s, 0, MAX_RTT_S, "round trip time")
    if link.rtt_s == 0:
        raise InvalidError("a round trip takes some time")
    _check_between(link.spread_s, 0, MAX_RTT_S, "spread of the round trip time")
    _check_between(link.bandwidth_bytes_s, 0, MAX_BANDWIDTH_BYTES_S, "bandwidth")


def _check_among(name: str, known: tuple[str, ...], what: str) -> None:
    if name not in known:
        raise InvalidError(f"the {what} {name[:32]!r} is unknown")


def _check_between(value: float, least: float, most: float, what: str) -> None:
    """The value is a number (not NaN) within the bounds."""
    if not least <= value <= most:
        raise InvalidError(f"the {what} {value!r:.40} is not between {least!r:.40} and {most!r:.40}")


def _write(record: CoverageRecord) -> records_pb2.CoverageRecord:
    wire = records_pb2.CoverageRecord(**_plain(CoverageRecord, record))
    for held in record.held:
        wire.held.add(**_plain(HeldLayers, held), layers=write_layers(held.layers))
    for link in record.links:
        wire.links.add(**_plain(Link, link))
    return wire


def _read(wire: records_pb2.CoverageRecord) -> CoverageRecord:
    check_count(len(wire.held), MAX_HELD, "held ranges")
    check_count(len(wire.links), MAX_LINKS, "links")
    plain = _plain(CoverageRecord, wire)
    plain["addresses"] = tuple(wire.addresses)
    return CoverageRecord(
        held=tuple(HeldLayers(layers=read_layers(held.layers), **_plain(HeldLayers, held)) for held in wire.held),
        links=tuple(Link(**_plain(Link, link)) for link in wire.links),
        **plain,
    )


def _plain(kind: type[CoverageRecord | HeldLayers | Link], source: object) -> dict[str, Any]:
    """The fields of `kind` that protobuf has by the same name and in the same form, as `source` has them."""
    return {field.name: getattr(source, field.name) for field in fields(kind) if field.name not in _NESTED}
