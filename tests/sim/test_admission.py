"""Whoever is not admitted any more is cut off within a bound, and whoever is again is not."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import cast

import pytest
import trio
import trio.testing

from shardp2p.errors import ConfigError, PeerUnavailableError, ShardError
from shardp2p.host.host import Host
from shardp2p.identity.membership import Membership, revocation_statement
from shardp2p.identity.revocation import sign_revocation
from shardp2p.identity.token import Invite, TurnedAwayError
from shardp2p.swarm.admission import Admission, watch_membership
from shardp2p.swarm.gossip_service import GossipService
from shardp2p.swarm.shared_values import REVOCATIONS
from shardp2p.vocabulary import PeerId
from tests.support.members import OWNER, invite, membership, peer

BOUND_S = 2.0
CLOSING_S = 30.0
"""A peer that drags out the end of its connection."""


class FakeHost:
    """Connections that take long to close, and when each began to."""

    def __init__(self) -> None:
        self.connected: list[PeerId] = []
        self.cut_at: dict[PeerId, float] = {}
        self.dialled: list[PeerId] = []
        self.failures: dict[PeerId, ShardError] = {}

    def connected_peers(self) -> tuple[PeerId, ...]:
        return tuple(self.connected)

    async def connect(self, to: PeerId, addresses: Sequence[str]) -> None:
        self.dialled.append(to)
        raise self.failures[to]

    async def disconnect(self, of: PeerId) -> None:
        self.cut_at.setdefault(of, trio.current_time())
        await trio.sleep(CLOSING_S)


class FakeGossip:
    """What was heard, and who is believed."""

    def __init__(self) -> None:
        self.statements: list[bytes] = []
        self.is_out: set[PeerId] = set()

    def values(self, kind: int) -> tuple[bytes, ...]:
        return tuple(self.statements) if kind == REVOCATIONS else ()

    def share(self, kind: int, sealed: bytes) -> None:
        pass

    def shut_out(self, of: PeerId) -> None:
        self.is_out.add(of)

    def let_in(self, of: PeerId) -> None:
        self.is_out.discard(of)

    def recheck(self) -> None:
        pass


class World:
    """A member that watches, and its peers."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.now_s = time.time()
        self.known: Membership = membership(1, now_s=self.now_s)
        self.host, self.gossip, self.refused = FakeHost(), FakeGossip(), trio.Event()
        host, gossip = cast(Host, self.host), cast(GossipService, self.gossip)
        nursery.start_soon(watch_membership, self.known, None, gossip, host, self.refused)

    def connect(self, number: int, of: Invite | None = None) -> PeerId:
        made = of or invite(self.now_s)
        self.known.admit(made.claim(peer(number), self.now_s), peer(number).peer_id, self.now_s)
        self.host.connected.append(peer(number).peer_id)
        return peer(number).peer_id

    def hear_revoked(self, number: int) -> float:
        """The owner revoked that peer, which is heard now."""
        sealed = sign_revocation(OWNER, "peer", peer(number).public_bytes, self.now_s)
        self.gossip.statements.append(revocation_statement(sealed))
        return trio.current_time()


@pytest.mark.parametrize("phase_s", [0.0, 0.3, 0.999])
async def test_the_revoked_are_cut_within_the_bound_though_their_connections_close_slowly(
    autojump_clock: trio.testing.MockClock, phase_s: float
) -> None:
    async with trio.open_nursery() as nursery:
        world = World(nursery)
        peers = {number: world.connect(number) for number in range(2, 12)}
        await trio.sleep(5 + phase_s)
        heard_at = {number: world.hear_revoked(number) for number in range(2, 7)}
        await trio.sleep(0.5)
        heard_at[7] = world.hear_revoked(7)  # while the others are on their way out
        await trio.sleep(10)
        assert set(world.host.cut_at) == world.gossip.is_out == {peers[number] for number in heard_at}
        assert all(world.host.cut_at[peers[number]] - at <= BOUND_S for number, at in heard_at.items())
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("after_s", [0.05, 0.2, 0.3, 0.6])
async def test_who_shook_hands_before_it_was_heard_is_cut_within_the_bound_of_connecting(
    autojump_clock: trio.testing.MockClock, after_s: float
) -> None:
    async with trio.open_nursery() as nursery:
        world = World(nursery)
        world.connect(3)
        admitted = invite(world.now_s).claim(peer(2), world.now_s)
        world.known.admit(admitted, peer(2).peer_id, world.now_s)
        await trio.sleep(4.99)
        world.hear_revoked(2)
        world.hear_revoked(3)
        await trio.sleep(after_s)
        world.host.connected.append(peer(2).peer_id)
        connected_at = trio.current_time()
        await trio.sleep(10)
        assert world.host.cut_at.get(peer(2).peer_id, math.inf) - connected_at <= BOUND_S
        nursery.cancel_scope.cancel()


async def test_who_comes_back_by_a_later_invite_in_time_is_not_cut(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        world = World(nursery)
        world.connect(2)
        await trio.sleep(4.9)
        world.hear_revoked(2)
        await trio.sleep(0.2)  # the goodbye is under way
        later = invite(world.now_s + 60, key=7)
        world.known.admit(later.claim(peer(2), world.now_s + 60), peer(2).peer_id, world.now_s)
        await trio.sleep(10)
        assert world.host.cut_at == {}
        assert world.gossip.is_out == set()
        nursery.cancel_scope.cancel()


async def test_our_own_revocation_is_told(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        world = World(nursery)
        await trio.sleep(3)
        assert not world.refused.is_set()
        world.hear_revoked(1)
        with trio.fail_after(BOUND_S):
            await world.refused.wait()
        nursery.cancel_scope.cancel()


async def test_a_peer_that_shut_us_out_is_told_from_one_that_died(autojump_clock: trio.testing.MockClock) -> None:
    host, here, away, dead = FakeHost(), PeerId("here"), PeerId("away"), PeerId("dead")
    host.connected = [here]
    host.failures = {away: TurnedAwayError("no", "revoked"), dead: PeerUnavailableError("gone")}
    admission = Admission(cast(Host, host), "home", membership(1, now_s=time.time()))
    await admission.check(here)
    await admission.check(dead)
    with pytest.raises(ConfigError, match=r"the swarm home admits this peer no more \(revoked\)"):
        await admission.check(away)
    assert host.dialled == [dead, away]
    await Admission(cast(Host, host), "open", None).check(away)


async def test_whoever_heard_of_its_revocation_asks_nobody(autojump_clock: trio.testing.MockClock) -> None:
    known, now_s = membership(1, now_s=time.time()), time.time()
    known.receive(revocation_statement(sign_revocation(OWNER, "peer", peer(1).public_bytes, now_s)), now_s)
    with pytest.raises(ConfigError, match="revoked"):
        await Admission(cast(Host, FakeHost()), "home", known).check(PeerId("lost"))
