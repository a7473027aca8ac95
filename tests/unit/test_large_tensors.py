"""The rows of a large chunk are copied once on their way out, and lie where they arrived on their way in."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shardp2p.errors import RemoteProtocolError
from shardp2p.vocabulary import ChunkRef, SessionId, Slot, WireScheme
from shardp2p.wire.codec import decode, encode, find_bulk
from shardp2p.wire.framing import HEADER_BYTES, LARGE_BYTES, Frame, FrameDecoder
from shardp2p.wire.messages import Activations, Credit, Hello, Message
from shardp2p.wire.pb import ring_pb2
from shardp2p.wire.protocols import RING, limits_of
from shardp2p.wire.tensor import decode_tensor, encode_tensor

SESSION = SessionId("ab" * 16)
ROWS, WIDTH = 256, 576
PAYLOAD_BYTES = ROWS * WIDTH * 4
PIECE_BYTES = 65507


def activations(hidden: torch.Tensor, scheme: WireScheme = "raw") -> Activations:
    parents = tuple(Slot(row - 1) for row in range(len(hidden)))
    ref = ChunkRef(SESSION, 0, 0, Slot(0))
    return Activations(ref, parents, Slot(len(hidden) - 1), 0, (), encode_tensor(hidden, scheme), compute_us=7)


def random_rows(rows: int = ROWS) -> torch.Tensor:
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(rows))


def cut(data: bytes) -> Iterator[bytes]:
    for at in range(0, len(data), PIECE_BYTES):
        yield data[at : at + PIECE_BYTES]


def receive(data: bytes) -> list[Message]:
    decoder = FrameDecoder(limits_of(RING), partial(find_bulk, RING))
    messages: list[Message] = []
    for piece in cut(data):
        decoder.feed(piece)
        while (frame := decoder.next_frame()) is not None:
            messages.append(decode(RING, frame.kind, frame.payload))
    assert decoder.buffered_bytes == 0
    return messages


@contextmanager
def peak_below(limit_bytes: float) -> Iterator[None]:
    """Python memory, which has all bytes, bytearrays and no tensors, grows by at most `limit_bytes` meanwhile."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] <= limit_bytes
    finally:
        tracemalloc.stop()


def test_the_rows_are_copied_once_into_the_frame_that_is_sent() -> None:
    hidden = random_rows()
    encode(RING, activations(hidden))  # what is loaded once only
    with peak_below(1.05 * PAYLOAD_BYTES):
        message = activations(hidden)
        assert message.hidden is not None
        assert np.frombuffer(message.hidden.data, dtype=np.uint8).ctypes.data == hidden.data_ptr()
        encode(RING, message)


def test_the_rows_become_a_tensor_where_they_arrived() -> None:
    hidden = random_rows()
    sent = list(cut(encode(RING, activations(hidden))))
    decoder = FrameDecoder(limits_of(RING), partial(find_bulk, RING))
    with peak_below(1.2 * PAYLOAD_BYTES):  # a bytearray that grows has an eighth to spare
        for piece in sent:
            decoder.feed(piece)
        frame = decoder.next_frame()
        assert frame is not None
        message = decode(RING, frame.kind, frame.payload)
        assert isinstance(message, Activations)
        assert message.hidden is not None
        received = decode_tensor(message.hidden)
    begin = torch.frombuffer(frame.payload, dtype=torch.uint8).data_ptr()
    assert begin < received.data_ptr() < begin + len(frame.payload)
    assert torch.equal(received, hidden)


@pytest.mark.parametrize("scheme", ["raw", "fp16", "int8"])
@pytest.mark.parametrize("rows", [1, 13, 14, 15, 40, 300])
def test_large_and_small_chunks_behind_each_other_arrive_as_they_were_sent(scheme: WireScheme, rows: int) -> None:
    large = activations(random_rows(rows), scheme)
    messages: list[Message] = [Hello(SESSION, 3), large, Credit(1), large, activations(random_rows(1)), large]
    assert receive(b"".join(encode(RING, message) for message in messages)) == messages


@given(st.data())
def test_whatever_protobuf_says_is_said_without_it(data: st.DataObject) -> None:
    message = activations(random_rows(3))
    payload = bytearray(encode(RING, message)[HEADER_BYTES:])
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, min(120, len(payload) - 1)))
        match data.draw(st.sampled_from(["change", "cut", "insert", "append"])):
            case "change":
                payload[at] = data.draw(st.integers(0, 255))
            case "cut":
                del payload[at : at + data.draw(st.integers(1, 4))]
            case "insert":
                payload[at:at] = data.draw(st.binary(min_size=1, max_size=4))
            case _:
                payload += data.draw(st.sampled_from([b"\x32\x02\x08\x02", b"\x38\x09", b"\x32\x00", b"\x07", b"\x80"]))
    outcomes: list[Message | None] = []
    for form in (bytes(payload), memoryview(payload)):
        try:
            outcomes.append(decode(RING, 3, form))
        except RemoteProtocolError:
            outcomes.append(None)
    assert outcomes[0] == outcomes[1]


def test_rows_that_are_given_twice_are_what_protobuf_makes_of_them() -> None:
    payload = encode(RING, activations(random_rows(2)))[HEADER_BYTES:]
    twice = payload + ring_pb2.Activations.FromString(payload).SerializeToString()
    for form in (twice, memoryview(bytearray(twice))):
        with pytest.raises(RemoteProtocolError, match="not 4 dimensions"):
            decode(RING, 3, form)


def test_a_large_frame_is_refused_at_its_header_as_others_are() -> None:
    decoder = FrameDecoder({3: LARGE_BYTES}, partial(find_bulk, RING))
    decoder.feed(b"\x03" + (LARGE_BYTES + 1).to_bytes(4, "big"))
    with pytest.raises(RemoteProtocolError, match="at most"):
        decoder.next_frame()
    decoder = FrameDecoder({3: LARGE_BYTES}, partial(find_bulk, RING))
    decoder.feed(b"\x03" + LARGE_BYTES.to_bytes(4, "big") + bytes(LARGE_BYTES))
    frame = decoder.next_frame()
    assert frame == Frame(3, bytes(LARGE_BYTES))
