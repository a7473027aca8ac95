"""IPv4 packets as bytes: what a router reads of them, rewrites in them, and answers itself. Pure.

Addresses are 32-bit integers, ports 16-bit ones. Checksums are updated as RFC 1624 says (equation 3).
"""

from __future__ import annotations

from struct import pack, pack_into, unpack_from
from typing import Final, NamedTuple

ICMP: Final = 1
TCP: Final = 6
UDP: Final = 17

FIN: Final = 0x01
SYN: Final = 0x02
RST: Final = 0x04
ACK: Final = 0x10

_ECHO_REPLY: Final = 0
_UNREACHABLE: Final = 3
_ECHO_REQUEST: Final = 8
_MORE_FRAGMENTS_OR_OFFSET: Final = 0x3FFF
_DO_NOT_FRAGMENT: Final = 0x4000
_CHECKSUM_AT: Final = {TCP: 16, UDP: 6, ICMP: 2}

Endpoint = tuple[int, int]
"""An address and a port."""


class Packet(NamedTuple):
    """What a router looks at. An ICMP echo has its identifier as the port of the side that asked, and 0 as the other.

    `is_whole` is false for fragments and for protocols and messages without ports: those are not translated.
    """

    protocol: int
    source: int
    source_port: int
    destination: int
    destination_port: int
    flags: int
    is_whole: bool


def parse(data: bytes) -> Packet | None:
    """What `data` says, or None where it is no IPv4 packet that can be read."""
    if len(data) < 20 or data[0] >> 4 != 4:
        return None
    start = 4 * (data[0] & 15)
    protocol = data[9]
    source, destination = unpack_from("!II", data, 12)
    fragment = unpack_from("!H", data, 6)[0] & _MORE_FRAGMENTS_OR_OFFSET
    if fragment or start < 20 or len(data) < start + (20 if protocol == TCP else 8):
        return Packet(protocol, source, 0, destination, 0, 0, False)
    if protocol == TCP:
        source_port, destination_port = unpack_from("!HH", data, start)
        return Packet(TCP, source, source_port, destination, destination_port, data[start + 13], True)
    if protocol == UDP:
        source_port, destination_port = unpack_from("!HH", data, start)
        return Packet(UDP, source, source_port, destination, destination_port, 0, True)
    if protocol == ICMP and data[start] in (_ECHO_REQUEST, _ECHO_REPLY):
        identifier = unpack_from("!H", data, start + 4)[0]
        asked, answers = (identifier, 0) if data[start] == _ECHO_REQUEST else (0, identifier)
        return Packet(ICMP, source, asked, destination, answers, 0, True)
    return Packet(protocol, source, 0, destination, 0, 0, False)


def may_not_be_fragmented(data: bytes) -> bool:
    """Whether the sender wants to hear of a path that is too narrow, instead of having the packet cut up."""
    return bool(unpack_from("!H", data, 6)[0] & _DO_NOT_FRAGMENT)


def rewritten(data: bytes, packet: Packet, new: Packet) -> bytes:
    """`data` with the addresses and ports of `new` instead of those of `packet`, and with right checksums."""
    out = bytearray(data)
    start = 4 * (out[0] & 15)
    pack_into("!II", out, 12, new.source, new.destination)
    addresses = _change(packet.source, new.source) + _change(packet.destination, new.destination)
    _adjust(out, 10, addresses)
    ports = new.source_port - packet.source_port + new.destination_port - packet.destination_port
    if packet.protocol == ICMP:
        pack_into("!H", out, start + 4, new.source_port or new.destination_port)
        _adjust(out, start + 2, ports)
        return bytes(out)
    pack_into("!HH", out, start, new.source_port, new.destination_port)
    at = start + _CHECKSUM_AT[packet.protocol]
    if packet.protocol == UDP and out[at : at + 2] == b"\0\0":
        return bytes(out)  # the sender computed none
    _adjust(out, at, addresses + ports)
    if packet.protocol == UDP and out[at : at + 2] == b"\0\0":
        out[at : at + 2] = b"\xff\xff"  # RFC 768: zero would mean that there is none
    return bytes(out)


def reset_for(data: bytes, packet: Packet) -> bytes | None:
    """The RST that a closed port answers a TCP segment with (RFC 9293, 3.10.7.1); None for one that is a RST."""
    if packet.protocol != TCP or not packet.is_whole or packet.flags & RST:
        return None
    start = 4 * (data[0] & 15)
    sequence, acknowledged = unpack_from("!II", data, start + 4)
    if packet.flags & ACK:
        segment = pack("!HHIIBBHHH", packet.destination_port, packet.source_port, acknowledged, 0, 5 << 4, RST, 0, 0, 0)
    else:
        payload = len(data) - start - 4 * (data[start + 12] >> 4)
        taken = (sequence + payload + bool(packet.flags & SYN) + bool(packet.flags & FIN)) & 0xFFFFFFFF
        flags = RST | ACK
        segment = pack("!HHIIBBHHH", packet.destination_port, packet.source_port, 0, taken, 5 << 4, flags, 0, 0, 0)
    pseudo = pack("!IIBBH", packet.destination, packet.source, 0, TCP, len(segment))
    segment = segment[:16] + pack("!H", checksum(pseudo + segment)) + segment[18:]
    return _with_header(TCP, packet.destination, packet.source, segment)


def too_big(data: bytes, packet: Packet, router: int, mtu: int) -> bytes:
    """The ICMP message `fragmentation needed` (RFC 1191) from `router` to the sender of `data`."""
    start = 4 * (data[0] & 15)
    body = pack("!BBHHH", _UNREACHABLE, 4, 0, 0, mtu) + data[: start + 8]
    body = body[:2] + pack("!H", checksum(body)) + body[4:]
    return _with_header(ICMP, router, packet.source, body)


def checksum(data: bytes) -> int:
    """The Internet checksum (RFC 1071)."""
    if len(data) % 2:
        data += b"\0"
    total: int = sum(unpack_from(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return 0xFFFF - total


def _with_header(protocol: int, source: int, destination: int, payload: bytes) -> bytes:
    header = pack("!BBHHHBBHII", 0x45, 0, 20 + len(payload), 0, _DO_NOT_FRAGMENT, 64, protocol, 0, source, destination)
    return header[:10] + pack("!H", checksum(header)) + header[12:] + payload


def _change(old: int, new: int) -> int:
    """What an address's change adds to a sum of 16-bit words."""
    return (new >> 16) - (old >> 16) + (new & 0xFFFF) - (old & 0xFFFF)


def _adjust(out: bytearray, at: int, change: int) -> None:
    """Let the checksum at `at` follow a sum of 16-bit words that grew by `change`."""
    total = (~unpack_from("!H", out, at)[0] & 0xFFFF) + change
    # The ones' complement sum is the value modulo 0xFFFF; a sum that was not zero does not become it.
    total = (total - 1) % 0xFFFF + 1 if total else 0
    pack_into("!H", out, at, ~total & 0xFFFF)
