"""The messages of /shardp2p/gossip/1 as protobuf and back. Rules: docs/protocols/gossip.md. Pure.

What comes in great numbers is packed: a heartbeat is 34 bytes and a want 8, without tags between them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final

from shardp2p.vocabulary import SwarmId
from shardp2p.wire.codec_parts import AnyCodec, InvalidError, MessageCodec, check_count, check_peer_id, check_text
from shardp2p.wire.news import Farewell, Greeting, Heartbeat, News, RecordNews, ShortId, ValueId, ValueNews
from shardp2p.wire.pb import gossip_pb2
from shardp2p.wire.records import CHAIN_BYTES, MAX_CHAIN_LENGTH, MAX_SEALED_BYTES, MAX_SEQUENCE

SHORT_BYTES: Final = 8
DIGEST_BYTES: Final = 16
MAX_HEARTBEATS: Final = 512
"""17 KiB; a view of thousands goes out in several messages."""
MAX_WANTS: Final = 128
MAX_OFFERS: Final = 256
MAX_RECORDS: Final = 64
MAX_VALUES: Final = 64
MAX_MEMBERSHIP_BYTES: Final = 1024
"""What identity.token.MAX_MEMBER_BYTES allows."""
MAX_VALUE_BYTES: Final = 8 * 1024
MAX_REASON_CHARACTERS: Final = 200
MAX_KIND: Final = 255

_HEARTBEAT = struct.Struct(f">{SHORT_BYTES}sHIHH{CHAIN_BYTES}s")
"""Short id, sequence (48 bits), count, age, proof."""
HEARTBEAT_BYTES: Final = _HEARTBEAT.size
_VALUE_ID = struct.Struct(f">B{DIGEST_BYTES}s")
_AGE_UNIT_S: Final = 1 / 8
_MAX_AGE: Final = 2**16 - 1


def _write_heartbeat(heartbeat: Heartbeat) -> bytes:
    high, low = divmod(heartbeat.sequence, 2**32)
    # Rounded up: an age that is lost on the way would let the dead live longer.
    age = min(_MAX_AGE, -int(-heartbeat.age_s // _AGE_UNIT_S))
    return _HEARTBEAT.pack(heartbeat.short, high, low, heartbeat.count, age, heartbeat.proof)


def _read_heartbeats(packed: bytes) -> Iterator[Heartbeat]:
    _check_packed(packed, _HEARTBEAT.size, "heartbeats")
    for short, high, low, count, age, proof in _HEARTBEAT.iter_unpack(packed):
        yield Heartbeat(ShortId(short), high << 32 | low, count, proof, age * _AGE_UNIT_S)


def _write_ids(ids: Iterable[ValueId]) -> bytes:
    return b"".join(_VALUE_ID.pack(value.kind, value.digest) for value in ids)


def _read_ids(packed: bytes) -> tuple[ValueId, ...]:
    _check_packed(packed, _VALUE_ID.size, "value ids")
    return tuple(ValueId(kind, digest) for kind, digest in _VALUE_ID.iter_unpack(packed))


def _check_packed(packed: bytes, size: int, what: str) -> None:
    if len(packed) % size:
        raise InvalidError(f"the {what} are cut short: {len(packed)} bytes are no multiple of {size}")


def _write_news(news: News) -> bytes:
    return gossip_pb2.News(
        heartbeats=b"".join(map(_write_heartbeat, news.heartbeats)),
        records=[
            gossip_pb2.RecordNews(
                sealed=record.sealed, heartbeat=_write_heartbeat(record.heartbeat), membership=record.membership
            )
            for record in news.records
        ],
        record_wants=b"".join(news.record_wants),
        offers=_write_ids(news.offers),
        value_wants=_write_ids(news.value_wants),
        values=[gossip_pb2.ValueNews(kind=value.kind, sealed=value.sealed) for value in news.values],
        proof_wants=b"".join(news.proof_wants),
    ).SerializeToString(deterministic=True)


def _read_news(wire: gossip_pb2.News) -> News:
    check_count(len(wire.records), MAX_RECORDS, "records")
    check_count(len(wire.values), MAX_VALUES, "values")
    return News(
        heartbeats=tuple(_read_heartbeats(wire.heartbeats)),
        records=tuple(map(_read_record, wire.records)),
        record_wants=_read_wants(wire.record_wants),
        offers=_read_ids(wire.offers),
        value_wants=_read_ids(wire.value_wants),
        values=tuple(ValueNews(value.kind, value.sealed) for value in wire.values),
        proof_wants=_read_wants(wire.proof_wants),
    )


def _read_wants(packed: bytes) -> tuple[ShortId, ...]:
    _check_packed(packed, SHORT_BYTES, "wants")
    return tuple(ShortId(packed[at : at + SHORT_BYTES]) for at in range(0, len(packed), SHORT_BYTES))


def _read_record(wire: gossip_pb2.RecordNews) -> RecordNews:
    heartbeats = tuple(_read_heartbeats(wire.heartbeat))
    if len(heartbeats) != 1:
        raise InvalidError(f"a record comes with one heartbeat, not {len(heartbeats)}")
    return RecordNews(wire.sealed, heartbeats[0], wire.membership)


def _check_news(news: News) -> None:
    check_count(len(news.heartbeats), MAX_HEARTBEATS, "heartbeats")
    check_count(len(news.record_wants) + len(news.proof_wants), MAX_WANTS, "wants")
    check_count(len(news.value_wants), MAX_WANTS, "wants")
    check_count(len(news.offers), MAX_OFFERS, "offers")
    check_count(len(news.records), MAX_RECORDS, "records")
    check_count(len(news.values), MAX_VALUES, "values")
    for heartbeat in (*news.heartbeats, *(record.heartbeat for record in news.records)):
        if not (1 <= heartbeat.sequence <= MAX_SEQUENCE and 0 <= heartbeat.count <= MAX_CHAIN_LENGTH):
            raise InvalidError(f"a heartbeat {heartbeat.sequence}/{heartbeat.count} is out of bounds")
        if len(heartbeat.short) != SHORT_BYTES or len(heartbeat.proof) != CHAIN_BYTES or heartbeat.age_s < 0:
            raise InvalidError("a heartbeat has a short id, a proof and an age")
    for record in news.records:
        check_count(len(record.sealed), MAX_SEALED_BYTES, "bytes of a record")
        check_count(len(record.membership), MAX_MEMBERSHIP_BYTES, "bytes of a proof of membership")
    for value in news.values:
        check_count(len(value.sealed), MAX_VALUE_BYTES, "bytes of a value")
        check_count(value.kind, MAX_KIND, "as the kind of a value")


def _check_farewell(message: Farewell) -> None:
    check_text(message.reason, MAX_REASON_CHARACTERS, "reason")


CODECS: Final[dict[type, AnyCodec]] = {
    Greeting: MessageCodec(
        gossip_pb2.Greeting,
        lambda greeting: gossip_pb2.Greeting(swarm=greeting.swarm).SerializeToString(),
        lambda wire: Greeting(SwarmId(wire.swarm)),
        lambda greeting: check_peer_id(greeting.swarm),
    ),
    News: MessageCodec(gossip_pb2.News, _write_news, _read_news, _check_news),
    Farewell: MessageCodec(
        gossip_pb2.Farewell,
        lambda farewell: gossip_pb2.Farewell(reason=farewell.reason).SerializeToString(),
        lambda wire: Farewell(wire.reason),
        _check_farewell,
    ),
}
