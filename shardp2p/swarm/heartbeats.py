"""Heartbeats that only their peer can make: a hash chain whose end stands in its sealed record. Pure.

Link n of the chain hashes to link n - 1, and link 0 is the record's anchor, so link n proves that the peer lived after
link n - 1 was known, in 16 bytes and without a signature (Lamport's one-time passwords, RFC 1760).
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from shardp2p.errors import IntegrityError
from shardp2p.wire.news import Heartbeat
from shardp2p.wire.records import CHAIN_BYTES, CoverageRecord

CHAIN_LENGTH: Final = 512
"""A record lasts for half an hour in a small swarm and for hours in a large one, in 8 KiB of its owner's memory."""

_PERSON: Final = b"shardp2p-alive-1"


class HeartbeatChain:
    """All links of a chain of `length`; `seed` is secret, random, and used once."""

    def __init__(self, seed: bytes, length: int = CHAIN_LENGTH) -> None:
        links = [_hash(seed)]
        for _ in range(length):
            links.append(_hash(links[-1]))
        links.reverse()
        self._links = links

    @property
    def anchor(self) -> bytes:
        """Link 0, for the record."""
        return self._links[0]

    @property
    def length(self) -> int:
        """The number of the last link."""
        return len(self._links) - 1

    def proof(self, count: int) -> bytes:
        """Link `count`, to be revealed only when it is due."""
        return self._links[count]


def is_link(proof: bytes, steps: int, known: bytes) -> bool:
    """Whether `proof` lies `steps` links beyond the link `known`."""
    for _ in range(steps):
        proof = _hash(proof)
    return proof == known


def check_proof(record: CoverageRecord, heartbeat: Heartbeat) -> None:
    """A heartbeat belongs to this record. Raises: IntegrityError."""
    known = record.chain_anchor or bytes(len(heartbeat.proof))
    if heartbeat.count > record.chain_length or not is_link(heartbeat.proof, heartbeat.count, known):
        raise IntegrityError(f"a heartbeat {heartbeat.count} does not belong to the record of {record.peer_id}")


def _hash(link: bytes) -> bytes:
    return blake2b(link, digest_size=CHAIN_BYTES, person=_PERSON).digest()
