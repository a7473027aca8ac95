"""Coverage records with their seals: who may say what about whom. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from shardp2p.errors import IntegrityError, RemoteProtocolError
from shardp2p.identity.keys import PUBLIC_BYTES, Identity, public_bytes_of
from shardp2p.identity.signed import SEAL_BYTES, seal, unseal
from shardp2p.vocabulary import PeerId, SwarmId
from shardp2p.wire.codec_gossip import SHORT_BYTES
from shardp2p.wire.news import ShortId
from shardp2p.wire.records import RECORD_DOMAIN, CoverageRecord, decode_record, encode_record

OpenRecord = Callable[[bytes, SwarmId], CoverageRecord]

_PAYLOAD: Final = slice(SEAL_BYTES, None)


def seal_record(identity: Identity, record: CoverageRecord) -> bytes:
    """The sealed bytes of our own record. Raises LocalProtocolError for one that breaks the rules."""
    return seal(identity, RECORD_DOMAIN, encode_record(record))


def open_record(sealed: bytes, swarm: SwarmId) -> CoverageRecord:
    """The record in sealed bytes, once it is clear that its peer made it for `swarm`.

    Raises: RemoteProtocolError for malformed bytes or another swarm's record; IntegrityError for a wrong signature or
    a record that one peer made about another.
    """
    opened = unseal(sealed, RECORD_DOMAIN)
    record = decode_record(opened.payload)
    if record.peer_id != opened.signer:
        raise IntegrityError(f"a record about {record.peer_id} was signed by {opened.signer}", opened.signer)
    if record.swarm != swarm:
        raise RemoteProtocolError(f"a record of the swarm {record.swarm} came to the swarm {swarm}")
    return record


def short_of(sealed: bytes) -> ShortId:
    """The short id of the peer whose key the sealed bytes name, unchecked. Raises RemoteProtocolError without one."""
    if len(sealed) < PUBLIC_BYTES:
        raise RemoteProtocolError(f"a sealed record of {len(sealed)} bytes is too short")
    return ShortId(sealed[:SHORT_BYTES])


def short_id(peer: PeerId) -> ShortId:
    """The short id of a peer. Raises ConfigError for what is no peer id of an Ed25519 key."""
    return ShortId(public_bytes_of(peer)[:SHORT_BYTES])


def payload_of(sealed: bytes) -> bytes:
    """What was sealed, unchecked."""
    return sealed[_PAYLOAD]
