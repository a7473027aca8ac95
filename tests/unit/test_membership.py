"""Who is admitted, by what is known: revocations and the uses of counted invites, in whatever order they arrive."""

from __future__ import annotations

import random
from contextlib import suppress
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardp2p.errors import IntegrityError, OverloadedError, RemoteProtocolError
from shardp2p.identity import membership as membership_module
from shardp2p.identity import revocation as revocation_module
from shardp2p.identity.keys import public_bytes_of
from shardp2p.identity.membership import Membership, read_statement, revocation_statement, subject_of
from shardp2p.identity.revocation import sign_revocation
from shardp2p.identity.token import CLOCK_GRACE_S, Invite, Refusal, RefusedError
from shardp2p.vocabulary import PeerId
from tests.support.members import DAY_S, NOW_S, OTHER_OWNER, OWNER, invite, membership, peer


def revoke_invite(made: Invite, now_s: float = NOW_S) -> bytes:
    return revocation_statement(sign_revocation(OWNER, "invite", made.grant.invite, now_s))


def revoke_peer(number: int, now_s: float = NOW_S) -> bytes:
    return revocation_statement(sign_revocation(OWNER, "peer", peer(number).public_bytes, now_s))


def refusal_of(known: Membership, number: int, made: Invite, claimed_at_s: float, now_s: float) -> Refusal | None:
    try:
        known.admit(made.claim(peer(number), claimed_at_s), peer(number).peer_id, now_s)
    except RefusedError as error:
        return error.refusal
    return None


def test_member_of_the_swarm_is_admitted_with_its_role() -> None:
    known = membership(1)
    assert known.role(peer(2).peer_id) is None
    assert known.admit(invite(role="client").claim(peer(2), NOW_S), peer(2).peer_id, NOW_S).grant.role == "client"
    assert known.role(peer(2).peer_id) == "client"
    assert known.role(peer(1).peer_id) == "member"


def test_proof_shown_by_another_peer_than_its_own_is_wrong() -> None:
    with pytest.raises(IntegrityError, match="that of"):
        membership(1).admit(invite().claim(peer(2), NOW_S), peer(3).peer_id, NOW_S)


def test_member_of_another_swarm_is_refused() -> None:
    assert refusal_of(membership(1), 2, invite(owner=OTHER_OWNER), NOW_S, NOW_S) == "other_swarm"


@pytest.mark.parametrize(("late_s", "refusal"), [(0, None), (CLOCK_GRACE_S, None), (CLOCK_GRACE_S + 1, "expired")])
def test_expired_invite_counts_for_as_long_as_clocks_may_differ(late_s: float, refusal: Refusal | None) -> None:
    assert refusal_of(membership(1), 2, invite(key=7), NOW_S, NOW_S + DAY_S + late_s) == refusal


def test_revoked_invite_shuts_out_all_that_joined_by_it_and_nobody_else() -> None:
    known, bad, good = membership(1), invite(key=7), invite(key=8)
    for number, made in ((2, bad), (3, bad), (4, good)):
        known.admit(made.claim(peer(number), NOW_S), peer(number).peer_id, NOW_S)
    connected = [peer(number).peer_id for number in (2, 3, 4)]
    assert known.ended(connected, NOW_S) == ()
    assert known.receive(revoke_invite(bad), NOW_S)
    assert known.ended(connected, NOW_S) == ((connected[0], "revoked"), (connected[1], "revoked"))
    assert refusal_of(known, 5, bad, NOW_S, NOW_S) == "revoked"
    assert refusal_of(known, 5, good, NOW_S, NOW_S) is None


def test_revoked_peer_comes_back_by_a_later_invite_alone() -> None:
    known = membership(1)
    known.receive(revoke_peer(2, NOW_S + 10), NOW_S)
    assert refusal_of(known, 2, invite(NOW_S + 10, key=7), NOW_S + 10, NOW_S + 20) == "revoked"
    assert refusal_of(known, 2, invite(NOW_S + 11, key=8), NOW_S + 11, NOW_S + 20) is None
    assert refusal_of(known, 3, invite(key=7), NOW_S, NOW_S + 20) is None


def test_connected_peer_that_was_never_admitted_has_to_go() -> None:
    assert membership(1).ended([peer(2).peer_id], NOW_S) == ((peer(2).peer_id, "invalid"),)


def test_own_invite_is_judged_like_any_others() -> None:
    made = invite(key=7)
    known = membership(1, made)
    assert known.own_refusal(NOW_S) is None
    assert known.own_refusal(NOW_S + DAY_S + CLOCK_GRACE_S + 1) == "expired"
    known.receive(revoke_invite(made), NOW_S)
    assert known.own_refusal(NOW_S) == "revoked"


def test_news_is_spread_once_and_old_news_not_at_all() -> None:
    known, statement = membership(1), revoke_peer(2)
    assert known.receive(statement, NOW_S)
    assert known.pending() == (statement,)
    assert not known.receive(statement, NOW_S)
    assert not known.receive(revoke_peer(2, NOW_S - 1), NOW_S)
    assert known.pending() == ()
    assert known.statements() == (statement,)


@cache
def statements() -> tuple[bytes, ...]:
    """Revocations and uses of two counted invites, more uses than either is for."""
    uses = [
        b"\x02" + made.claim(peer(number), NOW_S + (number * 7) % 5)
        for made in (invite(uses=2, key=7), invite(uses=3, key=8))
        for number in range(2, 8)
    ]
    return (*uses, revoke_peer(2), revoke_peer(2, NOW_S + 5), revoke_invite(invite(key=9)))


@settings(max_examples=25)
@given(st.randoms(use_true_random=False))
def test_members_who_know_the_same_agree_whatever_the_order(chance: random.Random) -> None:
    found = [membership(1), membership(1)]
    for known in found:
        order = [*statements(), *statements()[:4]]
        chance.shuffle(order)
        for statement in order:
            known.receive(statement, NOW_S)
    one, two = (set(known.statements()) for known in found)
    assert one == two
    assert len(one) == 2 + 3 + 2


def test_of_two_statements_about_one_subject_the_one_that_counts_is_known_by_its_number() -> None:
    swarm, made = membership(1).swarm, invite(uses=2, key=7)
    older, newer = (subject_of(read_statement(revoke_peer(2, NOW_S + n), swarm)) for n in (0, 1))
    late, early = (subject_of(read_statement(b"\x02" + made.claim(peer(2), NOW_S + n), swarm)) for n in (1, 0))
    assert (older[0], late[0]) == (newer[0], early[0])
    assert older[1] < newer[1]
    assert late[1] < early[1]
    keys = {subject_of(read_statement(statement, swarm))[0] for statement in statements()}
    assert len(keys) == 12 + 2


@settings(max_examples=25)
@given(st.integers(0, 10), st.integers(0, 10))
def test_statements_merge_through_a_third_member(first: int, second: int) -> None:
    """What two have heard separately, both know after they exchanged it."""
    one, two = membership(1), membership(1)
    for statement in statements()[: first + 3]:
        one.receive(statement, NOW_S)
    for statement in statements()[second:]:
        two.receive(statement, NOW_S)
    for statement in one.statements():
        two.receive(statement, NOW_S)
    for statement in two.statements():
        one.receive(statement, NOW_S)
    assert set(one.statements()) == set(two.statements())


def test_counted_invite_is_for_the_first_by_time_then_by_key() -> None:
    made, known = invite(uses=2, key=7), membership(1)
    first, second = sorted((2, 3), key=lambda number: peer(number).public_bytes)
    assert refusal_of(known, second, made, NOW_S + 5, NOW_S + 9) is None
    assert refusal_of(known, 4, made, NOW_S + 6, NOW_S + 9) is None
    assert refusal_of(known, 5, made, NOW_S + 7, NOW_S + 9) == "used_up"
    assert refusal_of(known, first, made, NOW_S + 5, NOW_S + 9) is None
    assert known.ended([peer(4).peer_id, peer(second).peer_id], NOW_S + 9) == ((peer(4).peer_id, "used_up"),)


def test_peer_that_joins_again_keeps_its_place() -> None:
    made, known = invite(uses=1, key=7), membership(1)
    assert refusal_of(known, 2, made, NOW_S, NOW_S) is None
    assert refusal_of(known, 2, made, NOW_S + 100, NOW_S + 100) is None
    assert refusal_of(known, 3, made, NOW_S + 50, NOW_S + 100) == "used_up"


def test_use_of_an_expired_invite_is_forgotten_and_none_is_counted_after_it() -> None:
    made, known = invite(uses=1, key=7), membership(1)
    use = b"\x02" + made.claim(peer(2), NOW_S)
    assert known.receive(use, NOW_S)
    late_s = NOW_S + DAY_S + CLOCK_GRACE_S + 1
    assert not known.receive(use, late_s)
    other = invite(NOW_S + DAY_S, uses=1, key=8)
    assert known.receive(b"\x02" + other.claim(peer(3), NOW_S + DAY_S), late_s)
    assert len(known.statements()) == 1


def test_use_by_a_revoked_invite_is_not_counted_at_the_door() -> None:
    made, known = invite(uses=1, key=7), membership(1)
    known.receive(revoke_invite(made), NOW_S)
    assert refusal_of(known, 2, made, NOW_S, NOW_S) == "revoked"
    assert known.statements() == (revoke_invite(made),)


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        (b"", RemoteProtocolError),
        (b"\x07" + bytes(100), RemoteProtocolError),
        (bytes(2000), RemoteProtocolError),
        (revoke_peer(2)[:-1], RemoteProtocolError),
        (b"\x02" + invite().claim(peer(2), NOW_S), RemoteProtocolError),
        (b"\x02" + invite(uses=2, owner=OTHER_OWNER).claim(peer(2), NOW_S), IntegrityError),
        (revocation_statement(sign_revocation(OTHER_OWNER, "peer", peer(2).public_bytes, NOW_S)), IntegrityError),
        (revocation_statement(sign_revocation(peer(3), "peer", peer(2).public_bytes, NOW_S)), IntegrityError),
    ],
)
def test_what_is_no_statement_of_this_swarm_changes_nothing(statement: bytes, error: type[Exception]) -> None:
    known = membership(1)
    with pytest.raises(error):
        known.receive(statement, NOW_S)
    assert (known.pending(), known.statements()) == ((), ())


@given(st.binary(max_size=700))
def test_random_bytes_are_no_statement_and_no_proof(data: bytes) -> None:
    known = membership(1)
    for prefix in (b"", b"\x01", b"\x02"):
        with pytest.raises((RemoteProtocolError, IntegrityError)):
            known.receive(prefix + data, NOW_S)
    with pytest.raises((RemoteProtocolError, IntegrityError)):
        known.admit(data, peer(2).peer_id, NOW_S)


def test_every_list_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revocation_module, "MAX_REVOCATIONS", 3)
    monkeypatch.setattr(membership_module, "MAX_COUNTED_USES", 2)
    monkeypatch.setattr(membership_module, "MAX_REMEMBERED_PEERS", 4)
    monkeypatch.setattr(membership_module, "MAX_PENDING", 4)
    known, counted = membership(1), invite(uses=9, key=7)
    for number in range(2, 12):
        with suppress(OverloadedError):
            known.receive(revoke_peer(100 + number), NOW_S)
        with suppress(RefusedError):
            known.admit(counted.claim(peer(number), NOW_S), peer(number).peer_id, NOW_S)
        known.admit(invite().claim(peer(number), NOW_S), peer(number).peer_id, NOW_S)
    assert len(known.statements()) == 3 + 2
    assert len(known.pending()) == 4
    remembered: list[PeerId] = [peer(n).peer_id for n in range(2, 12) if known.role(peer(n).peer_id)]
    assert remembered == [peer(n).peer_id for n in range(8, 12)]
    with pytest.raises(OverloadedError, match="all that members keep"):
        known.receive(revoke_peer(2), NOW_S)
    assert known.receive(revoke_peer(102, NOW_S + 1), NOW_S), "a newer one of the same peer needs no room"


def test_public_key_of_a_member_is_in_its_peer_id() -> None:
    assert public_bytes_of(membership(1).own.peer) == peer(1).public_bytes
