"""Grants, invites and members, and the texts in which they are handed out: what does not hold is named."""

from __future__ import annotations

import base64
import io
import json
import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardp2p.errors import BY_WIRE_STATUS, ConfigError, IntegrityError, RemoteProtocolError
from shardp2p.identity.join import MAX_PEERS, PREFIX, OpenSwarm, parse_join, read_join, write_join
from shardp2p.identity.revocation import read_revocation
from shardp2p.identity.signed import seal
from shardp2p.identity.token import CLOCK_GRACE_S, MAX_USES, Invite, read_grant, read_member
from shardp2p.vocabulary import SwarmId
from tests.support.members import DAY_S, NOW_S, OTHER_OWNER, OWNER, invite, peer
from tests.vectors import regenerate_membership as vectors

ADDRESSES = tuple(f"/ip4/192.0.2.{n}/tcp/4001/p2p/{peer(n).peer_id}" for n in range(1, 4))
OPEN = OpenSwarm(SwarmId(OWNER.peer_id), "lab", ADDRESSES)


@pytest.mark.parametrize(
    "made",
    [
        invite(),
        invite(peers=ADDRESSES),
        invite(role="client", uses=MAX_USES),
        invite(bound_to=peer(1).peer_id, peers=ADDRESSES[:1]),
    ],
)
def test_text_gives_back_the_invite(made: Invite) -> None:
    assert parse_join(write_join(made)) == made


def test_text_gives_back_an_open_swarm() -> None:
    assert parse_join(write_join(OPEN)) == OPEN


@given(st.data())
def test_text_that_was_wrapped_or_indented_still_counts(data: st.DataObject) -> None:
    text = write_join(invite(peers=ADDRESSES))
    place = data.draw(st.integers(0, len(text)))
    assert parse_join(f"  {text[:place]}\r\n  {text[place:]}\n") == invite(peers=ADDRESSES)


@pytest.mark.parametrize("made", [invite(peers=ADDRESSES), OPEN])
def test_text_that_was_cut_short_says_so_wherever_it_was_cut(made: Invite | OpenSwarm) -> None:
    text = write_join(made)
    for length in range(len(PREFIX), len(text)):
        with pytest.raises(ConfigError, match="cut short"):
            parse_join(text[:length])
    for length in range(len(PREFIX)):
        with pytest.raises(ConfigError, match="must begin with"):
            parse_join(text[:length])


def test_text_with_any_one_character_changed_says_which_part_is_wrong() -> None:
    text = write_join(invite(peers=ADDRESSES))
    for place in range(len(PREFIX), len(text)):
        other = "A" if text[place] != "A" else "B"
        with pytest.raises(ConfigError, match=r"mistyped|cut short|after its end|unknown kind") as caught:
            parse_join(text[:place] + other + text[place + 1 :])
        assert text[len(PREFIX) + 8 :] not in caught.value.message


def forged(made: Invite) -> str:
    """The text of a broken invite: its parts do not belong together, its checksum is right."""
    return write_join(made)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "must begin with shardp2p-join-"),
        ("hello", "must begin with shardp2p-join-"),
        (f"{PREFIX}AQ!B", "wrong character at place 17"),
        (PREFIX, "cut short"),
        (write_join(OPEN) + "AAAA", "goes on after its end"),
        (PREFIX + "A" * 9000, "too long"),
        (
            forged(Invite(invite().grant, invite(owner=OTHER_OWNER).sealed_grant, (), bytes(32))),
            "secret does not belong",
        ),
        (forged(Invite(invite().grant, invite().sealed_grant, ADDRESSES, invite().seed)), "peer list is not the one"),
        (forged(Invite(invite().grant, bytes(200), (), invite().seed)), "signature is wrong"),
        (vectors.text_of(9, b""), "unknown kind 9"),
        (vectors.text_of(2, bytes((17,))), "17 peers"),
        (vectors.text_of(2, b"\x02\x04/ip4\x01x"), "peer 1 of 2 is wrong: '/ip4' is no peer's address"),
        (vectors.text_of(2, b"\x01\x0a/p2p/12D3K"), "peer 1 of 1 is wrong: the address '/p2p/12D3K' does not end"),
        (vectors.text_of(2, b"\x00" + bytes(32)), "malformed"),
    ],
)
def test_malformed_text_names_the_part(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(reason)):
        parse_join(text)


@given(st.binary(max_size=400), st.integers(0, 3))
def test_any_bytes_in_a_text_give_a_value_or_a_config_error(body: bytes, kind: int) -> None:
    with suppress(ConfigError):
        parse_join(vectors.text_of(kind, body))


@given(st.text(max_size=60))
def test_any_text_gives_a_value_or_a_config_error(text: str) -> None:
    for given_text in (text, PREFIX + text):
        with pytest.raises(ConfigError):
            parse_join(given_text)


def test_no_text_is_made_of_what_could_not_be_read() -> None:
    with pytest.raises(ConfigError, match="too many"):
        write_join(OpenSwarm(OPEN.swarm, "lab", ADDRESSES[:1] * (MAX_PEERS + 1)))
    with pytest.raises(ConfigError, match="no peer's address"):
        write_join(OpenSwarm(OPEN.swarm, "lab", ("/ip4/192.0.2.1/tcp/4001",)))


def test_join_text_is_given_itself_in_a_file_or_on_stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = write_join(OPEN)
    file = tmp_path / "token"
    file.write_text(f"{text}\n")
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{text}\n"))
    assert read_join(text) == read_join(str(file)) == read_join("-") == OPEN


def test_what_is_no_token_and_no_file_is_not_repeated(tmp_path: Path) -> None:
    tail = write_join(invite())[20:]
    for given_text in (tail, "a\0b", str(tmp_path), str(tmp_path / "nothing")):
        with pytest.raises(ConfigError, match="--join is neither") as caught:
            read_join(given_text)
        assert tail not in caught.value.message
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="no text"):
        read_join(str(tmp_path / "bytes"))


def test_secret_is_in_no_repr_and_never_in_the_proof() -> None:
    made = invite(peers=ADDRESSES)
    for secret in (made.seed, peer(1).seed):
        assert secret not in made.claim(peer(1), NOW_S)
        for shown in (repr(made), str(made)):
            assert secret.hex() not in shown
            assert repr(secret) not in shown


def test_claim_makes_a_member_that_anyone_can_check() -> None:
    member = read_member(invite(role="client").claim(peer(1), NOW_S + 5))
    assert (member.peer, member.claimed_at_s, member.grant.role) == (peer(1).peer_id, NOW_S + 5, "client")
    assert member.grant.swarm == OWNER.peer_id


def test_clock_behind_the_owners_makes_no_claim_older_than_the_invite() -> None:
    assert read_member(invite().claim(peer(1), NOW_S - 300)).claimed_at_s == NOW_S


def test_invite_is_used_up_by_time_with_a_grace_and_by_another_peer_never() -> None:
    made = invite(lifetime_s=DAY_S, bound_to=peer(1).peer_id)
    made.claim(peer(1), NOW_S + DAY_S + CLOCK_GRACE_S)
    with pytest.raises(ConfigError, match="expired; ask the swarm's owner"):
        made.claim(peer(1), NOW_S + DAY_S + CLOCK_GRACE_S + 1)
    with pytest.raises(ConfigError, match=f"--for {peer(2).peer_id}"):
        made.claim(peer(2), NOW_S)


def test_member_by_an_invite_for_another_peer_is_refused() -> None:
    with pytest.raises(IntegrityError, match="alone"):
        read_member(vectors.bound_to_another())


@given(st.data())
def test_any_changed_bit_of_a_proof_is_noticed(data: st.DataObject) -> None:
    proof = bytearray(invite(uses=3).claim(peer(1), NOW_S))
    place = data.draw(st.integers(0, 8 * len(proof) - 1))
    proof[place // 8] ^= 1 << place % 8
    with pytest.raises((IntegrityError, RemoteProtocolError)):
        read_member(bytes(proof))


@given(st.binary(max_size=600))
def test_random_bytes_are_no_proof_grant_or_revocation(data: bytes) -> None:
    for read in (read_member, read_grant, lambda raw: read_revocation(raw, SwarmId(OWNER.peer_id))):
        with pytest.raises((RemoteProtocolError, IntegrityError)):
            read(data)


@given(st.binary(max_size=300))
def test_an_owners_own_bytes_give_a_grant_or_a_protocol_error(payload: bytes) -> None:
    """Anybody can own a swarm, so a right signature says nothing of the layout."""
    with suppress(RemoteProtocolError):
        assert read_grant(seal(OTHER_OWNER, "grant/1", payload)).swarm == OTHER_OWNER.peer_id


@pytest.mark.parametrize("uses", [-1, MAX_USES + 1])
def test_invite_for_more_peers_than_members_can_count_is_not_made(uses: int) -> None:
    with pytest.raises(ConfigError, match="--uses"):
        invite(uses=uses)


VECTORS = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(vectors.FOLDER.glob("*.json"))}


@pytest.mark.parametrize("name", VECTORS)
def test_bytes_mean_what_their_vector_says(name: str) -> None:
    vector = VECTORS[name]
    data = bytes.fromhex(vector["bytes"])
    if "error" in vector:
        with pytest.raises(BY_WIRE_STATUS[vector["error"]]):
            vectors.read(vector["what"], data)
    else:
        assert vectors.meaning(vectors.read(vector["what"], data)) == vector["meaning"]


def test_regenerating_the_vectors_changes_nothing() -> None:
    assert vectors.render() == {path.name: path.read_text("utf-8") for path in vectors.FOLDER.glob("*.json")}


def test_token_survives_what_shells_and_messengers_do_to_text() -> None:
    text = write_join(invite(peers=ADDRESSES))
    assert re.fullmatch(r"[A-Za-z0-9_-]+", text)
    assert base64.urlsafe_b64decode(text[len(PREFIX) :] + "=" * (-len(text[len(PREFIX) :]) % 4))[0] == 1


@pytest.mark.parametrize(("text", "wrong"), [("\n", "is empty"), ("hello", ": this is no join token")])
def test_a_file_with_no_token_is_named(tmp_path: Path, text: str, wrong: str) -> None:
    file = tmp_path / "home.token"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_join(str(file))
    assert caught.value.message.startswith(f"the file {file}")
    assert wrong in caught.value.message
