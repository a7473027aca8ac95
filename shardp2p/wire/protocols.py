"""The protocols: their names, and for each message its kind byte and the largest payload it may have.

docs/protocols/framing.md gives the frame; the page of each protocol gives the meaning of its messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from shardp2p.errors import LocalProtocolError
from shardp2p.wire import carrying, dialling_back, driving, messages, news, seen

CONTROL: Final = "/shardp2p/control/1"
RING: Final = "/shardp2p/ring/1"
SWARM: Final = "/shardp2p/swarm/1"
GENERATE: Final = "/shardp2p/generate/1"
GOSSIP: Final = "/shardp2p/gossip/1"
CARRY: Final = "/shardp2p/carry/1"

MAX_ROWS: Final = 4096
"""Rows of one chunk: what a stage computes and answers as one piece; a longer prompt is several chunks."""

MAX_SLOT: Final = 2**31 - 1
"""Slots, and token ids, are at most this: parents and choices cross the network as signed 32-bit numbers."""

SMALL_BYTES: Final = 256
"""A message of a few numbers needs less; the rest is room for fields that a newer peer adds and we ignore."""

TEXT_BYTES: Final = 16 * 1024
"""A failure's clipped text, or a description of a peer, in four-byte characters and with room to grow; or the digests
of a text's beginnings."""

OPEN_BYTES: Final = 64 * 1024
"""32 addresses of 512 characters, 1,024 biases and 512 digests fill two thirds of it."""

TOKENS_BYTES: Final = 1024 * 1024
"""131,072 token ids of 5 bytes each fit; a longer text takes several messages."""

ROWS_BYTES: Final = 64 * 1024
"""MAX_ROWS rows of two 5-byte numbers fit."""

ACTIVATIONS_BYTES: Final = 64 * 1024 * 1024
"""4,096 rows of the widest models in 16 bits (4,096 x 7,168 x 2 = 56 MiB), while one frame stays far below a
process's memory. Wider rows go in smaller chunks."""

GENERATE_BYTES: Final = 2 * 1024 * 1024
"""131,072 ids of the prompt and 64 stages of 32 addresses of 512 characters, with room for the rest."""

FINISHED_BYTES: Final = 128 * 1024
"""4,096 laps of three numbers."""


PROBE_BYTES: Final = 32 * 1024
"""A Ping with its padding: eight of them fill the first window of a stream and no more."""


NEWS_BYTES: Final = 128 * 1024
"""512 heartbeats, and as many records or values as a sender packs into 64 KiB, with room to grow."""


INITIAL_CREDITS: Final = 32
"""Enough to keep a link busy whose credits come back after 200 ms at 100 chunks a second, with room to spare; few
enough that 32 prefill chunks of 4 MiB are what a stage may have to hold."""


@dataclass(frozen=True, slots=True)
class MessageKind:
    """One row of a protocol's table."""

    number: int
    message: type[messages.Message]
    max_payload_bytes: int


KINDS: Final[Mapping[str, tuple[MessageKind, ...]]] = {
    CONTROL: (
        MessageKind(1, messages.Open, OPEN_BYTES),
        MessageKind(2, messages.Opened, SMALL_BYTES),
        MessageKind(3, messages.Commit, SMALL_BYTES),
        MessageKind(4, messages.Tokens, TOKENS_BYTES),
        MessageKind(5, messages.Failure, TEXT_BYTES),
        MessageKind(6, messages.Close, TEXT_BYTES),
        MessageKind(7, messages.Closed, SMALL_BYTES),
    ),
    RING: (
        MessageKind(1, messages.Hello, SMALL_BYTES),
        MessageKind(2, messages.Chunk, ROWS_BYTES),
        MessageKind(3, messages.Activations, ACTIVATIONS_BYTES),
        MessageKind(4, messages.Verdict, ROWS_BYTES),
        MessageKind(5, messages.Credit, SMALL_BYTES),
        MessageKind(6, messages.End, SMALL_BYTES),
    ),
    SWARM: (
        MessageKind(1, messages.Describe, SMALL_BYTES),
        MessageKind(2, messages.MemberInfo, TEXT_BYTES),
        MessageKind(3, messages.AskRecord, SMALL_BYTES),
        MessageKind(4, messages.OwnRecord, TEXT_BYTES),
        MessageKind(16, messages.Ping, PROBE_BYTES),
        MessageKind(17, messages.Pong, SMALL_BYTES),
        MessageKind(18, seen.AskSeen, SMALL_BYTES),
        MessageKind(19, seen.Seen, SMALL_BYTES),
        MessageKind(20, dialling_back.AskDialBack, SMALL_BYTES),
        MessageKind(21, dialling_back.DialBackResult, SMALL_BYTES),
    ),
    GENERATE: (
        MessageKind(1, driving.Generate, GENERATE_BYTES),
        MessageKind(2, driving.Batch, TOKENS_BYTES),
        MessageKind(3, driving.Finished, FINISHED_BYTES),
        MessageKind(4, messages.Failure, TEXT_BYTES),
        MessageKind(16, driving.Working, SMALL_BYTES),
    ),
    GOSSIP: (
        MessageKind(1, news.Greeting, SMALL_BYTES),
        MessageKind(2, news.News, NEWS_BYTES),
        MessageKind(3, news.Farewell, TEXT_BYTES),
    ),
    CARRY: (
        MessageKind(1, carrying.Name, SMALL_BYTES),
        MessageKind(2, carrying.Named, SMALL_BYTES),
        MessageKind(3, carrying.Resume, SMALL_BYTES),
        MessageKind(4, carrying.Resumed, SMALL_BYTES),
        MessageKind(5, carrying.Refused, SMALL_BYTES),
    ),
}

_LIMITS: Final[Mapping[str, Mapping[int, int]]] = {
    protocol: {kind.number: kind.max_payload_bytes for kind in kinds} for protocol, kinds in KINDS.items()
}


def limits_of(protocol: str) -> Mapping[int, int]:
    """The largest payload in bytes of each kind of `protocol`. Raises LocalProtocolError for an unknown protocol."""
    try:
        return _LIMITS[protocol]
    except KeyError:
        raise LocalProtocolError(f"{protocol!r} is no protocol of wire.protocols") from None
