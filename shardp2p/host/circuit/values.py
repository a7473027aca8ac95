"""What relays and their clients say to each other, as values. Pure; docs/protocols/relay.md."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from shardp2p.vocabulary import PeerId

HOP: Final = "/libp2p/circuit/relay/0.2.0/hop"
"""Asked of a relay: keep a place for me, or connect me."""
STOP: Final = "/libp2p/circuit/relay/0.2.0/stop"
"""Asked by a relay: somebody wants you."""


class Status(IntEnum):
    """The answers of circuit v2; the numbers are libp2p's."""

    OK = 100
    RESERVATION_REFUSED = 200
    RESOURCE_LIMIT_EXCEEDED = 201
    PERMISSION_DENIED = 202
    CONNECTION_FAILED = 203
    NO_RESERVATION = 204
    MALFORMED_MESSAGE = 400
    UNEXPECTED_MESSAGE = 401


@dataclass(frozen=True, slots=True)
class Limit:
    """What a circuit may take; 0 means no limit."""

    duration_s: int = 0
    data_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Reserve:
    """Keep a place for me, who am at the other end of this connection."""


@dataclass(frozen=True, slots=True)
class Connect:
    """Connect me to `peer`, for whom you keep a place."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class HopAnswer:
    """The relay's answer. `expires_at_s` is in Unix time on the relay's clock, 0 in the answer to a Connect."""

    status: Status
    expires_at_s: int = 0
    limit: Limit = Limit()


@dataclass(frozen=True, slots=True)
class Incoming:
    """`peer` wants to be connected to you, who keep a place here. Nothing proves `peer` yet."""

    peer: PeerId
    limit: Limit = Limit()


@dataclass(frozen=True, slots=True)
class StopAnswer:
    """Whether the peer takes the circuit."""

    status: Status


HopMessage = Reserve | Connect | HopAnswer
StopMessage = Incoming | StopAnswer
