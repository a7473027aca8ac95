"""Messages as frames and back: `encode` and `decode`. Pure, and without torch.

A message that breaks the rules of its protocol page is RemoteProtocolError when it was received and
LocalProtocolError when it was to be sent; both sides apply the same checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from shardp2p.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from shardp2p.wire import codec_carry, codec_control, codec_generate, codec_gossip, codec_ring, codec_swarm
from shardp2p.wire.codec_parts import AnyCodec, InvalidError
from shardp2p.wire.framing import encode_frame
from shardp2p.wire.messages import Message
from shardp2p.wire.protocols import CARRY, CONTROL, GENERATE, GOSSIP, KINDS, RING, SWARM
from shardp2p.wire.tensor_frame import Buffer


class _Entry(NamedTuple):
    kind: int
    name: str
    max_payload_bytes: int
    codec: AnyCodec


_CODECS: Final[Mapping[str, Mapping[type, AnyCodec]]] = {
    CONTROL: codec_control.CODECS,
    RING: codec_ring.CODECS,
    SWARM: codec_swarm.CODECS,
    GENERATE: codec_generate.CODECS,
    GOSSIP: codec_gossip.CODECS,
    CARRY: codec_carry.CODECS,
}
_BY_MESSAGE: Final[dict[tuple[str, type], _Entry]] = {
    (protocol, kind.message): _Entry(
        kind.number, kind.message.__name__, kind.max_payload_bytes, _CODECS[protocol][kind.message]
    )
    for protocol, kinds in KINDS.items()
    for kind in kinds
}
_BY_KIND: Final[dict[tuple[str, int], _Entry]] = {
    (protocol, entry.kind): entry for (protocol, _), entry in _BY_MESSAGE.items()
}


def encode(protocol: str, message: Message) -> bytes:
    """The whole frame of `message`, header included, ready for `Stream.send_all`.

    Raises: LocalProtocolError when the message is none of `protocol`, breaks its rules, or is too large.
    """
    entry = _BY_MESSAGE.get((protocol, type(message)))
    if entry is None:
        raise LocalProtocolError(f"{type(message).__name__} is no message of {protocol}")
    try:
        entry.codec.check(message)
        payload = entry.codec.write(message)
    except (ValueError, TypeError, KeyError) as error:
        raise LocalProtocolError(f"this {entry.name} must not be sent: {error}") from error
    pieces = payload if isinstance(payload, tuple) else (payload,)
    size = sum(map(len, pieces))
    if size > entry.max_payload_bytes:
        raise LocalProtocolError(
            f"a {entry.name} of {size} bytes must not be sent; at most {entry.max_payload_bytes} are allowed"
        )
    return encode_frame(entry.kind, *pieces)


def decode(protocol: str, kind: int, payload: Buffer) -> Message:
    """The message in a frame's payload. What it returns has passed every check of its protocol page.

    A tensor's data in a payload that can be written to is left where it is: the payload is the message's from now on.

    Raises: RemoteProtocolError, and nothing else, whatever the bytes.
    """
    entry = _BY_KIND.get((protocol, kind))
    if entry is None:
        raise RemoteProtocolError(f"{protocol} has no message of kind {kind}")
    if len(payload) > entry.max_payload_bytes:
        raise RemoteProtocolError(
            f"{entry.name} has {len(payload)} bytes; at most {entry.max_payload_bytes} are allowed"
        )
    try:
        message: Message | None = None
        if isinstance(payload, memoryview) and entry.codec.read_large is not None:
            message = entry.codec.read_large(payload)
        if message is None:
            message = entry.codec.read(entry.codec.wire.FromString(bytes(payload)))
        entry.codec.check(message)
    except (DecodeError, InvalidError, ConfigError) as error:
        raise RemoteProtocolError(f"{entry.name} is malformed: {error}") from error
    return message


def find_bulk(protocol: str, kind: int, head: memoryview) -> int:
    """Where a payload's bulk begins, of which `head` is the beginning: what is to lie well in memory. 0: nowhere."""
    entry = _BY_KIND.get((protocol, kind))
    return codec_ring.find_activations_data(head) if entry is not None and entry.name == "Activations" else 0
