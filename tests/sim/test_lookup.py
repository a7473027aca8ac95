"""Iterative lookups over simulated networks: they end, find the nearest that live, and ask few."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence

import pytest

from shardp2p.host.lookup import MAX_CLOSER, MAX_QUERIES, PARALLEL, WIDTH, Lookup, place_of
from shardp2p.identity.keys import peer_id_of
from shardp2p.vocabulary import PeerId

OURS = peer_id_of(bytes(32))
KEY = b"where is it"


def peers_of(count: int, seed: int = 0) -> list[PeerId]:
    source = random.Random(seed)
    return [peer_id_of(source.randbytes(32)) for _ in range(count)]


def nearest(peers: Sequence[PeerId], key: bytes, count: int) -> list[PeerId]:
    target = int.from_bytes(hashlib.sha256(key).digest(), "big")
    return sorted(peers, key=lambda peer: place_of(peer) ^ target)[:count]


def bucketed_tables(peers: Sequence[PeerId], source: random.Random) -> dict[PeerId, list[PeerId]]:
    """For each peer what Kademlia lets it know: up to `WIDTH` peers of each distance's power of two."""
    tables: dict[PeerId, list[PeerId]] = {}
    for peer in peers:
        buckets: dict[int, list[PeerId]] = {}
        for other in source.sample(peers, len(peers)):
            bucket = buckets.setdefault((place_of(peer) ^ place_of(other)).bit_length(), [])
            if other != peer and len(bucket) < WIDTH:
                bucket.append(other)
        tables[peer] = [other for bucket in buckets.values() for other in bucket]
    return tables


def run(lookup: Lookup, answer: Callable[[PeerId], Sequence[PeerId] | None], source: random.Random) -> int:
    """Drive `lookup`, in which answers come in any order; None is no answer. How many were asked."""
    asking: list[PeerId] = []
    asked = 0
    while not lookup.is_done:
        more = lookup.next_peers()
        asked += len(more)
        asking.extend(more)
        assert 0 < len(asking) <= PARALLEL
        peer = asking.pop(source.randrange(len(asking)))
        closer = answer(peer)
        if closer is None:
            lookup.fail(peer)
        else:
            lookup.answer(peer, closer)
    return asked


@pytest.mark.parametrize("dead_share", [0.0, 0.4])
@pytest.mark.parametrize("seed", range(5))
def test_the_nearest_living_peers_of_three_hundred_are_found(seed: int, dead_share: float) -> None:
    source = random.Random(seed)
    peers = peers_of(300, seed)
    tables = bucketed_tables(peers, source)
    dead = set(source.sample(peers, int(dead_share * len(peers))))
    living = [peer for peer in peers if peer not in dead]
    lookup = Lookup(KEY, [*tables[living[0]][:3], living[1]], OURS)
    asked = run(lookup, lambda peer: None if peer in dead else nearest([*tables[peer], peer], KEY, MAX_CLOSER), source)
    assert list(lookup.found()[:10]) == nearest(living, KEY, 10)
    assert asked < MAX_QUERIES


def test_a_lookup_that_knows_nobody_is_done() -> None:
    lookup = Lookup(KEY, [], OURS)
    assert lookup.is_done
    assert lookup.found() == ()


def test_we_are_never_asked() -> None:
    (other,) = peers_of(1)
    lookup = Lookup(KEY, [OURS, other], OURS)
    assert lookup.next_peers() == (other,)
    lookup.answer(other, [OURS, other])
    assert lookup.is_done
    assert lookup.found() == (other,)


def test_who_failed_is_not_asked_again_when_others_name_it() -> None:
    one, two = peers_of(2)
    lookup = Lookup(KEY, [one, two], OURS)
    assert set(lookup.next_peers()) == {one, two}
    lookup.fail(one)
    lookup.answer(two, [one])
    assert lookup.is_done
    assert lookup.found() == (two,)


def test_a_far_peer_that_hangs_does_not_hold_up_the_end() -> None:
    peers = nearest(peers_of(WIDTH + 1), KEY, WIDTH + 1)
    far = peers[-1]
    lookup = Lookup(KEY, [far], OURS)
    assert lookup.next_peers() == (far,)
    for peer in peers[:-1]:
        lookup._add(peer)
    while more := lookup.next_peers():
        for peer in more:
            lookup.answer(peer)
    assert lookup.is_done
    assert list(lookup.found()) == peers[:-1]


def test_liars_that_invent_nearer_peers_for_ever_are_left() -> None:
    source = random.Random(0)
    lookup = Lookup(KEY, peers_of(3), OURS)
    asked = run(lookup, lambda _: [peer_id_of(source.randbytes(32)) for _ in range(1000)], source)
    assert asked <= MAX_QUERIES
