"""Starts `punch_peer` on the hosts of a network, and brings two of them together over a relay."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import trio

from shardp2p.lab.children import Child
from shardp2p.lab.network.lab import LabHost, Network
from shardp2p.vocabulary import PeerId

PORT = 4001


@dataclass(frozen=True)
class PunchPeer:
    """One that runs."""

    peer: PeerId
    host: LabHost
    child: Child

    @property
    def address(self) -> str:
        """At which it listens, for what it can be reached from there."""
        return f"/ip4/{self.host.address}/tcp/{PORT}/p2p/{self.peer}"

    async def ask(self, do: str, **fields: str) -> Any:
        """What it answers to a command."""
        await self.child.write_line(json.dumps({"do": do, **fields}).encode())
        return json.loads(await self.child.read_line())


async def start(host: LabHost, *roles: str) -> PunchPeer:
    child = await host.start([sys.executable, "-m", "tests.wan.punch_peer", *roles])
    return PunchPeer(PeerId(json.loads(await child.read_line())), host, child)


async def start_all(network: Network, names: Mapping[str, tuple[str, ...]]) -> dict[str, PunchPeer]:
    """Peers on these hosts, with their roles."""
    peers: dict[str, PunchPeer] = {}

    async def start_one(name: str, roles: tuple[str, ...]) -> None:
        peers[name] = await start(network.hosts[name], *roles)

    async with trio.open_nursery() as nursery:
        for name, roles in names.items():
            nursery.start_soon(start_one, name, roles)
    return peers


async def meet_over(relay: PunchPeer, dialler: PunchPeer, dialled: PunchPeer) -> str:
    """`dialler` reaches `dialled` over `relay`, at the address that it gives; both know where it sees them."""
    address: str
    (address,) = await dialled.ask("reserve", address=relay.address)
    await dialled.ask("observe", address=relay.address)
    await dialler.ask("observe", address=relay.address)
    assert await dialler.ask("dial", address=address) == ["relayed"]
    with trio.fail_after(10):
        while await dialled.ask("paths", peer=dialler.peer) != ["relayed"]:
            await trio.sleep(0.05)
    return address
