"""What a user is told when nobody of a swarm answers."""

from __future__ import annotations

import pytest

from shardp2p.errors import PeerUnavailableError
from shardp2p.identity.token import Refusal, turned_away
from shardp2p.swarm.silence import silence
from tests.support.members import peer


def failure(number: int, *ports: int) -> PeerUnavailableError:
    named = peer(number).peer_id
    tried = "; ".join(f"/ip4/192.0.2.7/tcp/{port}/p2p/{named}: refused" for port in ports)
    return PeerUnavailableError(f"cannot reach peer {named}: {tried}")


def test_a_peer_is_named_once_however_many_addresses_it_has() -> None:
    named = peer(1).peer_id
    line = silence("home", [(named, failure(1, 4001, 4002))])
    assert line == (
        f"no peer of the swarm can be reached: /ip4/192.0.2.7/tcp/4001/p2p/{named}: refused; "
        "/ip4/192.0.2.7/tcp/4002: refused; start one of them, or name one that can be dialled from here, by an address "
        "that its `shardp2p status` shows: --join home --peer MULTIADDR"
    )


def test_of_many_peers_a_few_are_listed() -> None:
    line = silence("home", [(peer(number).peer_id, failure(number, 4001)) for number in range(1, 10)])
    assert line.count("refused") == 4
    assert "and 5 more; start one of them" in line


@pytest.mark.parametrize("refusal", ["revoked", "expired"])
def test_who_is_admitted_no_more_is_told_why_and_whom_to_ask(refusal: Refusal) -> None:
    said = f"the swarm home admits this peer no more ({refusal}); ask its owner for a new invite"
    assert turned_away("home", refusal) == said
