"""Hosts on loopback of which some can only be reached over a relay."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from shardp2p.config import RelayLimits
from shardp2p.host.circuit.candidates import Candidate
from shardp2p.host.circuit.service import HostCircuits, open_circuits
from shardp2p.host.host import Host, open_host
from shardp2p.identity.keys import Identity
from shardp2p.identity.membership import Membership
from shardp2p.vocabulary import PeerId
from shardp2p.wire.stream import Stream
from tests.process.host_peer import ECHO, echo

LOOPBACK = ["/ip4/127.0.0.1/tcp/0"]


@dataclass(frozen=True)
class Node:
    """A host that echoes, with its circuits."""

    host: Host
    circuits: HostCircuits

    @property
    def peer(self) -> PeerId:
        return self.host.peer_id

    def as_candidate(self, operator: str = "") -> Candidate:
        return Candidate(self.peer, self.host.listen_addresses(), operator)

    async def open_echo(self, target: Node) -> Stream:
        return await self.host.open_stream(target.peer, ECHO, target.circuits.addresses())


@asynccontextmanager
async def relay_node(
    limits: RelayLimits | None = None,
    *,
    membership: Membership | None = None,
    identity: Identity | None = None,
    listen: str = LOOPBACK[0],
) -> AsyncIterator[Node]:
    """A host that listens and relays."""
    async with (
        open_host(identity or Identity.generate(), [listen], membership=membership) as host,
        open_circuits(host, limits=limits or RelayLimits()) as circuits,
    ):
        yield Node(host, circuits)


@asynccontextmanager
async def hidden_node(
    *relays: Node, membership: Membership | None = None, identity: Identity | None = None
) -> AsyncIterator[Node]:
    """A host that does not listen; it has places at `relays`, at two of them at most, when it begins."""
    async with open_host(identity or Identity.generate(), membership=membership) as host:
        host.serve(ECHO, echo)
        async with open_circuits(host) as circuits:
            node = Node(host, circuits)
            if relays:
                circuits.set_candidates(relay.as_candidate(operator=relay.peer) for relay in relays)
                circuits.want(True)
                await wait_held(node, min(2, len(relays)))
            yield node


async def wait_held(node: Node, count: int) -> None:
    with trio.fail_after(10):
        while len(node.circuits.held()) != count:
            await node.circuits.wait_changed()
