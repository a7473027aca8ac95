"""Which records the directory accepts, and which of several it prefers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardp2p.errors import IntegrityError, RemoteProtocolError
from shardp2p.host.record_validator import MAX_VALUE_BYTES, RecordValidator
from shardp2p.identity.keys import peer_id_of
from shardp2p.vocabulary import PeerId

PEER = peer_id_of(bytes(32))
KEY = f"/records/{PEER}"


def validate(peer: PeerId, value: bytes) -> int:
    if peer != PEER:
        raise IntegrityError("another peer's")
    try:
        return int(value.split(b" ")[0])
    except ValueError as error:
        raise RemoteProtocolError("no number") from error


VALIDATOR = RecordValidator("records", validate)


def test_a_peers_own_record_has_its_sequence() -> None:
    assert VALIDATOR.sequence_of(KEY, b"7") == 7
    VALIDATOR.validate(KEY, b"7")


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        (KEY, b"", RemoteProtocolError),
        (KEY, b"1 " + bytes(MAX_VALUE_BYTES), RemoteProtocolError),
        (f"/records/{peer_id_of(bytes([1] * 32))}", b"1", IntegrityError),
        (f"/others/{PEER}", b"1", RemoteProtocolError),
        ("/records/nobody", b"1", RemoteProtocolError),
        (f"/records/{PEER}/more", b"1", RemoteProtocolError),
        ("/records/" + "1" * 200, b"1", RemoteProtocolError),
        ("", b"1", RemoteProtocolError),
    ],
)
def test_all_else_is_refused(key: str, value: bytes, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        VALIDATOR.sequence_of(key, value)
    with pytest.raises(ValueError, match=r".+"):
        VALIDATOR.validate(key, value)


def test_the_highest_sequence_wins_and_the_last_of_equal_ones() -> None:
    values = [b"1", b"3 a", b"junk", b"3 b", b"2"]
    assert VALIDATOR.best(KEY, values) == b"3 b"
    assert VALIDATOR.select(KEY, values) == 3


def test_a_record_that_is_put_again_is_taken_so_that_it_is_renewed() -> None:
    assert VALIDATOR.select(KEY, [b"5", b"5"]) == 1
    assert VALIDATOR.select(KEY, [b"5", b"4"]) == 0


@given(st.lists(st.binary(max_size=20), max_size=6), st.text(max_size=80))
def test_choosing_never_raises(values: list[bytes], key: str) -> None:
    chosen = VALIDATOR.select(key, values)
    assert chosen == 0 or chosen < len(values)
    best = VALIDATOR.best(KEY, values)
    assert best is None or best in values
