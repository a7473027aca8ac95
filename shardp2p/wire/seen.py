"""Asking a peer from which address it sees us: what a router makes of the port that we dial from. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AskSeen:
    """A peer to one that it dialled: from where does this connection come?"""


@dataclass(frozen=True, slots=True)
class Seen:
    """The answer: an IP address and a port, "" and 0 where the connection is relayed."""

    host: str
    port: int


SightMessage = AskSeen | Seen
