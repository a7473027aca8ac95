"""What befalls a member of a private swarm: it is revoked and let in again, its disk fails, its address changes."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import trio

import shardp2p.member
from shardp2p.errors import ConfigError, LocalProtocolError, ShardError
from shardp2p.identity import joined
from shardp2p.identity.joined import JoinedSwarms
from shardp2p.identity.owned import OwnedSwarm, OwnedSwarms
from shardp2p.identity.token import Invite
from shardp2p.keeper import Keeper, Offer
from shardp2p.member import Member, open_member
from shardp2p.runtime.budget import Budget
from shardp2p.runtime.device import DeviceThread
from shardp2p.seating import Offered
from shardp2p.swarm.publisher import Coverage
from shardp2p.swarm.roll import Roll
from shardp2p.weights.footprint import footprint
from shardp2p.weights.store import ModelStore
from tests.support.gossip_parts import HELD, Voice
from tests.support.members import peer
from tests.support.models import tiny_llama

LISTEN = ("/ip4/127.0.0.1/tcp/0",)
WITHIN_S = 30.0


class Swarm:
    """An owner's swarm; each peer has a directory of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.owned: OwnedSwarm = OwnedSwarms(root / "owner").create("lab", is_open=False)
        self.invite = self.owned.invite(time.time() - 10, 3600)

    def kept(self, number: int) -> JoinedSwarms:
        return JoinedSwarms(self.root / str(number))

    def member(self, number: int, *peers: str, invite: Invite | None = None) -> AbstractAsyncContextManager[Member]:
        kept = self.kept(number)
        place = kept.join(invite or self.invite, peer(number), time.time())
        return open_member(peer(number), place, LISTEN, peers=peers, kept=kept)

    def revoke(self, number: int, by: int) -> None:
        self.owned.revoke(peer(number).peer_id, time.time(), self.kept(by))


async def wait_until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(WITHIN_S):
        while not condition():
            await trio.sleep(0.05)


async def test_a_revoked_peer_hears_it_and_is_seen_again_by_a_later_invite(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    async with swarm.member(1) as one:
        async with swarm.member(2, *one.node.addresses()) as two:
            await wait_until(lambda: len(one.live()) == 2)
            swarm.revoke(2, by=1)
            await wait_until(lambda: len(one.live()) == 1)
            await wait_until(two.admission.refused.is_set)
        later = swarm.owned.invite(time.time() + 1, 3600)
        async with swarm.member(2, *one.node.addresses(), invite=later) as two:
            await wait_until(lambda: len(one.live()) == 2)
            await wait_until(lambda: len(two.live()) == 2)


async def test_layers_that_a_client_claims_are_seen_by_nobody(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    client_invite = swarm.owned.invite(time.time() - 10, 3600, role="client")
    async with (
        swarm.member(1) as one,
        swarm.member(2, *one.node.addresses()) as two,
        swarm.member(3, *one.node.addresses(), invite=client_invite) as client,
    ):
        await wait_until(lambda: len(one.live()) == len(two.live()) == 3)  # without layers it may be seen
        client.say(Coverage("serving", client.node.addresses(), memory_bytes=2**30, held=(HELD,)))
        await wait_until(lambda: len(one.live()) == len(two.live()) == 2)
        assert one.gossip.strikes.score(client.peer_id, trio.current_time()) > 0
        with pytest.raises(ShardError, match="claims layers, which a client may not hold"):
            await two.ask(client.peer_id, client.node.addresses())
        offer = Offer((), Budget(2**30, 64), "float32", "cpu")
        with pytest.raises(LocalProtocolError, match="is a client of lab"):
            Keeper(client, offer)


async def test_invented_peers_are_seen_by_nobody_and_an_invite_takes_its_members_along(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    leaked = swarm.owned.invite(time.time() - 10, 3600)
    async with (
        swarm.member(1) as one,
        swarm.member(2, *one.node.addresses()) as two,
        swarm.member(3, *one.node.addresses(), invite=leaked) as liar,
    ):
        await wait_until(lambda: len(one.live()) == len(two.live()) == 3)
        machine, now = liar.gossip._gossip, trio.current_time()
        machine.view.roll = Roll()  # it believes itself
        for number in range(100, 120):
            voice = Voice(number, swarm=one.swarm, lifetime_s=600.0)
            machine.view.learn(voice.news(), now)
            for exchange in machine._neighbours.values():
                exchange.tell(voice.short, now, is_urgent=True)
        assert len(liar.live()) == 23
        liar.say(Coverage("draining"))
        await wait_until(lambda: any(record.state == "draining" for record in two.live()))
        await trio.sleep(1.0)
        assert len(one.live()) == len(two.live()) == 3
        swarm.owned.revoke(leaked.grant.invite_id, time.time(), swarm.kept(1))
        await wait_until(lambda: len(one.live()) == len(two.live()) == 2)


async def test_a_peer_that_ends_while_it_loads_says_goodbye_and_waits_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = ModelStore(tmp_path / "models").import_model(tiny_llama(tmp_path / "tiny", layers=2))
    offered = Offered(stored, footprint(stored.manifest, "float32", ties_embeddings=True))
    loading, release = threading.Event(), threading.Event()

    def load_for_ever(*_: object, **__: object) -> None:
        loading.set()
        release.wait()

    monkeypatch.setattr("shardp2p.runtime.bring_up.bring_up", load_for_ever)
    swarm, device = Swarm(tmp_path), DeviceThread()

    async def get_device() -> DeviceThread:
        return device

    try:
        async with swarm.member(1) as one, swarm.member(2, *one.node.addresses()) as two:
            keeper = Keeper(two, Offer((offered,), Budget(2**30, 64), "float32", "cpu"))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(keeper.run, get_device)
                await trio.to_thread.run_sync(loading.wait, abandon_on_cancel=True)
                await wait_until(lambda: [record.state for record in one.live()].count("loading") == 1)
                nursery.cancel_scope.cancel()
            device.close()
            assert not release.is_set()
            await wait_until(lambda: len(one.live()) == 1)
    finally:
        release.set()


async def test_a_disk_that_fails_ends_no_membership(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swarm = Swarm(tmp_path)
    async with swarm.member(1) as one, swarm.member(2, *one.node.addresses()) as two:
        await wait_until(lambda: len(two.live()) == 2)
        swarm.revoke(3, by=1)

        def fail(*_: object) -> None:
            raise ConfigError(f"cannot write it: {os.strerror(errno.ENOSPC)}")

        monkeypatch.setattr(joined, "append_lines", fail)
        await wait_until(lambda: len(two.gossip.values(1)) == 1)
        await trio.sleep(1.5)  # longer than two looks at what is to be kept
        assert len(one.live()) == len(two.live()) == 2


async def test_peers_find_each_other_where_no_token_names_an_address_that_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shardp2p.member, "MET_S", 0.2)
    swarm = Swarm(tmp_path)
    async with swarm.member(1) as one:
        first = one.node.addresses()
        async with swarm.member(2, *first) as two, swarm.member(3, *first) as three:
            for member in (one, two, three):
                member.say(Coverage(addresses=member.node.addresses()))
            await wait_until(lambda: len(one.live()) == len(two.live()) == len(three.live()) == 3)
            await wait_until(lambda: len(swarm.kept(1).met(one.swarm)) == 2)
            await wait_until(lambda: len(swarm.kept(2).met(one.swarm)) == 2)
    # All went. 3 is where 1 met it last, and no token says so.
    async with swarm.member(3) as three:
        swarm.kept(1).keep_met(three.swarm, three.node.addresses())
        async with swarm.member(1) as one:
            await wait_until(lambda: len(one.live()) == len(three.live()) == 2)
