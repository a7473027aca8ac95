"""The bytes of circuit v2: golden vectors, what libp2p itself sends and reads, and bytes that mean nothing."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from libp2p.relay.circuit_v2.pb import circuit_pb2 as pb
from libp2p.utils.varint import decode_varint_from_bytes, encode_varint_prefixed

from shardp2p.errors import BY_WIRE_STATUS, RemoteProtocolError
from shardp2p.host.circuit.messages import (
    MAX_MESSAGE_BYTES,
    LengthPrefix,
    decode_hop,
    decode_stop,
    delimited,
    encode_hop,
)
from shardp2p.host.circuit.values import Connect, HopAnswer, Limit, Reserve, Status
from shardp2p.host.peer_ids import id_of
from tests.vectors import regenerate_circuit as vectors
from tests.vectors.regenerate_membership import meaning

VECTORS = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(vectors.FOLDER.glob("*.json"))}


@pytest.mark.parametrize("name", VECTORS)
def test_bytes_mean_what_their_vector_says(name: str) -> None:
    vector = VECTORS[name]
    data = bytes.fromhex(vector["bytes"])
    if "error" in vector:
        with pytest.raises(BY_WIRE_STATUS[vector["error"]]):
            vectors.read(vector["protocol"], data)
    else:
        assert meaning(vectors.read(vector["protocol"], data)) == vector["meaning"]


def test_regenerating_the_vectors_changes_nothing() -> None:
    assert vectors.render() == {path.name: path.read_text("utf-8") for path in vectors.FOLDER.glob("*.json")}


def test_what_libp2ps_own_client_sends_is_understood() -> None:
    reserve = pb.HopMessage(type=pb.HopMessage.RESERVE, senderRecord=b"a signed record of its own")
    assert vectors.read("hop", encode_varint_prefixed(reserve.SerializeToString())) == Reserve()
    connect = pb.HopMessage(type=pb.HopMessage.CONNECT, peer=pb.PeerId(id=id_of(vectors.PEER).to_bytes(), addrs=[b"x"]))
    assert vectors.read("hop", encode_varint_prefixed(connect.SerializeToString())) == Connect(vectors.PEER)


def test_our_answers_are_understood_by_libp2p() -> None:
    data = encode_hop(HopAnswer(Status.OK, 1_800_000_000, Limit(60, 1024)))
    length = decode_varint_from_bytes(data)
    message = pb.HopMessage.FromString(data[-length:])
    assert message.type == pb.HopMessage.STATUS
    assert message.status == pb.Status.OK
    assert message.reservation.expire == 1_800_000_000
    assert (message.limit.duration, message.limit.data) == (60, 1024)


def test_statuses_have_libp2ps_numbers() -> None:
    assert {status.name: status.value for status in Status} == {
        name: number for name, number in pb.Status.items() if name != "UNUSED"
    }


@given(st.integers(0, MAX_MESSAGE_BYTES))
def test_length_is_read_without_a_byte_too_many(size: int) -> None:
    data = delimited(bytes(size))
    prefix = LengthPrefix()
    lengths = [prefix.feed(byte) for byte in data[: len(data) - size]]
    assert lengths[:-1] == [None] * (len(lengths) - 1)
    assert lengths[-1] == size


@given(st.binary(max_size=300))
def test_random_bytes_give_a_message_or_a_protocol_error(data: bytes) -> None:
    for decode in (decode_hop, decode_stop):
        with suppress(RemoteProtocolError):
            decode(data)
    for protocol in ("hop", "stop"):
        with suppress(RemoteProtocolError):
            vectors.read(protocol, data)


@given(st.sampled_from(sorted(VECTORS)), st.integers(0, 10_000), st.integers(1, 255))
def test_changed_messages_give_a_message_or_a_protocol_error(name: str, place: int, change: int) -> None:
    data = bytearray.fromhex(VECTORS[name]["bytes"])
    data[place % len(data)] ^= change
    with suppress(RemoteProtocolError):
        vectors.read(VECTORS[name]["protocol"], bytes(data))
