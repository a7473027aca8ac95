"""Whose records count in a private swarm, in gossip and in the directory."""

from __future__ import annotations

import pytest

from shardp2p.errors import IntegrityError, RemoteProtocolError
from shardp2p.identity.membership import revocation_statement
from shardp2p.identity.revocation import sign_revocation
from shardp2p.identity.token import CLOCK_GRACE_S
from shardp2p.swarm.roll import Roll, kept_value, open_kept
from shardp2p.vocabulary import SwarmId
from tests.support.gossip_parts import Voice, invite_of, membership_of
from tests.support.gossip_swarm import OWNER, SWARM, UNIX_S, identity_of
from tests.support.members import invite

VOICE = Voice(1)
PROOF = invite_of(1).claim(VOICE.identity, UNIX_S)
CLIENT = invite_of(2, "client").claim(VOICE.identity, UNIX_S)


def test_everybody_is_believed_in_an_open_swarm() -> None:
    assert Roll().judge(VOICE.record, VOICE.short, b"") == "believed"
    assert not Roll().lacks(VOICE.short)


def test_proof_is_kept_while_the_view_has_a_record_and_passed_on() -> None:
    roll = Roll(membership_of(0), lambda: UNIX_S)
    assert roll.lacks(VOICE.short)
    assert roll.judge(VOICE.record, VOICE.short, b"") == "unproven"
    assert roll.judge(VOICE.record, VOICE.short, PROOF) == "believed"
    assert roll.judge(VOICE.record, VOICE.short, b"") == "believed"
    assert roll.proof_of(VOICE.short) == PROOF
    roll.forget(VOICE.short)
    assert roll.judge(VOICE.record, VOICE.short, b"") == "unproven"


def test_proof_of_another_peer_is_the_fault_of_who_sent_it() -> None:
    other = invite_of(1).claim(identity_of(2), UNIX_S)
    with pytest.raises(IntegrityError, match="that of"):
        Roll(membership_of(0), lambda: UNIX_S).judge(VOICE.record, VOICE.short, other)


def test_invite_to_another_swarm_counts_for_nothing() -> None:
    stranger = invite(UNIX_S).claim(VOICE.identity, UNIX_S)
    assert Roll(membership_of(0), lambda: UNIX_S).judge(VOICE.record, VOICE.short, stranger) == "refused"


def test_membership_that_has_expired_ends_what_was_believed() -> None:
    now_s = UNIX_S
    roll = Roll(membership_of(0), lambda: now_s)
    roll.judge(VOICE.record, VOICE.short, PROOF)
    assert roll.ended() == []
    now_s += 86_400 + CLOCK_GRACE_S + 1
    assert roll.ended() == [VOICE.short]
    assert roll.judge(VOICE.record, VOICE.short, PROOF) == "refused"


def test_client_that_joined_again_as_a_member_is_believed_by_its_new_proof() -> None:
    roll = Roll(membership_of(0), lambda: UNIX_S)
    assert roll.judge(VOICE.record, VOICE.short, CLIENT) == "forbidden"
    assert roll.judge(VOICE.record, VOICE.short, PROOF) == "believed"


def test_old_proof_takes_nothing_from_one_that_counts() -> None:
    known, revoked = membership_of(0), invite_of(3)
    known.receive(revocation_statement(sign_revocation(OWNER, "invite", revoked.grant.invite, UNIX_S)), UNIX_S)
    roll = Roll(known, lambda: UNIX_S)
    roll.judge(VOICE.record, VOICE.short, PROOF)
    assert roll.judge(VOICE.record, VOICE.short, revoked.claim(VOICE.identity, UNIX_S)) == "believed"
    assert roll.proof_of(VOICE.short) == PROOF


def test_directory_value_of_a_member_is_read_and_of_an_invented_peer_refused() -> None:
    known = membership_of(0)
    assert open_kept(kept_value(VOICE.sealed, PROOF), VOICE.peer, SWARM, known, UNIX_S) == VOICE.record
    for proof in (b"", PROOF[:-1], CLIENT, invite(UNIX_S).claim(VOICE.identity, UNIX_S)):
        with pytest.raises(RemoteProtocolError):
            open_kept(kept_value(VOICE.sealed, proof), VOICE.peer, SWARM, known, UNIX_S)
    with pytest.raises(IntegrityError):
        open_kept(kept_value(VOICE.sealed, PROOF[:-1] + b"\0"), VOICE.peer, SWARM, known, UNIX_S)


def test_directory_value_of_an_open_swarm_needs_no_proof() -> None:
    assert open_kept(kept_value(VOICE.sealed, b""), VOICE.peer, SWARM, None, UNIX_S) == VOICE.record
    with pytest.raises(RemoteProtocolError, match="swarm"):
        open_kept(kept_value(VOICE.sealed, b""), VOICE.peer, SwarmId(VOICE.peer), None, UNIX_S)
    with pytest.raises(IntegrityError, match="stands under"):
        open_kept(kept_value(VOICE.sealed, b""), Voice(2).peer, SWARM, None, UNIX_S)
