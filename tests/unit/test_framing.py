"""Frames are cut from any sequence of pieces, and a bad header is refused before its payload."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardp2p.errors import LocalProtocolError, RemoteProtocolError
from shardp2p.wire.framing import HEADER_BYTES, Frame, FrameDecoder, encode_frame
from shardp2p.wire.protocols import CONTROL, KINDS, limits_of

LIMITS = {1: 0, 2: 64, 9: 100_000}


def take_all(decoder: FrameDecoder) -> list[Frame]:
    frames = []
    while (frame := decoder.next_frame()) is not None:
        frames.append(frame)
    return frames


@given(
    st.lists(st.tuples(st.just(9), st.binary(max_size=200)), max_size=8),
    st.lists(st.integers(1, 50), min_size=1, max_size=20),
)
def test_any_cut_of_the_bytes_gives_the_same_frames(frames: list[tuple[int, bytes]], sizes: list[int]) -> None:
    data = b"".join(encode_frame(kind, payload) for kind, payload in frames)
    decoder, received, at, turn = FrameDecoder(LIMITS), list[Frame](), 0, 0
    while at < len(data):
        step = sizes[turn % len(sizes)]
        decoder.feed(data[at : at + step])
        received += take_all(decoder)
        at, turn = at + step, turn + 1
    assert received == frames
    assert decoder.buffered_bytes == 0


def test_an_incomplete_frame_is_none_until_its_last_byte() -> None:
    decoder = FrameDecoder(LIMITS)
    for byte in encode_frame(2, b"abc")[:-1]:
        decoder.feed(bytes([byte]))
        assert decoder.next_frame() is None
    decoder.feed(b"c")
    assert decoder.next_frame() == Frame(2, b"abc")


def test_an_unknown_kind_is_refused_at_the_header() -> None:
    decoder = FrameDecoder(LIMITS)
    decoder.feed(b"\x03\x00\x00\x00\x00")
    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match="kind 3 is unknown"):
            decoder.next_frame()


def test_too_long_a_payload_is_refused_before_it_comes() -> None:
    decoder = FrameDecoder(LIMITS)
    decoder.feed(b"\x02\x00\x00\x00\x41")
    assert decoder.buffered_bytes == HEADER_BYTES
    with pytest.raises(RemoteProtocolError, match="has 65 bytes; at most 64"):
        decoder.next_frame()


def test_frames_before_a_bad_header_are_still_given() -> None:
    decoder = FrameDecoder(LIMITS)
    decoder.feed(encode_frame(2, b"good") + b"\x01\x00\x00\x00\x01x")
    assert decoder.next_frame() == Frame(2, b"good")
    with pytest.raises(RemoteProtocolError, match="at most 0"):
        decoder.next_frame()


def test_the_limit_itself_is_allowed() -> None:
    decoder = FrameDecoder(LIMITS)
    decoder.feed(encode_frame(2, bytes(64)) + encode_frame(1, b""))
    assert take_all(decoder) == [Frame(2, bytes(64)), Frame(1, b"")]


def test_kind_numbers_are_unique_within_a_protocol() -> None:
    for protocol, kinds in KINDS.items():
        assert len({kind.number for kind in kinds}) == len(kinds) == len(limits_of(protocol))


def test_an_unknown_protocol_is_our_bug() -> None:
    assert limits_of(CONTROL)
    with pytest.raises(LocalProtocolError, match="no protocol"):
        limits_of("/shardp2p/nothing/1")
