"""The messages of /shardp2p/carry/1 as frozen values; docs/protocols/carry.md gives their rules."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Name:
    """Who dialled to the other, on the connection itself: this connection can move, and this is its name."""

    name: bytes


@dataclass(frozen=True, slots=True)
class Named:
    """The answer: I keep what I send, and know the name."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Either side to the other, on another connection: go on here, from frame `received` of yours.

    `turn` is larger than that of every attempt that the sender has made or answered.
    """

    name: bytes
    turn: int
    received: int


@dataclass(frozen=True, slots=True)
class Resumed:
    """The answer: and you from frame `received` of yours. Frames of Yamux follow, both ways."""

    received: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The answer instead of Named or Resumed: nothing has changed. `reason` is for people."""

    reason: str


CarryMessage = Name | Named | Resume | Resumed | Refused
