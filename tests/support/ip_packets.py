"""IPv4 packets with right checksums, made without the code under test's own."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address
from struct import pack

from shardp2p.lab.network.packets import ACK, ICMP, RST, SYN, TCP, UDP

__all__ = ["ACK", "RST", "SYN", "address", "echo", "has_right_checksums", "tcp", "udp"]


def address(text: str) -> int:
    return int(IPv4Address(text))


def ones_complement_sum(data: bytes) -> int:
    data += b"\0" * (len(data) % 2)
    total = sum(int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2))
    while total > 0xFFFF:
        total = (total >> 16) + (total & 0xFFFF)
    return total


def _ip(protocol: int, source: str, destination: str, payload: bytes, flags: int = 0x4000) -> bytes:
    ends = socket.inet_aton(source) + socket.inet_aton(destination)
    header = pack("!BBHHHBBH", 0x45, 0, 20 + len(payload), 7, flags, 64, protocol, 0) + ends
    checksum = 0xFFFF - ones_complement_sum(header)
    return header[:10] + checksum.to_bytes(2, "big") + header[12:] + payload


def _with_checksum(protocol: int, source: str, destination: str, segment: bytes, at: int) -> bytes:
    pseudo = socket.inet_aton(source) + socket.inet_aton(destination) + pack("!BBH", 0, protocol, len(segment))
    checksum = 0xFFFF - ones_complement_sum(pseudo + segment)
    return segment[:at] + checksum.to_bytes(2, "big") + segment[at + 2 :]


def udp(source: tuple[str, int], destination: tuple[str, int], payload: bytes = b"x") -> bytes:
    segment = pack("!HHHH", source[1], destination[1], 8 + len(payload), 0) + payload
    return _ip(UDP, source[0], destination[0], _with_checksum(UDP, source[0], destination[0], segment, 6))


def tcp(source: tuple[str, int], destination: tuple[str, int], flags: int = SYN, payload: bytes = b"") -> bytes:
    segment = pack("!HHIIBBHHH", source[1], destination[1], 1000, 2000, 5 << 4, flags, 512, 0, 0) + payload
    return _ip(TCP, source[0], destination[0], _with_checksum(TCP, source[0], destination[0], segment, 16))


def echo(source: str, destination: str, identifier: int, *, is_reply: bool = False) -> bytes:
    message = pack("!BBHHH", 0 if is_reply else 8, 0, 0, identifier, 1)
    checksum = 0xFFFF - ones_complement_sum(message)
    return _ip(ICMP, source, destination, message[:2] + checksum.to_bytes(2, "big") + message[4:])


def has_right_checksums(data: bytes) -> bool:
    """Of the header, and of what is inside."""
    header, payload = data[:20], data[20:]
    pseudo = b"" if header[9] == ICMP else header[12:20] + pack("!BBH", 0, header[9], len(payload))
    return ones_complement_sum(header) == 0xFFFF and ones_complement_sum(pseudo + payload) == 0xFFFF
