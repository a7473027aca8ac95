"""Encoding refuses what decoding would refuse, and says why; the vectors cover what is valid."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest

from shardp2p.errors import LocalProtocolError, RemoteProtocolError
from shardp2p.vocabulary import ChunkRef, LayerRange, PeerId, SamplingParams, SessionId, Slot
from shardp2p.wire.codec import decode, encode
from shardp2p.wire.dialling_back import AskDialBack, DialBackResult
from shardp2p.wire.framing import HEADER_BYTES
from shardp2p.wire.messages import (
    Activations,
    Chunk,
    Close,
    Closed,
    Commit,
    Credit,
    Failure,
    Hello,
    MemberInfo,
    Message,
    Open,
    OwnRecord,
    PeerAddress,
    Ping,
    Pong,
    Tokens,
    Verdict,
)
from shardp2p.wire.pb import control_pb2, ring_pb2
from shardp2p.wire.protocols import ACTIVATIONS_BYTES, CONTROL, KINDS, MAX_ROWS, RING, SWARM, limits_of
from shardp2p.wire.seen import Seen
from shardp2p.wire.tensor_frame import TensorFrame

SESSION = SessionId("0f" * 16)
PEER = PeerId("peer-b")
OPEN = Open(SESSION, "ab" * 32, LayerRange(0, 4), "float32", 64, 8, PeerAddress(PEER, ("/memory/b",)))
CHUNK = Chunk(ChunkRef(SESSION, 0, 0, Slot(1)), (5, 6), (Slot(0), Slot(1)), Slot(1))
HIDDEN = TensorFrame("raw", "float32", (2, 1), bytes(8))
ACTIVATIONS = Activations(CHUNK.ref, CHUNK.parents, Slot(1), 0, (), HIDDEN)
VERDICT = Verdict(CHUNK.ref, 0, (1, None))
MEMBER = MemberInfo(PEER, "1", 1, 1)
DIALLED = DialBackResult(bytes(16), "45.45.0.7", 1, ("open",))


def round_trip(protocol: str, message: Message) -> Message:
    frame = encode(protocol, message)
    return decode(protocol, frame[0], frame[HEADER_BYTES:])


@pytest.mark.parametrize(
    ("protocol", "message", "change", "why"),
    [
        (CONTROL, OPEN, {"session": "0F" * 16}, "no session id"),
        (CONTROL, OPEN, {"session": "zz"}, "non-hexadecimal"),
        (CONTROL, OPEN, {"model_digest": "ab"}, "digest"),
        (CONTROL, OPEN, {"dtype": "int4"}, "'int4' is unknown"),
        (CONTROL, OPEN, {"cache_rows": 0}, "cache of 0 rows"),
        (CONTROL, OPEN, {"max_chunks": 0}, "0 chunks at once"),
        (CONTROL, OPEN, {"prompt_tokens": -1}, "prompt of -1"),
        (CONTROL, OPEN, {"next": PeerAddress(PeerId(""))}, "'' is no peer id"),
        (CONTROL, OPEN, {"next": PeerAddress(PEER, ("/a",) * 33)}, "33 addresses"),
        (CONTROL, OPEN, {"next": PeerAddress(PEER, ("a",))}, "no multiaddr"),
        (CONTROL, OPEN, {"wire_scheme": "zip"}, "'zip'"),
        (CONTROL, Commit(0, Slot(2), Slot(1)), {"parent": Slot(-1)}, "cannot be a child"),
        (CONTROL, Commit(0, Slot(2), Slot(1)), {"epoch": -1}, "out of range"),
        (CONTROL, Tokens(0, Slot(0), (1,)), {"tokens": ()}, "0 tokens"),
        (CONTROL, Tokens(0, Slot(0), (1,)), {"tokens": (0,) * 131_073}, "131073 tokens"),
        (CONTROL, Tokens(0, Slot(0), (1,)), {"first_slot": Slot(2**31)}, "out of bounds"),
        (CONTROL, Failure("x", "y"), {"status": "x" * 33}, "status"),
        (CONTROL, Failure("x", "y"), {"peer_id": "two words"}, "no peer id"),
        (CONTROL, Closed(0, 0, 0, 0.0, 0.0), {"overhead_s": float("inf")}, "no duration"),
        (RING, CHUNK, {"tokens": (1,)}, "1 tokens have 2 parents"),
        (RING, CHUNK, {"tokens": (1, -1)}, "token ids"),
        (RING, CHUNK, {"parents": (Slot(0), Slot(2))}, "slot 2 names 2"),
        (RING, CHUNK, {"parents": ()}, "not 0"),
        (RING, CHUNK, {"parents": (Slot(0),) * (MAX_ROWS + 1)}, f"not {MAX_ROWS + 1}"),
        (RING, CHUNK, {"root": Slot(3)}, "root 3 was not sent"),
        (RING, CHUNK, {"quiet": 3}, "3 of 2 rows"),
        (RING, ACTIVATIONS, {"hidden": None}, "0 hidden and 0 skipped"),
        (RING, ACTIVATIONS, {"skipped": (0,)}, "2 hidden and 1 skipped"),
        (RING, ACTIVATIONS, {"skipped": (1, 0)}, "out of range or order"),
        (RING, ACTIVATIONS, {"hidden": dataclasses.replace(HIDDEN, data=b"")}, "8 bytes"),
        (RING, VERDICT, {"choices": (-1,)}, "choices"),
        (RING, VERDICT, {"choices": (1,) * (MAX_ROWS + 1)}, "verdict on"),
        (RING, VERDICT, {"compute_us": -1}, "out of range"),
        (RING, Credit(1), {"messages": 0}, "credit of 0"),
        (SWARM, MEMBER, {"layers": LayerRange(0, 1)}, "outside a model of 0"),
        (SWARM, MEMBER, {"device": "cpu\n"}, "device name"),
        (SWARM, MEMBER, {"model": "x" * 257}, "model name"),
        (SWARM, OwnRecord(b""), {"sealed": bytes(8289)}, "8289 bytes of a sealed record"),
        (SWARM, Ping(bytes(16)), {"nonce": bytes(15)}, "not 15"),
        (SWARM, Ping(bytes(16)), {"padding": bytes(31 * 1024 + 1)}, "31745 bytes of padding"),
        (SWARM, Pong(bytes(16)), {"nonce": b""}, "not 0"),
        (SWARM, Seen("45.45.0.7", 1), {"host": "45.45.0.07"}, "no IP address"),
        (SWARM, Seen("45.45.0.7", 1), {"host": "fe80::1%eth0"}, "no IP address"),
        (SWARM, Seen("45.45.0.7", 1), {"host": ""}, "no IP address"),
        (SWARM, Seen("45.45.0.7", 1), {"port": 0}, "0 is no port"),
        (SWARM, AskDialBack(bytes(16), (1,)), {"ports": ()}, "at least one port"),
        (SWARM, AskDialBack(bytes(16), (1,)), {"ports": (1, 2, 3, 4, 5)}, "5 ports"),
        (SWARM, AskDialBack(bytes(16), (1,)), {"ports": (65536,)}, "no port"),
        (SWARM, AskDialBack(bytes(16), (1,)), {"nonce": b""}, "not 0"),
        (SWARM, DIALLED, {"host": "127.1"}, "no IP address"),
        (SWARM, DIALLED, {"host": "fe80::1%eth0"}, "no IP address"),
        (SWARM, DIALLED, {"outcomes": ("perhaps",)}, "outcome 'perhaps' is unknown"),
        (SWARM, Pong(bytes(16)), {"room_bytes": 2**30 + 1}, "bytes of room"),
    ],
)
def test_a_message_that_breaks_its_rules_is_not_sent(
    protocol: str, message: Message, change: Mapping[str, object], why: str
) -> None:
    assert round_trip(protocol, message) == message
    with pytest.raises(LocalProtocolError, match=why):
        encode(protocol, dataclasses.replace(message, **change))  # type: ignore[arg-type]


def test_the_largest_messages_fit_their_limits() -> None:
    last = 2**31 - 1
    ref = ChunkRef(SESSION, 2**32 - 1, 2**64 - 1, Slot(last - MAX_ROWS + 1))
    parents = tuple(Slot(last - MAX_ROWS + row) for row in range(MAX_ROWS))
    address = PeerAddress(PeerId("x" * 128), ("/" + "x" * 511,) * 32)
    bias = ((last, -999.9),) * 1024
    for protocol, message in (
        (CONTROL, dataclasses.replace(OPEN, next=address, sampling=SamplingParams(logit_bias=bias))),
        (CONTROL, Tokens(1, Slot(0), (last,) * 131_072)),
        (CONTROL, Failure("s" * 32, "\U0001f600" * 2000, PeerId("x" * 128))),
        (CONTROL, Closed(2**64 - 1, 2**64 - 1, 2**64 - 1, 1e300, 1e300)),
        (RING, Chunk(ref, (last,) * MAX_ROWS, parents, Slot(last), MAX_ROWS)),
        (RING, Verdict(ref, 0, (last,) * MAX_ROWS, 2**64 - 1)),
        (SWARM, Ping(bytes(16), bytes(31 * 1024))),
        (SWARM, MemberInfo(PeerId("x" * 128), "\U0001f600" * 64, 1, 1, "\U0001f600" * 256, device="\U0001f600" * 128)),
    ):
        assert round_trip(protocol, message) == message


def test_too_large_a_tensor_is_our_bug_to_send() -> None:
    rows, width = 64, ACTIVATIONS_BYTES // 64 // 4
    frame = TensorFrame("raw", "float32", (rows, width), bytes(ACTIVATIONS_BYTES))
    parents = tuple(Slot(row) for row in range(rows))
    with pytest.raises(LocalProtocolError, match="at most 67108864 are allowed"):
        encode(RING, Activations(CHUNK.ref, parents, Slot(1), 0, (), frame))


def test_a_tensor_is_written_as_protobuf_itself_would_write_it() -> None:
    for width in (1, 20, 31, 32, 5000, 600_000):
        hidden = TensorFrame("int8", "bfloat16", (2, width), bytes(2 * width), bytes(8))
        message = dataclasses.replace(ACTIVATIONS, hidden=hidden, compute_us=7)
        payload = encode(RING, message)[HEADER_BYTES:]
        assert ring_pb2.Activations.FromString(payload).SerializeToString(deterministic=True) == payload


def test_a_message_of_another_protocol_is_not_sent() -> None:
    with pytest.raises(LocalProtocolError, match="Hello is no message of"):
        encode(CONTROL, Hello(SESSION, 0))
    with pytest.raises(LocalProtocolError, match="no message of /nothing"):
        encode("/nothing", Close())


def test_an_unknown_kind_or_too_long_a_payload_is_the_peers_fault() -> None:
    with pytest.raises(RemoteProtocolError, match="no message of kind 99"):
        decode(CONTROL, 99, b"")
    for protocol, kinds in KINDS.items():
        for kind in kinds:
            if kind.max_payload_bytes < ACTIVATIONS_BYTES:
                with pytest.raises(RemoteProtocolError, match="bytes; at most"):
                    decode(protocol, kind.number, bytes(limits_of(protocol)[kind.number] + 1))


def test_a_failure_is_reported_whatever_its_text() -> None:
    sent = Failure("internal", "two\nlines \x1b[31m \udc80 " + "x" * 3000, PEER)
    received = round_trip(CONTROL, sent)
    assert isinstance(received, Failure)
    assert received.message.startswith("two lines  [31m   xxx")
    assert len(received.message) == 2000


def test_fields_of_a_newer_peer_are_ignored() -> None:
    payload = control_pb2.Close().SerializeToString() + b"\xf8\x3f\x01"
    assert decode(CONTROL, 6, payload) == Close()
