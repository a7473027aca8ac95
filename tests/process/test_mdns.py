"""Finding peers on the same network, over multicast on the loopback interface."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import zeroconf

from shardp2p.host.address_book import Provider
from shardp2p.host.host import Host, open_host
from shardp2p.host.mdns import open_mdns
from shardp2p.identity.keys import Identity
from shardp2p.vocabulary import SwarmId

LOOPBACK = ["/ip4/127.0.0.1/tcp/0"]
ONLY_LOOPBACK = ["127.0.0.1"]
SWARM = SwarmId(Identity.from_seed(bytes(32)).peer_id)
ANOTHER = SwarmId(Identity.from_seed(bytes([1] * 32)).peer_id)


@asynccontextmanager
async def announced(swarm: SwarmId) -> AsyncIterator[tuple[Host, trio.MemoryReceiveChannel[Provider]]]:
    async with open_host(Identity.generate(), LOOPBACK) as host, open_mdns(host, swarm, ONLY_LOOPBACK) as found:
        if found is None:
            pytest.skip("this machine has no multicast on its loopback interface")
        yield host, found


async def first_of(found: trio.MemoryReceiveChannel[Provider]) -> Provider:
    with trio.move_on_after(10):
        return await found.receive()
    pytest.skip("multicast on the loopback interface does not come back here")


async def test_peers_of_one_swarm_find_each_other_and_no_stranger() -> None:
    async with announced(ANOTHER) as (_, strangers), announced(SWARM) as (one, ones), announced(SWARM) as (two, twos):
        by_one, by_two = await first_of(ones), await first_of(twos)
        assert by_one.peer_id == two.peer_id
        assert [f"{text}/p2p/{two.peer_id}" for text in by_one.addresses] == list(two.addresses())
        assert by_two.peer_id == one.peer_id
        with pytest.raises(trio.WouldBlock):
            strangers.receive_nowait()


async def test_a_host_that_only_dials_finds_others_and_is_not_found() -> None:
    async with (
        announced(SWARM) as (server, others),
        open_host(Identity.generate()) as client,
        open_mdns(client, SWARM, ONLY_LOOPBACK) as found,
    ):
        assert found is not None
        assert (await first_of(found)).peer_id == server.peer_id
        with pytest.raises(trio.WouldBlock):
            others.receive_nowait()


async def test_leaving_ends_every_thread() -> None:
    before = {thread for thread in threading.enumerate() if "zeroconf" in thread.name.lower()}
    async with announced(SWARM):
        pass
    after = {thread for thread in threading.enumerate() if "zeroconf" in thread.name.lower()}
    assert after <= before


async def test_where_multicast_is_not_permitted_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(zeroconf, "Zeroconf", refuse)
    async with open_host(Identity.generate(), LOOPBACK) as host, open_mdns(host, SWARM) as found:
        assert found is None
