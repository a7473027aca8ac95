"""Members of a private swarm over real connections: they reach one another until their time has come."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from shardp2p.errors import PeerUnavailableError
from shardp2p.host import security
from shardp2p.host.host import MAX_HANDSHAKES, Host, open_host
from shardp2p.identity.keys import Identity
from shardp2p.identity.membership import Membership, revocation_statement
from shardp2p.identity.revocation import sign_revocation
from shardp2p.identity.token import CLOCK_GRACE_S, Invite, TurnedAwayError
from shardp2p.wire.stream import Stream
from tests.support.members import DAY_S, OTHER_OWNER, OWNER, invite, membership, peer

ECHO = "/test/echo/1"
LOOPBACK = "/ip4/127.0.0.1/tcp/0"


async def echo(stream: Stream) -> None:
    while data := await stream.receive_some(1000):
        await stream.send_all(data)


@asynccontextmanager
async def member_host(number: int, of: Invite | None = None) -> AsyncIterator[tuple[Host, Membership]]:
    """A listening host of that peer, and its membership."""
    known = membership(number, of, time.time())
    async with open_host(peer(number), [LOOPBACK], membership=known) as host:
        host.serve(ECHO, echo)
        yield host, known


async def assert_reaches(client: Host, server: Host) -> Stream:
    stream = await client.open_stream(server.peer_id, ECHO, server.addresses())
    await stream.send_all(b"hello")
    assert await stream.receive_some(100) == b"hello"
    return stream


async def assert_refused(client: Host, server: Host, reason: str) -> None:
    """The dial fails for that reason, and no connection is left on either side."""
    with trio.fail_after(8), pytest.raises(PeerUnavailableError, match=reason):
        await client.open_stream(server.peer_id, ECHO, server.addresses())
    await wait_apart(server, client)
    await wait_apart(client, server)


async def wait_apart(one: Host, other: Host) -> None:
    with trio.fail_after(5):
        while other.peer_id in one.connected_peers():
            await trio.sleep(0.01)


async def test_members_by_one_invite_reach_each_other() -> None:
    bearer = invite(time.time())
    async with member_host(1, bearer) as (one, known), member_host(2, bearer) as (two, _):
        await assert_reaches(one, two)
        await assert_reaches(two, one)
        assert known.role(two.peer_id) == "member"
        assert known.ended(one.connected_peers(), time.time()) == ()


async def test_invite_bound_to_a_peer_and_the_role_of_a_client_hold() -> None:
    bound = invite(time.time(), bound_to=peer(2).peer_id, role="client", key=7)
    async with member_host(1) as (one, known), member_host(2, bound) as (two, _):
        await assert_reaches(two, one)
        assert known.role(two.peer_id) == "client"


async def test_invite_that_expires_within_the_grace_of_clocks_still_counts() -> None:
    late = invite(time.time() - DAY_S, DAY_S - CLOCK_GRACE_S / 2, key=7)
    async with member_host(1) as (one, _), member_host(2, late) as (two, _):
        await assert_reaches(two, one)


async def test_peer_of_another_swarm_is_told_so() -> None:
    async with member_host(1) as (one, _), member_host(2, invite(time.time(), owner=OTHER_OWNER)) as (two, _):
        await assert_refused(two, one, "does not admit us: the invite is one to another swarm")
        await assert_refused(one, two, "does not admit us: the invite is one to another swarm")


async def test_peer_whose_invite_has_expired_is_told_what_to_do() -> None:
    issued_at_s = time.time() - DAY_S
    old = Membership(invite(issued_at_s, 3600, key=7).claim(peer(2), issued_at_s))
    async with member_host(1) as (one, _), open_host(peer(2), [LOOPBACK], membership=old) as two:
        two.serve(ECHO, echo)
        await assert_refused(two, one, "does not admit us: the invite has expired; ask the swarm's owner")
        await assert_refused(one, two, "we do not admit it: the invite has expired|does not admit us")
        assert old.own_refusal(time.time()) == "expired"


async def test_proof_copied_by_another_peer_is_worth_nothing() -> None:
    stolen = membership(2, now_s=time.time())
    async with member_host(1) as (one, _), open_host(Identity.generate(), membership=stolen) as thief:
        await assert_refused(thief, one, "does not admit us: the proof of membership is wrong")


async def test_counted_invite_admits_no_more_peers_than_it_is_for() -> None:
    counted = invite(time.time(), uses=1, key=7)
    late = membership(3, counted, time.time() + 60)
    async with (
        member_host(1) as (one, _),
        member_host(2, counted) as (two, _),
        open_host(peer(3), [LOOPBACK], membership=late) as three,
    ):
        await assert_reaches(two, one)
        await assert_refused(three, one, "as many peers as the invite is for have used it")
        await assert_reaches(two, one)


@pytest.mark.parametrize("kind", ["invite", "peer"])
async def test_revoked_while_connected_is_disconnected_and_stays_out(kind: str) -> None:
    bearer = invite(time.time(), key=7)
    async with member_host(1) as (one, known), member_host(2, bearer) as (two, _):
        stream = await assert_reaches(two, one)
        now_s = time.time()
        if kind == "invite":
            sealed = sign_revocation(OWNER, "invite", bearer.grant.invite, now_s)
        else:
            sealed = sign_revocation(OWNER, "peer", peer(2).public_bytes, now_s)
        assert known.receive(revocation_statement(sealed), now_s)
        assert known.ended(one.connected_peers(), now_s) == ((two.peer_id, "revoked"),)
        await one.disconnect(two.peer_id)
        assert two.peer_id not in one.connected_peers()
        with trio.fail_after(5), pytest.raises(PeerUnavailableError):
            await stream.receive_some(1)
        await wait_apart(two, one)
        await assert_refused(two, one, "does not admit us: the swarm's owner revoked it; ask the owner")
        await assert_refused(one, two, "we do not admit it: the swarm's owner revoked it")
        with pytest.raises(TurnedAwayError) as turned:
            await two.open_stream(one.peer_id, ECHO, one.addresses())
        assert turned.value.refusal == "revoked"


async def test_invite_that_expires_while_connected_ends_the_connection() -> None:
    now_s = time.time()
    async with member_host(1) as (one, known), member_host(2, invite(now_s, 3600, key=7)) as (two, _):
        await assert_reaches(two, one)
        assert known.ended(one.connected_peers(), now_s + 3600 + CLOCK_GRACE_S - 1) == ()
        later_s = now_s + 3600 + CLOCK_GRACE_S + 1
        assert known.ended(one.connected_peers(), later_s) == ((two.peer_id, "expired"),)


async def test_disconnecting_a_peer_that_is_not_connected_does_nothing() -> None:
    async with member_host(1) as (one, _):
        await one.disconnect(peer(2).peer_id)


async def test_silent_provers_take_nobodys_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """They went through Noise and then prove nothing; more of them than there are places."""
    released = trio.Event()

    async def stay_silent(*_: object) -> None:
        await released.wait()

    monkeypatch.setattr(security, "PROOF_S", 1.0)
    async with member_host(1) as (one, _), trio.open_nursery() as nursery:
        for number in range(MAX_HANDSHAKES + 8):
            nursery.start_soon(silent_prover, one, 100 + number, stay_silent)
        await trio.sleep(0.5)
        async with member_host(2) as (two, _):
            await assert_reaches(two, one)
        with trio.fail_after(10):
            while one._handshakes:
                await trio.sleep(0.01)
        released.set()


async def silent_prover(server: Host, number: int, stay_silent: object) -> None:
    known = membership(number, now_s=time.time())
    async with open_host(peer(number), membership=known) as host:
        transport = host._swarm.upgrader.security_multistream.transports[security.MEMBER_NOISE]  # type: ignore[attr-defined,index]
        transport._within_time = stay_silent  # type: ignore[attr-defined]
        with pytest.raises(PeerUnavailableError):
            await host.open_stream(server.peer_id, ECHO, server.addresses())
