"""The bytes of DCUtR: golden vectors, what libp2p itself reads, and bytes that mean nothing."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from libp2p.relay.circuit_v2.pb.dcutr_pb2 import HolePunch
from multiaddr import Multiaddr

from shardp2p.errors import BY_WIRE_STATUS, RemoteProtocolError
from shardp2p.host.addresses import Endpoint
from shardp2p.host.punch.messages import (
    MAX_ADDRESSES,
    Connect,
    Sync,
    decode,
    decode_address,
    encode,
    encode_address,
)
from tests.vectors import regenerate_punch as vectors
from tests.vectors.regenerate_membership import meaning

VECTORS = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(vectors.FOLDER.glob("*.json"))}
ADDRESSES = st.tuples(st.ip_addresses().map(str), st.integers(1, 65535))


@pytest.mark.parametrize("name", VECTORS)
def test_bytes_mean_what_their_vector_says(name: str) -> None:
    data = bytes.fromhex(VECTORS[name]["bytes"])
    if "error" in VECTORS[name]:
        with pytest.raises(BY_WIRE_STATUS[VECTORS[name]["error"]]):
            vectors.read(data)
    else:
        assert meaning(vectors.read(data)) == VECTORS[name]["meaning"]


def test_regenerating_the_vectors_changes_nothing() -> None:
    assert VECTORS
    assert vectors.render() == {path.name: path.read_text("utf-8") for path in vectors.FOLDER.glob("*.json")}


@given(st.lists(ADDRESSES, max_size=MAX_ADDRESSES, unique=True))
def test_what_is_sent_is_what_arrives(addresses: list[Endpoint]) -> None:
    assert vectors.read(encode(Connect(tuple(addresses)))) == Connect(tuple(addresses))


@given(ADDRESSES)
def test_addresses_are_libp2ps_multiaddrs(address: Endpoint) -> None:
    host, port = address
    text = f"/{'ip6' if ':' in host else 'ip4'}/{host}/tcp/{port}"
    assert encode_address(address) == Multiaddr(text).to_bytes()


def test_libp2p_reads_what_we_send() -> None:
    message = HolePunch.FromString(encode(Connect((("45.45.0.7", 4001),)))[1:])
    assert message.type == HolePunch.CONNECT
    assert [str(Multiaddr(data)) for data in message.ObsAddrs] == ["/ip4/45.45.0.7/tcp/4001"]
    assert HolePunch.FromString(encode(Sync())[1:]).type == HolePunch.SYNC


def test_no_more_addresses_are_sent_than_are_read() -> None:
    many = tuple(("45.45.0.7", port) for port in range(1, 20))
    assert vectors.read(encode(Connect(many))) == Connect(many[:MAX_ADDRESSES])


@given(st.binary(max_size=200))
def test_any_bytes_give_a_message_or_the_peers_fault(data: bytes) -> None:
    with suppress(RemoteProtocolError):
        assert isinstance(decode(data), Connect | Sync)


@given(st.binary(max_size=40) | st.binary(max_size=30).map(lambda rest: b"\x04\x01\x02\x03\x04\x06" + rest))
def test_any_bytes_give_an_address_or_none(data: bytes) -> None:
    address = decode_address(data)
    if address is not None:
        assert 0 < address[1] < 65536
        assert data.startswith(encode_address(address))
