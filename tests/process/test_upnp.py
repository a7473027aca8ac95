"""A port of the router: a router of our own in place of a real one, threads included."""

from __future__ import annotations

import threading

import pytest
import trio

from shardp2p.host import upnp
from shardp2p.host.upnp import PortMapping, UpnpError, UpnpState


class FakeRouter:
    """Gives out ports, less those in `taken`; with `lends_for_ever` it knows no leases."""

    def __init__(self, host: str = "45.45.0.7", *, taken: frozenset[int] = frozenset(), lends_for_ever: bool = False):
        self.host = host
        self.ports: dict[int, int] = {}
        self.leases: list[int] = []
        self._taken = taken
        self._lends_for_ever = lends_for_ever

    def find(self) -> str:
        return self.host

    def map_port(self, external: int, internal: int, lease_s: int) -> None:
        if external in self._taken or (self._lends_for_ever and lease_s):
            raise UpnpError(f"the router gives no port {external} (ConflictInMappingEntry)")
        self.ports[external] = internal
        self.leases.append(lease_s)

    def unmap_port(self, external: int) -> None:
        del self.ports[external]


class AbsentRouter(FakeRouter):
    def find(self) -> str:
        raise UpnpError(upnp.NO_ROUTER)


class HangingRouter(FakeRouter):
    def __init__(self) -> None:
        super().__init__()
        self.goes_on = threading.Event()

    def find(self) -> str:
        self.goes_on.wait(10.0)
        return self.host


async def test_a_port_is_kept_and_given_back() -> None:
    router, changed = FakeRouter(), trio.Event()
    mapping = PortMapping(4001, router, changed.set)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(mapping.run)
        with trio.fail_after(10):
            await changed.wait()
        assert mapping.state == UpnpState("mapped", "45.45.0.7", 4001)
        assert (router.ports, router.leases) == ({4001: 4001}, [upnp.LEASE_S])
        nursery.cancel_scope.cancel()
    assert router.ports == {}


async def test_a_port_that_another_machine_has_is_replaced_by_the_next() -> None:
    router = FakeRouter(taken=frozenset({4001, 4002}))
    assert await PortMapping(4001, router).look() == UpnpState("mapped", "45.45.0.7", 4003)
    assert router.ports == {4003: 4001}


async def test_a_router_that_knows_no_leases_lends_for_ever() -> None:
    router = FakeRouter(lends_for_ever=True)
    assert (await PortMapping(4001, router).look()).port == 4001
    assert router.leases == [0]


async def test_a_router_that_refuses_says_why() -> None:
    state = await PortMapping(4001, FakeRouter(taken=frozenset(range(2**16)))).look()
    assert (state.state, str(state)) == ("refused", "the router gives no port 4001 (ConflictInMappingEntry)")


@pytest.mark.parametrize("host", ["192.168.178.20", "100.64.0.9", "10.0.0.1"])
async def test_a_router_behind_another_is_of_no_use(host: str) -> None:
    router = FakeRouter(host)
    state = await PortMapping(4001, router).look()
    assert (state.state, router.ports) == ("private", {})
    assert f"its address outside is {host}" in str(state)


async def test_no_router_is_no_error() -> None:
    assert await PortMapping(4001, AbsentRouter()).look() == UpnpState("none", reason=upnp.NO_ROUTER)
    assert (await PortMapping(4001, FakeRouter("")).look()).state == "none"


async def test_a_router_that_hangs_is_given_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upnp, "FIND_S", 0.05)
    router = HangingRouter()
    state = await PortMapping(4001, router).look()
    assert (state.state, "no answer within" in state.reason) == ("none", True)
    router.goes_on.set()
