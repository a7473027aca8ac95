"""A port of the home router for us, by UPnP: found, kept, and given back at a clean end.

miniupnpc speaks to the router; its calls block, so each runs in a thread that is given up on when it takes too long.
Source: UPnP IGD, WANIPConnection:1, 2.4.16 and following.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from typing import Final, Literal, Protocol, TypeVar

import miniupnpc
import structlog
import trio

from shardp2p.host.ip_scopes import scope_of

T = TypeVar("T")

FIND_S: Final = 3.0
"""miniupnpc asks for one kind of device after the other, a second each, and goes on with the first that answers;
routers are the first two kinds."""
CALL_S: Final = 5.0
"""For one question to the router; miniupnpc itself gives up on a connection after 3 s."""
END_S: Final = 1.5
"""For giving the port back: a shutdown has three seconds in all."""
LEASE_S: Final = 3600
RENEW_S: Final = 1200.0
"""A router that was restarted has forgotten the port: so much later at most it is back."""
AGAIN_S: Final = (20.0, 300.0)
"""Before the second look, and before every later one, for a router that was not there or refused."""
MAX_OTHER_PORTS: Final = 3
"""Ports beside our own that are tried where the router has given ours to another machine."""
NO_ROUTER: Final = "no router answers to UPnP: there is none, or it is switched off there"
DESCRIPTION: Final = "shardp2p"

State = Literal["searching", "none", "refused", "mapped", "private"]

log = structlog.get_logger()


class UpnpError(Exception):
    """The router refused, or there is none; the text says which."""


@dataclass(frozen=True, slots=True)
class UpnpState:
    """How far we are: `host` is the router's own address outside, `port` the one that leads to us, 0 for none.

    `private` is a router behind another one: its address outside is not public, so that nobody can dial it.
    """

    state: State = "searching"
    host: str = ""
    port: int = 0
    reason: str = ""

    def __str__(self) -> str:
        match self.state:
            case "mapped":
                return f"the router sends port {self.port} of {self.host} to this machine"
            case "private":
                return (
                    f"the router itself is behind another one, or its carrier's: its address outside is {self.host}; "
                    "a port of it is of no use"
                )
            case "searching":
                return "looking for a router"
        return self.reason


class Router(Protocol):
    """A router that speaks UPnP. Every method blocks, and raises UpnpError."""

    def find(self) -> str:
        """Look for the router; its address outside, "" where it does not say."""
        ...

    def map_port(self, external: int, internal: int, lease_s: int) -> None:
        """Send what comes to a port of the router to a port of this machine."""
        ...

    def unmap_port(self, external: int) -> None:
        """Take that back."""
        ...


class MiniupnpRouter:
    """The router of this network, by miniupnpc."""

    def __init__(self) -> None:
        self._upnp = miniupnpc.UPnP()

    def find(self) -> str:
        """Look for the router by multicast. Raises: UpnpError."""
        try:
            self._upnp.discover()
        except Exception as error:
            if type(error) is not Exception:  # the only one that miniupnpc raises, also for "Success"
                raise
        _call(self._upnp.selectigd, NO_ROUTER)
        outside: str = _call(self._upnp.externalipaddress, "the router does not say its address outside")
        return outside or ""

    def map_port(self, external: int, internal: int, lease_s: int) -> None:
        """Raises: UpnpError."""
        add = partial(
            self._upnp.addportmapping, external, "TCP", self._upnp.lanaddr, internal, DESCRIPTION, "", lease_s
        )
        _call(add, f"the router gives no port {external}")

    def unmap_port(self, external: int) -> None:
        """Raises: UpnpError."""
        _call(partial(self._upnp.deleteportmapping, external, "TCP"), f"the router keeps port {external}")


def _call(do: Callable[[], T], failed: str) -> T:
    try:
        return do()
    except Exception as error:
        if type(error) is not Exception:  # the only one that miniupnpc raises
            raise
        raise UpnpError(f"{failed} ({error})") from error


class PortMapping:
    """Keeps a port of the router for one of ours, from `run` until it ends."""

    def __init__(self, port: int, router: Router, changed: Callable[[], None] = lambda: None) -> None:
        self.state = UpnpState()
        self._port = port
        self._router = router
        self._changed = changed
        self._mapped: int | None = None

    async def run(self) -> None:
        """Find the router, get the port and renew it until cancelled; then give it back."""
        try:
            for again_s in chain(AGAIN_S, repeat(AGAIN_S[-1])):
                self._become(await self.look())
                await trio.sleep(RENEW_S if self.state.state == "mapped" else again_s)
        finally:
            if self._mapped is not None:
                with trio.CancelScope(shield=True):
                    await self._give_back(self._mapped)

    async def look(self) -> UpnpState:
        """Find the router and get the port once. Without `run`, nobody gives it back but the end of its lease."""
        try:
            host = await _in_thread(self._router.find, FIND_S, NO_ROUTER)
        except UpnpError as error:
            return UpnpState("none", reason=str(error))
        try:
            is_public = scope_of(ipaddress.ip_address(host)) == "public"
        except ValueError:
            return UpnpState("none", reason="the router does not say its address outside: it may be offline")
        if not is_public:
            return UpnpState("private", host)
        try:
            return UpnpState("mapped", host, await self._map())
        except UpnpError as error:
            return UpnpState("refused", host, reason=str(error))

    async def _map(self) -> int:
        """Get our port, or one beside it that is free; for as long as the router lends it."""
        first = self._mapped or self._port
        beside = (port for step in range(1, MAX_OTHER_PORTS + 1) if (port := self._port + step) < 2**16)
        refused: UpnpError | None = None
        for external in dict.fromkeys((first, self._port, *beside)):
            for lease_s in (LEASE_S, 0):  # some routers lend for ever or not at all (error 725)
                try:
                    await _in_thread(partial(self._router.map_port, external, self._port, lease_s), CALL_S)
                except UpnpError as error:
                    refused = refused or error
                else:
                    self._mapped = external
                    return external
        assert refused is not None
        raise refused

    async def _give_back(self, external: int) -> None:
        try:
            await _in_thread(partial(self._router.unmap_port, external), END_S)
        except UpnpError as error:
            log.info("upnp_port_kept", reason=str(error))

    def _become(self, state: UpnpState) -> None:
        if state != self.state:
            log.info("upnp", state=state.state, reason=state.reason)
            self.state = state
            self._changed()


async def _in_thread(do: Callable[[], T], within_s: float, failed: str = "the router does not answer") -> T:
    """What `do` gives, in a thread. Raises: UpnpError, also when it takes longer."""
    try:
        with trio.fail_after(within_s):
            return await trio.to_thread.run_sync(do, abandon_on_cancel=True)
    except trio.TooSlowError:
        raise UpnpError(f"{failed} (no answer within {within_s:.0f} s)") from None
