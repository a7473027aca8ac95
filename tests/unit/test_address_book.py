"""The address book: who is believed about where a peer is, and how long one that failed is left alone."""

from __future__ import annotations

import pytest

from shardp2p.host import address_book
from shardp2p.host.address_book import FIRST_PAUSE_S, LONGEST_PAUSE_S, MAX_ADDRESSES, MAX_PEERS, AddressBook
from shardp2p.identity.keys import peer_id_of

OURS, PEER, OTHER = (peer_id_of(bytes([number] * 32)) for number in range(3))
FIRST, SECOND, THIRD = (f"/ip4/192.0.2.{number}/tcp/4001" for number in (1, 2, 3))


def test_hearsay_adds_up_until_the_peer_speaks_for_itself() -> None:
    book = AddressBook(OURS)
    assert book.learn(PEER, [FIRST], "hearsay")
    assert book.learn(PEER, [SECOND], "hearsay")
    assert book.addresses(PEER) == (FIRST, SECOND)
    assert book.learn(PEER, [THIRD], "itself", sequence=7)
    assert not book.learn(PEER, [FIRST], "hearsay")
    assert book.addresses(PEER) == (THIRD,)


def test_older_words_of_the_peer_count_only_when_the_newer_led_nowhere() -> None:
    book = AddressBook(OURS)
    book.learn(PEER, [SECOND], "itself", sequence=7)
    assert not book.learn(PEER, [FIRST], "itself", sequence=6)
    book.failed(PEER, now=0.0)
    assert book.learn(PEER, [FIRST], "itself", sequence=6)
    assert book.addresses(PEER) == (FIRST,)


def test_the_users_addresses_stay_and_come_first() -> None:
    book = AddressBook(OURS)
    book.learn(PEER, ["/dns4/example.org/tcp/4001"], "user")
    book.learn(PEER, [FIRST], "itself", sequence=1)
    assert book.addresses(PEER) == ("/dns4/example.org/tcp/4001", FIRST)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "/ip4/0.0.0.0/tcp/4001",
        "/ip6/::/tcp/4001",
        "/ip4/224.0.0.251/tcp/4001",
        "/ip4/192.0.2.1/tcp/0",
        "/ip4/192.0.2.1/udp/4001",
        "/dns4/example.org/tcp/4001",
        f"{FIRST}/p2p/{OTHER}",
        "/dns4/" + "a" * 300 + "/tcp/1",
    ],
)
def test_what_strangers_may_not_make_us_dial_is_left_out(text: str) -> None:
    book = AddressBook(OURS)
    assert not book.learn(PEER, [text], "itself", sequence=1)
    assert book.addresses(PEER) == ()


def test_a_peers_own_id_at_the_end_is_cut_off() -> None:
    book = AddressBook(OURS)
    book.learn(PEER, [f"{FIRST}/p2p/{PEER}", FIRST], "hearsay")
    assert book.addresses(PEER) == (FIRST,)


def test_an_address_over_a_relay_is_kept_and_is_not_straight() -> None:
    book, circuit = AddressBook(OURS), f"{FIRST}/p2p/{OTHER}/p2p-circuit"
    book.learn(PEER, [f"{circuit}/p2p/{PEER}", f"{circuit}/p2p/{OTHER}"], "itself", sequence=1)
    assert book.addresses(PEER) == (circuit,)
    assert not book.is_straight(PEER)
    book.learn(PEER, [FIRST, circuit], "itself", sequence=2)
    assert book.is_straight(PEER)


def test_we_are_nobody_to_dial() -> None:
    book = AddressBook(OURS)
    assert not book.learn(OURS, [FIRST], "hearsay")
    assert book.candidates(0.0, 10) == ()


def test_addresses_of_one_peer_are_bounded() -> None:
    book = AddressBook(OURS)
    for number in range(100):
        book.learn(PEER, [f"/ip4/192.0.2.1/tcp/{number + 1}"], "hearsay")
    assert len(book.addresses(PEER)) == MAX_ADDRESSES


def test_pauses_double_up_to_a_bound_and_end_when_the_peer_is_heard() -> None:
    book = AddressBook(OURS)
    now, pauses = 0.0, []
    for _ in range(12):
        book.failed(PEER, now)
        start = now
        while not book.may_try(PEER, now):
            now += FIRST_PAUSE_S
        pauses.append(now - start)
    assert pauses[:4] == [5.0, 10.0, 20.0, 40.0]
    assert pauses[-1] == LONGEST_PAUSE_S
    book.failed(PEER, now)
    book.heard(PEER, now)
    assert book.may_try(PEER, now)
    assert book.heard_since(PEER, now)
    assert not book.heard_since(PEER, now + 1)


def test_candidates_are_the_dialable_ones_last_heard_first() -> None:
    book = AddressBook(OURS)
    book.learn(PEER, [FIRST], "hearsay")
    book.learn(OTHER, [SECOND], "hearsay")
    book.heard(peer_id_of(b"\x09" * 32), 5.0)  # of which no address is known
    book.heard(OTHER, 3.0)
    assert book.candidates(10.0, 10) == (OTHER, PEER)
    assert book.candidates(10.0, 1) == (OTHER,)
    book.failed(OTHER, 10.0)
    assert book.candidates(10.0, 10) == (PEER,)


def test_a_full_book_forgets_who_was_of_no_use_for_longest_but_not_the_users(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert MAX_PEERS >= 1000
    monkeypatch.setattr(address_book, "MAX_PEERS", 3)
    book = AddressBook(OURS)
    peers = [peer_id_of(bytes([number + 10] * 32)) for number in range(5)]
    book.learn(peers[0], [FIRST], "user")
    book.learn(peers[1], [FIRST], "hearsay")
    book.learn(peers[2], [FIRST], "hearsay")
    book.heard(peers[1], 1.0)
    book.learn(peers[3], [FIRST], "hearsay")
    assert len(book) == 3
    assert [bool(book.addresses(peer)) for peer in peers] == [True, True, False, True, False]
