"""Whether another ring is tried after one failed, without whom, and what the user reads in the end."""

from __future__ import annotations

import pytest

from shardp2p.errors import (
    ConfigError,
    IntegrityError,
    LocalProtocolError,
    OverloadedError,
    PeerUnavailableError,
    RemoteProtocolError,
    ShardError,
)
from shardp2p.scheduler.attempts import MAX_REASON_CHARACTERS, MAX_TOLD, Attempts
from shardp2p.scheduler.plan import Plan, Stage
from shardp2p.vocabulary import LayerRange, ModelId, PeerId

CLIENT = PeerId("client")
A, B, C = PeerId("a"), PeerId("b"), PeerId("c")


def plan(*peers: str) -> Plan:
    stages = tuple(Stage(PeerId(peer), LayerRange(at, at + 1)) for at, peer in enumerate(peers))
    return Plan(ModelId("tiny"), "ab" * 32, "float32", 100, stages)


@pytest.mark.parametrize(
    "kind", [PeerUnavailableError, OverloadedError, RemoteProtocolError, IntegrityError, ConfigError]
)
def test_the_peer_to_blame_is_avoided_whatever_it_did(kind: type[ShardError]) -> None:
    attempts = Attempts(CLIENT)
    fault = attempts.failed(plan("a", "b"), kind("it said no; start it again", "b"), CLIENT)
    assert (fault.peer, fault.reason, fault.is_seen) == (B, "it said no", True)
    assert attempts.avoid == {B: "it said no"}
    assert attempts.count == 1


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("the prompt is too long"),
        PeerUnavailableError("nothing came around the ring"),
        PeerUnavailableError("somebody else went away", "stranger"),
        OverloadedError("no room in our own layers", "client"),
        LocalProtocolError("a bug", "a"),
    ],
)
def test_what_another_ring_would_not_mend_ends_the_request(error: ShardError) -> None:
    with pytest.raises(type(error)) as raised:
        Attempts(CLIENT).failed(plan("client", "a", "b"), error, CLIENT)
    assert raised.value is error


def test_what_a_driver_tells_of_others_is_hearsay_and_believed_only_so_often() -> None:
    attempts = Attempts(CLIENT)
    assert not attempts.failed(plan("a", "b"), PeerUnavailableError("gone", "b"), A).is_seen
    assert set(attempts.avoid) == {B}
    assert attempts.failed(plan("b", "c"), PeerUnavailableError("gone", "b"), B).is_seen
    attempts.failed(plan("a", "c"), PeerUnavailableError("gone", "c"), A)
    assert set(attempts.avoid) == {A, B, C}


def test_after_enough_tries_the_last_error_tells_of_all() -> None:
    attempts = Attempts(CLIENT, max_tries=3)
    for peer in ("b", "c"):
        attempts.failed(plan("a", peer), PeerUnavailableError(f"cannot reach peer {peer}: refused", peer), CLIENT)
    with pytest.raises(RemoteProtocolError) as raised:
        attempts.failed(plan("a", "d"), RemoteProtocolError("nonsense", "d"), CLIENT)
    assert raised.value.message == (
        "nonsense (before that 2 other rings were tried: stage 2 of 2 (layers 1:2, peer b): cannot reach peer b: "
        "refused; stage 2 of 2 (layers 1:2, peer c): cannot reach peer c: refused)"
    )


def test_only_the_first_failures_are_told() -> None:
    attempts = Attempts(CLIENT)
    for peer in "bcdefg":
        attempts.failed(plan("a", peer), PeerUnavailableError("refused", peer), CLIENT)
    told = attempts.gave_up(PeerUnavailableError("layers are missing")).message
    assert "before that 6 other rings were tried" in told
    assert told.count("refused") == MAX_TOLD
    assert told.endswith("; and 3 more)")


def test_reason_is_short_and_has_no_advice() -> None:
    ring = plan("a", "b")
    told = f"{ring.describe(A)}, which drives the request, went away: cannot reach it; start that peer again"
    assert Attempts(CLIENT).failed(ring, PeerUnavailableError(told, "a"), A).reason == "cannot reach it"
    long = Attempts(CLIENT).failed(ring, PeerUnavailableError("x" * 1000, "a"), A).reason
    assert len(long) == MAX_REASON_CHARACTERS


def test_no_ring_left_after_full_peers_is_an_overload() -> None:
    attempts = Attempts(CLIENT)
    attempts.failed(plan("a"), OverloadedError("no room; try again", "a"), CLIENT)
    missing = PeerUnavailableError("layers 0:1 of tiny are missing: a (0:1) no room")
    assert isinstance(attempts.gave_up(missing), OverloadedError)


def test_no_ring_left_says_each_reason_once() -> None:
    attempts = Attempts(CLIENT)
    attempts.failed(plan("a", "b"), PeerUnavailableError("refused", "a"), A)
    attempts.failed(plan("c", "b"), RemoteProtocolError("nonsense", "c"), C)
    missing = PeerUnavailableError("layers 0:1 of tiny are missing: a (0:1) refused")
    assert attempts.gave_up(missing).message == (
        "layers 0:1 of tiny are missing: a (0:1) refused "
        "(before that another ring was tried: stage 1 of 2 (layers 0:1, peer c): nonsense)"
    )


def test_the_first_ring_that_is_missing_is_just_that() -> None:
    missing = PeerUnavailableError("layers 0:1 of tiny are missing")
    assert Attempts(CLIENT).gave_up(missing) is missing
