"""What a multicast announcement tells, and to whom."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shardp2p.host.mdns import SALT_BYTES, announced_peer, announcement
from shardp2p.identity.keys import peer_id_of
from shardp2p.vocabulary import SwarmId

SWARM, ANOTHER, PEER = SwarmId(peer_id_of(bytes(32))), SwarmId(peer_id_of(b"\x01" * 32)), peer_id_of(b"\x02" * 32)


def properties(salt: bytes) -> dict[bytes, bytes | None]:
    return {key.encode(): value.encode() for key, value in announcement(SWARM, PEER, salt).items()}


def test_members_know_their_swarm_and_others_do_not() -> None:
    told = properties(bytes(SALT_BYTES))
    assert announced_peer(told, SWARM) == PEER
    assert announced_peer(told, ANOTHER) is None


def test_an_announcement_does_not_name_the_swarm_and_none_is_like_another() -> None:
    one, two = properties(bytes(SALT_BYTES)), properties(b"\x01" * SALT_BYTES)
    assert one[b"swarm"] != two[b"swarm"]
    assert all(SWARM.encode() not in (value or b"") for value in one.values())


def test_what_lacks_a_part_is_nobody() -> None:
    told = properties(bytes(SALT_BYTES))
    for key in told:
        assert announced_peer({name: value for name, value in told.items() if name != key}, SWARM) is None
        assert announced_peer(told | {key: None}, SWARM) is None
        assert announced_peer(told | {key: b"\xff"}, SWARM) is None


@given(st.dictionaries(st.sampled_from([b"v", b"salt", b"swarm", b"peer"]), st.binary(max_size=64)))
def test_anything_else_on_a_network_is_nobody(told: dict[bytes, bytes | None]) -> None:
    assert announced_peer(told, SWARM) is None
