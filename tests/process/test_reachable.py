"""How a peer learns that others reach it: real hosts on loopback, with interfaces and a router that are made up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from ipaddress import ip_address

import pytest
import trio

from shardp2p.errors import ConfigError, PeerUnavailableError
from shardp2p.host import upnp
from shardp2p.host.announcing import Interface, Standing
from shardp2p.host.host import Host, open_host
from shardp2p.host.upnp import Router, UpnpError
from shardp2p.identity.keys import Identity
from shardp2p.node import Node
from shardp2p.swarm.reachable import Reachable
from shardp2p.vocabulary import SwarmId
from shardp2p.wire.protocols import SWARM
from shardp2p.wire.records import CoverageRecord
from shardp2p.wire.stream import Stream

ANYWHERE = ["/ip4/0.0.0.0/tcp/0"]
LO = Interface("lo", ip_address("127.0.0.1"), 8)
WLAN = Interface("wlan0", ip_address("192.168.1.5"), 24)
DOCKER = (Interface("docker0", ip_address("172.17.0.1"), 16), Interface("veth0a1b2c3", ip_address("169.254.3.3"), 16))


class FakeRouter:
    def __init__(self) -> None:
        self.ports: dict[int, int] = {}

    def find(self) -> str:
        return "45.45.0.7"

    def map_port(self, external: int, internal: int, lease_s: int) -> None:
        self.ports[external] = internal

    def unmap_port(self, external: int) -> None:
        del self.ports[external]


class AbsentRouter(FakeRouter):
    def find(self) -> str:
        raise UpnpError(upnp.NO_ROUTER)


def record(host: Host, addresses: Sequence[str] = ()) -> CoverageRecord:
    """What a peer says of itself; by default, that it can be dialled on this machine alone."""
    told = tuple(addresses) or tuple(a for a in host.listen_addresses() if "/127.0.0.1/" in a)
    return CoverageRecord(SwarmId("swarm"), host.peer_id, 1, 1.0, 60.0, "joining", told)


@asynccontextmanager
async def open_hosts(count: int, listen: Sequence[str] = ANYWHERE) -> AsyncIterator[list[Host]]:
    async with AsyncExitStack() as stack:
        hosts = [await stack.enter_async_context(open_host(Identity.generate(), listen)) for _ in range(count)]
        for host in hosts[1:]:
            Node(host)
        yield hosts


def reachable(
    hosts: Sequence[Host],
    interfaces: Callable[[], Sequence[Interface]] = lambda: (LO, WLAN, *DOCKER),
    router: Callable[[], Router] | None = None,
    declared: Sequence[str] = (),
) -> Reachable:
    """That of the first host; it may ask the others."""
    return Reachable(
        hosts[0], lambda: [record(host) for host in hosts], declared=declared, interfaces=interfaces, router=router
    )


async def wait_until(reach: Reachable, holds: Callable[[], bool]) -> None:
    with trio.fail_after(30):
        seen = reach.changes
        while not holds():
            seen = await reach.wait_change(seen)


async def test_a_peer_that_others_reach_says_so() -> None:
    async with open_hosts(3) as hosts, trio.open_nursery() as nursery:
        reach = reachable(hosts)
        assert reach.verdict == "unknown"
        nursery.start_soon(reach.run)
        await wait_until(reach, lambda: reach.verdict == "public")
        port = hosts[0].listen_endpoints()[0][1]
        assert reach.account.tried == (f"127.0.0.1:{port}: reached by 1 peer",)  # of one place
        assert reach.status()["advice"] == ""
        nursery.cancel_scope.cancel()


async def test_a_peer_that_others_reach_over_ipv6_says_so() -> None:
    interfaces = (Interface("lo", ip_address("::1"), 128), Interface("wlan0", ip_address("fd00:1::5"), 64))
    async with open_hosts(2, ["/ip6/::/tcp/0"]) as hosts, trio.open_nursery() as nursery:
        port, other = (host.listen_endpoints()[0][1] for host in hosts)
        told = record(hosts[1], [f"/ip6/::1/tcp/{other}"])
        reach = Reachable(hosts[0], lambda: [told], interfaces=lambda: interfaces, router=None)
        assert hosts[0].addresses() == (f"/ip6/fd00:1::5/tcp/{port}/p2p/{hosts[0].peer_id}",)
        nursery.start_soon(reach.run)
        await wait_until(reach, lambda: reach.verdict == "public")
        assert reach.account.tried == (f"[::1]:{port}: reached by 1 peer",)
        nursery.cancel_scope.cancel()


async def test_a_peer_whose_port_is_closed_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_hosts(2) as hosts, trio.open_nursery() as nursery:
        # The port that it thinks it listens on leads to another peer, as one that a router forwards elsewhere.
        monkeypatch.setattr(hosts[0], "listen_endpoints", lambda: (("0.0.0.0", hosts[1].listen_endpoints()[0][1]),))
        reach = reachable(hosts)
        nursery.start_soon(reach.run)
        await wait_until(reach, lambda: reach.verdict == "unreachable")
        assert "something else answered" in reach.account.tried[0]
        assert "--listen" in reach.account.advice
        assert reach.wants_relay
        reach.set_circuits([f"/ip4/45.45.0.9/tcp/1/p2p/{hosts[1].peer_id}/p2p-circuit"])
        assert reach.verdict == "relayed"
        assert any("p2p-circuit" in address for address in hosts[0].addresses())
        nursery.cancel_scope.cancel()


async def test_containers_leave_no_trace_in_what_is_announced() -> None:
    async with open_hosts(1) as hosts:
        reach = reachable(hosts)
        port = hosts[0].listen_endpoints()[0][1]
        assert hosts[0].addresses() == (f"/ip4/192.168.1.5/tcp/{port}/p2p/{hosts[0].peer_id}",)
        assert [str(network) for network in reach.standing.networks] == ["192.168.1.0/24"]


async def test_an_address_that_changes_is_announced_within_seconds() -> None:
    interfaces = [LO, WLAN]
    async with open_hosts(1) as hosts, trio.open_nursery() as nursery:
        reach = reachable(hosts, lambda: tuple(interfaces))
        nursery.start_soon(reach.run)
        await wait_until(reach, lambda: "/192.168.1.5/" in hosts[0].addresses()[0])
        interfaces[1] = Interface("wlan0", ip_address("10.0.0.9"), 8)
        await wait_until(reach, lambda: "/10.0.0.9/" in hosts[0].addresses()[0])
        nursery.cancel_scope.cancel()


async def test_a_port_of_the_router_is_announced_and_given_back() -> None:
    router = FakeRouter()
    async with open_hosts(1) as hosts:
        port = hosts[0].listen_endpoints()[0][1]
        async with trio.open_nursery() as nursery:
            reach = reachable(hosts, router=lambda: router)
            nursery.start_soon(reach.run)
            await wait_until(reach, lambda: f"/45.45.0.7/tcp/{port}/" in hosts[0].addresses()[0])
            assert router.ports == {port: port}
            assert "sends port" in reach.status()["upnp"]
            nursery.cancel_scope.cancel()
        assert router.ports == {}


async def test_without_a_router_that_speaks_upnp_nothing_is_lost() -> None:
    async with open_hosts(2) as hosts, trio.open_nursery() as nursery:
        reach = reachable(hosts, router=AbsentRouter)
        nursery.start_soon(reach.run)
        await wait_until(reach, lambda: reach.verdict == "public")
        await wait_until(reach, lambda: reach.status()["upnp"] == upnp.NO_ROUTER)
        nursery.cancel_scope.cancel()


async def test_on_loopback_nobody_is_asked_and_nothing_changes() -> None:
    async def refuse(stream: Stream) -> None:
        raise AssertionError("asked on loopback")

    async with open_hosts(2, ["/ip4/127.0.0.1/tcp/0"]) as hosts, trio.open_nursery() as nursery:
        hosts[1].serve(SWARM, refuse)
        reach = reachable(hosts, router=FakeRouter)
        nursery.start_soon(reach.run)
        await trio.sleep(0.2)
        assert hosts[0].addresses() == hosts[0].listen_addresses()
        assert reach.status()["upnp"] is None
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        (["/ip4/0.0.0.0/tcp/4001"], "can be dialled from nowhere"),
        (["/ip4/45.45.0.7/tcp/0"], "has no port"),
        ([f"/ip4/45.45.0.7/tcp/1/p2p/{Identity.generate().peer_id}"], "is another peer's"),
        (["45.45.0.7:4001"], "write it like"),
        ([f"/ip4/45.45.0.{n}/tcp/1" for n in range(4)], "3 addresses are enough"),
    ],
)
async def test_a_declared_address_that_cannot_work_is_refused(declared: list[str], why: str) -> None:
    async with open_hosts(1) as hosts:
        with pytest.raises(ConfigError, match=why):
            reachable(hosts, declared=declared)


async def test_what_the_user_declares_is_announced_first() -> None:
    async with open_hosts(1) as hosts:
        reachable(hosts, declared=["/dns4/home.example.org/tcp/4001"])
        assert hosts[0].addresses()[0] == f"/dns4/home.example.org/tcp/4001/p2p/{hosts[0].peer_id}"


async def test_what_the_user_declares_is_told_no_more_once_others_fail_there() -> None:
    async with open_hosts(2) as hosts, trio.open_nursery() as nursery:
        port = hosts[1].listen_endpoints()[0][1]  # another machine's, as after a mistake in the router
        reach = reachable(hosts, declared=[f"/dns4/localhost/tcp/{port}", f"/ip4/127.0.0.1/tcp/{port}"])
        assert sum(f"/tcp/{port}/" in address for address in hosts[0].addresses()) == 2
        nursery.start_soon(reach.run)
        await wait_until(reach, lambda: len(reach.account.withheld) == 2)
        assert not any(f"/tcp/{port}/" in address for address in hosts[0].addresses())
        assert reach.verdict == "public"  # at the port where it listens
        assert reach.status()["withheld"] == [f"localhost:{port}", f"127.0.0.1:{port}"]
        assert "check that the router forwards the port" in reach.status()["advice"]
        nursery.cancel_scope.cancel()


async def test_addresses_of_another_home_are_not_dialled() -> None:
    async with open_hosts(2) as (ours, other):
        ours.standing = Standing(frozenset({ip_address("45.45.0.8")}), (WLAN.network,))
        with pytest.raises(PeerUnavailableError, match="is in another network and tells only addresses inside that"):
            await ours.open_stream(other.peer_id, SWARM, ["/ip4/192.168.1.9/tcp/4001", "/ip4/45.45.0.7/tcp/0"])
