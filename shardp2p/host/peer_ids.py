"""Peer ids in libp2p's form and in ours; cached, since Base58 costs more than most of what is done with an id."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from libp2p.peer.id import ID

from shardp2p.host.addresses import parse_peer_id
from shardp2p.vocabulary import PeerId

_CACHED: Final = 8192
"""More than the peers that an address book holds; an entry is some hundred bytes."""


@lru_cache(_CACHED)
def id_of(peer: PeerId) -> ID:
    """The id in libp2p's form. Raises: ConfigError for a text that is no peer id."""
    return ID.from_base58(parse_peer_id(peer))


def peer_of(peer_id: ID) -> PeerId:
    """The id in our form. Raises: ConfigError for bytes that are no peer id."""
    return _peer_of_bytes(peer_id.to_bytes())


@lru_cache(_CACHED)
def _peer_of_bytes(multihash: bytes) -> PeerId:
    return parse_peer_id(ID(multihash).to_base58())
