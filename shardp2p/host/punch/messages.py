"""DCUtR's messages as values, and as bytes: CONNECT with the addresses to dial, and SYNC. docs/protocols/punch.md.

Only plain TCP addresses are kept: whatever else a peer of another program offers, we cannot dial it.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError
from libp2p.relay.circuit_v2.pb.dcutr_pb2 import HolePunch

from shardp2p.errors import RemoteProtocolError
from shardp2p.host.addresses import Endpoint
from shardp2p.host.circuit.exchange import receive_answer
from shardp2p.host.circuit.messages import delimited
from shardp2p.wire.stream import Stream

DCUTR: Final = "/libp2p/dcutr"
MAX_ADDRESSES: Final = 8
"""That we send, and that we look at: each is dialled again and again for a round."""

_IP4: Final = b"\x04"
_IP6: Final = b"\x29"
_TCP: Final = b"\x06"
_P2P: Final = b"\xa5\x03"


@dataclass(frozen=True, slots=True)
class Connect:
    """Here I can be dialled, for all I know."""

    addresses: tuple[Endpoint, ...]


@dataclass(frozen=True, slots=True)
class Sync:
    """Dial now."""


PunchMessage = Connect | Sync


def encode(message: PunchMessage) -> bytes:
    """The message with its length in front."""
    if isinstance(message, Sync):
        wire = HolePunch(type=HolePunch.SYNC)
    else:
        addresses = [encode_address(address) for address in message.addresses[:MAX_ADDRESSES]]
        wire = HolePunch(type=HolePunch.CONNECT, ObsAddrs=addresses)
    return delimited(wire.SerializeToString())


def decode(payload: bytes) -> PunchMessage:
    """The message without its length. Raises: RemoteProtocolError."""
    try:
        wire = HolePunch.FromString(payload)
    except DecodeError as error:
        raise RemoteProtocolError("the peer's message about punching is none") from error
    if not wire.HasField("type"):  # also for a type that is unknown
        raise RemoteProtocolError("the peer's message about punching is none")
    if wire.type == HolePunch.SYNC:
        return Sync()
    found = (decode_address(address) for address in wire.ObsAddrs)
    return Connect(tuple(dict.fromkeys(address for address in found if address))[:MAX_ADDRESSES])


def encode_address(address: Endpoint) -> bytes:
    """A binary multiaddr."""
    ip = ipaddress.ip_address(address[0])
    return (_IP4 if ip.version == 4 else _IP6) + ip.packed + _TCP + address[1].to_bytes(2, "big")


def decode_address(data: bytes) -> Endpoint | None:
    """The IP address and port of a binary multiaddr; None for one that is not plain TCP."""
    size = {_IP4: 4, _IP6: 16}.get(data[:1])
    if size is None or data[1 + size : 2 + size] != _TCP:
        return None
    port, rest = data[2 + size : 4 + size], data[4 + size :]
    names_peer = len(rest) > 3 and rest.startswith(_P2P) and len(rest) == 3 + rest[2]
    if len(port) != 2 or port == b"\0\0" or (rest and not names_peer):
        return None
    return str(ipaddress.ip_address(data[1 : 1 + size])), int.from_bytes(port, "big")


async def receive(stream: Stream) -> PunchMessage:
    """The next message on `stream`. Raises: RemoteProtocolError; PeerUnavailableError when the stream ended."""
    return decode(await receive_answer(stream))
