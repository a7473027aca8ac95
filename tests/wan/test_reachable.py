"""How a peer behind a router of each kind sees itself, and what it tells others: real peers in namespaces."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import pytest
import trio

from shardp2p.lab.network.catalog import read_network
from shardp2p.lab.network.lab import LabHost, open_network

PATIENCE_S = 300.0
"""For a machine that is busy with other things: each peer is a process that imports a good deal."""
PORT = 4001


async def start_observer(host: LabHost) -> str:
    """The address of a peer that dials back."""
    child = await host.start([sys.executable, "-m", "tests.wan.reach_peer", "wait"])
    return f"/ip4/{host.address}/tcp/{PORT}/p2p/{json.loads(await child.read_line())}"


async def reach(host: LabHost, observers: Sequence[str] = ()) -> dict[str, Any]:
    """What a peer there finds out with these observers."""
    child = await host.start([sys.executable, "-m", "tests.wan.reach_peer", *observers])
    await child.read_line()
    told: dict[str, Any] = json.loads(await child.read_line())
    return told


async def test_who_can_be_dialled_knows_it_and_who_cannot_tells_no_dead_address() -> None:
    names = ("open", "cone", "symmetric", "firewall")
    found: dict[str, dict[str, Any]] = {}
    with trio.fail_after(PATIENCE_S):
        async with open_network(read_network("nat-kinds")) as network:
            observers = [await start_observer(network.hosts[name]) for name in ("relay", "relay2")]

            async def find(name: str) -> None:
                found[name] = await reach(network.hosts[name], observers)

            async with trio.open_nursery() as nursery:
                for name in names:
                    nursery.start_soon(find, name)
            public = {name: network.public_address(name) for name in names}
            own = {name: network.hosts[name].address for name in names}
    assert {name: told["verdict"] for name, told in found.items()} == {
        "open": "public", "cone": "unreachable", "symmetric": "unreachable", "firewall": "unreachable",
    }  # fmt: skip
    assert found["open"]["addresses"] == [f"/ip4/{own['open']}/tcp/{PORT}"]
    assert found["firewall"]["addresses"] == [f"/ip4/{own['firewall']}/tcp/0"]
    for name in ("cone", "symmetric"):
        assert found[name]["addresses"] == [f"/ip4/{own[name]}/tcp/{PORT}", f"/ip4/{public[name]}/tcp/0"]


async def test_a_docker_bridge_leaves_no_trace() -> None:
    with trio.fail_after(PATIENCE_S):
        async with open_network(read_network("one-home")) as network:
            shelf = network.hosts["shelf"]
            assert "172.17.0.1/16" in await shelf.run(["ip", "-brief", "address"])
            assert (await reach(shelf))["addresses"] == [f"/ip4/{shelf.address}/tcp/{PORT}"]


@pytest.mark.usefixtures("miniupnpd")
async def test_a_port_that_the_router_gives_makes_a_peer_public() -> None:
    with trio.fail_after(PATIENCE_S):
        async with open_network(read_network("upnp-home")) as network:
            observer = await start_observer(network.hosts["relay"])
            told = await reach(network.hosts["alice"], [observer])
            router = network.routers["home-a"].address
    assert told["verdict"] == "public"
    assert told["addresses"][0] == f"/ip4/{router}/tcp/{PORT}"
    assert f"sends port {PORT} of {router}" in told["upnp"]
