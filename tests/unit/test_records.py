"""Coverage records: what is encoded is what is decoded, and nothing absurd passes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardp2p.errors import LocalProtocolError, RemoteProtocolError
from shardp2p.vocabulary import LayerRange, PeerId, SwarmId
from shardp2p.wire.deflated import deflate, inflate
from shardp2p.wire.pb import records_pb2
from shardp2p.wire.records import MAX_RECORD_BYTES, Link, decode_record, encode_record
from tests.support.gossip_parts import HELD, record_of
from tests.support.gossip_swarm import identity_of

RECORD = record_of(1)
LINK = RECORD.links[0]


def test_decoding_gives_what_was_encoded() -> None:
    assert decode_record(encode_record(RECORD)) == RECORD
    assert encode_record(decode_record(encode_record(RECORD))) == encode_record(RECORD)


def test_typical_record_is_below_a_kilobyte() -> None:
    links = tuple(Link(identity_of(n).peer_id, 0.0071 * n, 0.0003 * n, 1.3e6 * n) for n in range(2, 10))
    assert len(encode_record(replace(RECORD, links=links))) < 900


@pytest.mark.parametrize(
    "changes",
    [
        {"swarm": SwarmId("")},
        {"peer_id": PeerId("a b")},
        {"sequence": 0},
        {"sequence": 2**48},
        {"issued_at_s": math.nan},
        {"issued_at_s": -1.0},
        {"lifetime_s": -1.0},
        {"lifetime_s": math.nan},
        {"lifetime_s": 1e9},
        {"lifetime_s": 0.0},
        {"state": "asleep"},
        {"reachability": "maybe"},
        {"region": "\x1b[2J"},
        {"version": "x" * 65},
        {"addresses": ("192.0.2.7:4001",)},
        {"addresses": ("/ip4/192.0.2.7",) * 17},
        {"memory_bytes": 2**60},
        {"free_memory_bytes": RECORD.memory_bytes + 1},
        {"held": (HELD,) * 2},
        {"held": tuple(replace(HELD, layers=LayerRange(n, n + 1)) for n in range(17))},
        {"links": (LINK, LINK)},
        {"links": tuple(Link(PeerId(f"peer{n}"), 0.1, 0.0) for n in range(33))},
        {"links": (replace(LINK, peer=RECORD.peer_id),)},
        {"links": (replace(LINK, rtt_s=0.0),)},
        {"links": (replace(LINK, rtt_s=math.nan),)},
        {"links": (replace(LINK, bandwidth_bytes_s=math.inf),)},
        {"chain_anchor": bytes(16)},
        {"chain_anchor": bytes(15), "chain_length": 5},
        {"chain_anchor": bytes(16), "chain_length": 1025},
    ],
)
def test_absurd_record_is_refused_on_both_sides(changes: dict[str, Any]) -> None:
    record = replace(RECORD, **changes)
    with pytest.raises(LocalProtocolError):
        encode_record(record)


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "joining"},
        {"model_layers": 0},
        {"model_layers": 10},
        {"model_digest": "AB" * 32},
        {"context_tokens": 0},
        {"layer_bytes": 0},
        {"layer_bytes": 2**60},
        {"cache_rows": 0, "free_cache_rows": 0},
        {"free_cache_rows": HELD.cache_rows + 1},
        {"decode_layer_s": 0.0},
        {"decode_layer_s": -1.0},
        {"decode_layer_s": math.nan},
        {"prefill_layer_s": math.inf},
        {"dtype": "float8"},
    ],
)
def test_absurd_holding_is_the_fault_of_the_peer(changes: dict[str, Any]) -> None:
    wire = records_pb2.CoverageRecord.FromString(inflate(encode_record(RECORD), MAX_RECORD_BYTES))
    for name, value in changes.items():
        setattr(wire.held[0], name, value)
    with pytest.raises(RemoteProtocolError):
        decode_record(deflate(wire.SerializeToString()))


def test_speed_may_be_unknown_while_loading() -> None:
    loading = replace(HELD, state="loading", decode_layer_s=0.0, prefill_layer_s=0.0, cache_rows=0, free_cache_rows=0)
    record = replace(RECORD, held=(loading,))
    assert decode_record(encode_record(record)) == record


def test_too_long_a_record_is_refused_before_it_is_read() -> None:
    with pytest.raises(RemoteProtocolError, match="bytes"):
        decode_record(bytes(MAX_RECORD_BYTES + 1))


def test_record_that_inflates_beyond_the_bound_is_the_fault_of_the_peer() -> None:
    with pytest.raises(RemoteProtocolError, match="inflate"):
        decode_record(deflate(bytes(1_000_000)))


@pytest.mark.parametrize("spoil", [lambda data: data[:-1], lambda data: data + b"0", lambda data: b""])
def test_deflated_bytes_that_do_not_end_where_they_should_are_the_fault_of_the_peer(
    spoil: Callable[[bytes], bytes],
) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_record(spoil(encode_record(RECORD)))


@given(st.binary(max_size=300))
def test_random_record_is_the_fault_of_the_peer(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_record(deflate(data))


@given(st.binary(max_size=300))
def test_random_bytes_are_the_fault_of_the_peer(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_record(data)


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=4))
def test_mutated_records_give_a_value_or_the_peers_fault(changes: list[tuple[int, int]]) -> None:
    data = bytearray(inflate(encode_record(RECORD), MAX_RECORD_BYTES))
    for at, byte in changes:
        data[at % len(data)] = byte
    try:
        record = decode_record(deflate(bytes(data)))
    except RemoteProtocolError:
        return
    assert decode_record(encode_record(record)) == record
