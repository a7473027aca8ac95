from __future__ import annotations

from struct import unpack_from

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardp2p.lab.network.packets import ACK, ICMP, RST, SYN, TCP, Packet, parse, reset_for, rewritten, too_big
from tests.support.ip_packets import address, echo, has_right_checksums, tcp, udp

ports = st.integers(1, 65535)
addresses = st.integers(1, 2**32 - 2)


@given(addresses, ports, addresses, ports, st.binary(max_size=64), st.booleans())
def test_rewritten_packets_have_right_checksums_and_say_what_was_asked(
    source: int, source_port: int, destination: int, destination_port: int, payload: bytes, is_tcp: bool
) -> None:
    make = tcp if is_tcp else udp
    data = make(("10.0.0.1", 4001), ("45.45.0.9", 80), payload=payload)
    packet = parse(data)
    assert packet is not None
    new = packet._replace(
        source=source, source_port=source_port, destination=destination, destination_port=destination_port
    )
    out = rewritten(data, packet, new)
    assert has_right_checksums(out)
    assert parse(out) == new
    assert out[28 if not is_tcp else 40 :] == data[28 if not is_tcp else 40 :]
    assert rewritten(out, new, packet) == data


@given(ports, ports)
def test_an_echo_is_translated_by_its_identifier(identifier: int, other: int) -> None:
    data = echo("10.0.0.1", "45.45.0.9", identifier)
    packet = parse(data)
    assert packet is not None
    assert packet[:5] == (ICMP, address("10.0.0.1"), identifier, address("45.45.0.9"), 0)
    out = rewritten(data, packet, packet._replace(source=address("45.45.0.1"), source_port=other))
    assert has_right_checksums(out)
    answer = parse(echo("45.45.0.9", "45.45.0.1", other, is_reply=True))
    assert answer is not None
    assert answer[:5] == (ICMP, address("45.45.0.9"), 0, address("45.45.0.1"), other)


def test_a_udp_packet_without_a_checksum_gets_none() -> None:
    data = bytearray(udp(("10.0.0.1", 1), ("45.45.0.9", 2)))
    data[26:28] = b"\0\0"
    packet = parse(bytes(data))
    assert packet is not None
    assert rewritten(bytes(data), packet, packet._replace(source=5))[26:28] == b"\0\0"


@pytest.mark.parametrize("length", range(28))
def test_whatever_is_cut_short_is_not_translated(length: int) -> None:
    packet = parse(tcp(("10.0.0.1", 1), ("45.45.0.9", 2))[:length])
    assert packet is None or not packet.is_whole


@given(st.binary(max_size=80))
def test_any_bytes_are_a_packet_or_none(data: bytes) -> None:
    assert isinstance(parse(data), Packet | None)


def test_fragments_have_no_ports() -> None:
    data = bytearray(udp(("10.0.0.1", 1), ("45.45.0.9", 2)))
    data[6:8] = b"\x20\x00"
    packet = parse(bytes(data))
    assert packet is not None
    assert not packet.is_whole


def test_a_syn_to_a_closed_port_is_refused_by_acknowledging_it() -> None:
    data = tcp(("10.0.0.1", 1), ("45.45.0.9", 2), SYN)
    packet = parse(data)
    assert packet is not None
    answer = reset_for(data, packet)
    assert answer is not None
    assert has_right_checksums(answer)
    read = parse(answer)
    assert read == Packet(TCP, packet.destination, 2, packet.source, 1, RST | ACK, True)
    assert unpack_from("!II", answer, 24) == (0, 1001)


def test_a_segment_with_an_acknowledgement_is_refused_at_that_number_and_a_reset_is_not() -> None:
    data = tcp(("10.0.0.1", 1), ("45.45.0.9", 2), ACK, b"abc")
    packet = parse(data)
    assert packet is not None
    answer = reset_for(data, packet)
    assert answer is not None
    assert unpack_from("!I", answer, 24) == (2000,)
    read = parse(answer)
    assert read is not None
    assert read.flags == RST
    assert reset_for(answer, read) is None


def test_too_big_names_the_mtu_and_shows_the_packet() -> None:
    data = tcp(("10.0.0.1", 1), ("45.45.0.9", 2), ACK, b"a" * 1400)
    packet = parse(data)
    assert packet is not None
    answer = too_big(data, packet, address("10.0.0.254"), 1280)
    assert has_right_checksums(answer)
    assert answer[20:22] == b"\x03\x04"
    assert unpack_from("!H", answer, 26) == (1280,)
    assert answer[28:] == data[:28]
