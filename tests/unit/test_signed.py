"""Sealed values: whoever changes a byte, the purpose or the signer is noticed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardp2p.errors import ConfigError, IntegrityError, LocalProtocolError, RemoteProtocolError
from shardp2p.identity.keys import Identity, peer_id_of, public_bytes_of
from shardp2p.identity.signed import MAX_PAYLOAD_BYTES, SEAL_BYTES, Sealed, seal, sign, unseal, verify_with
from shardp2p.vocabulary import PeerId

OWNER = Identity.from_seed(b"o" * 32)
OTHER = Identity.from_seed(b"p" * 32)


@given(st.binary(max_size=200))
def test_sealed_value_gives_signer_and_payload(payload: bytes) -> None:
    sealed = seal(OWNER, "coverage/1", payload)
    assert len(sealed) == SEAL_BYTES + len(payload)
    assert unseal(sealed, "coverage/1") == Sealed(OWNER.peer_id, payload)
    assert unseal(sealed, "coverage/1", signer=OWNER.peer_id).payload == payload


@given(st.binary(max_size=40), st.data())
def test_any_changed_bit_is_noticed(payload: bytes, data: st.DataObject) -> None:
    sealed = bytearray(seal(OWNER, "coverage/1", payload))
    place = data.draw(st.integers(0, 8 * len(sealed) - 1))
    sealed[place // 8] ^= 1 << place % 8
    with pytest.raises(IntegrityError):
        unseal(bytes(sealed), "coverage/1")


def test_value_signed_for_one_purpose_is_none_for_another() -> None:
    with pytest.raises(IntegrityError, match="revocation"):
        unseal(seal(OWNER, "coverage/1", b"x"), "revocation/1")
    with pytest.raises(IntegrityError):
        verify_with(OWNER.public_bytes, "a", b"bc", sign(OWNER, "ab", b"c"))


def test_value_of_another_signer_is_refused_though_its_signature_is_right() -> None:
    with pytest.raises(IntegrityError, match="not by"):
        unseal(seal(OTHER, "coverage/1", b"x"), "coverage/1", signer=OWNER.peer_id)


@given(st.binary(max_size=300))
def test_random_bytes_are_refused_as_a_peers_fault(data: bytes) -> None:
    with pytest.raises((RemoteProtocolError, IntegrityError)):
        unseal(data, "coverage/1")


def test_payload_above_the_limit_is_neither_signed_nor_read() -> None:
    with pytest.raises(LocalProtocolError):
        seal(OWNER, "coverage/1", bytes(MAX_PAYLOAD_BYTES + 1))
    with pytest.raises(RemoteProtocolError):
        unseal(bytes(SEAL_BYTES + MAX_PAYLOAD_BYTES + 1), "coverage/1")


@pytest.mark.parametrize("domain", ["", "a\0b", "Coverage", "ü", "a" * 65])
def test_odd_domain_is_our_own_fault(domain: str) -> None:
    with pytest.raises(LocalProtocolError):
        sign(OWNER, domain, b"")


@given(st.binary(min_size=32, max_size=32))
def test_peer_id_carries_its_public_key(public: bytes) -> None:
    assert public_bytes_of(peer_id_of(public)) == public


@pytest.mark.parametrize(
    "text",
    ["", "12D3KooW", "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N", "0" * 52, OWNER.peer_id + "1", "1" * 10**6],
)
def test_text_that_carries_no_key_is_no_peer_id(text: str) -> None:
    with pytest.raises(ConfigError, match="no peer id"):
        public_bytes_of(PeerId(text))
