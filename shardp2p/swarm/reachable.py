"""How others reach this peer: asks some of them to dial back, keeps a port of the router, and announces what works.

What follows from the answers: reachability.py; which addresses are told to whom: host/announcing.py.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import structlog
import trio

from shardp2p.errors import ConfigError, PeerUnavailableError, RemoteProtocolError
from shardp2p.host.addresses import Address, CircuitAddress, TcpAddress, parse_address
from shardp2p.host.announcing import (
    Interface,
    Situation,
    Standing,
    announced,
    dialable_from,
    is_alone,
    is_same_home,
    standing_of,
)
from shardp2p.host.host import Host
from shardp2p.host.interfaces import read_interfaces
from shardp2p.host.ip_scopes import place_of, scope_of
from shardp2p.host.upnp import MiniupnpRouter, PortMapping, Router
from shardp2p.swarm.declared import parse_declared
from shardp2p.swarm.dial_backs import DialBack, ask_dial_back
from shardp2p.swarm.observers import choose_observers
from shardp2p.swarm.reachability import ReachabilityMachine, Sighting
from shardp2p.swarm.reachability_account import Account, account_of
from shardp2p.vocabulary import PeerId
from shardp2p.wire.codec_swarm import MAX_DIAL_PORTS
from shardp2p.wire.records import CoverageRecord, Reachability

LOOK_S: Final = 2.0
"""How often addresses that changed are noticed, and peers to ask are looked for."""
ASKED_AT_ONCE: Final = 3
LOOK_UP_S: Final = 5.0
MAX_ASKED: Final = 64
"""Peers of which is remembered that they were asked."""

log = structlog.get_logger()


class Reachable:
    """One peer's. `run` is its lifetime; until it runs, the host announces where it listens."""

    def __init__(
        self,
        host: Host,
        live: Callable[[], Sequence[CoverageRecord]],
        *,
        declared: Sequence[str] = (),
        interfaces: Callable[[], Sequence[Interface]] = read_interfaces,
        router: Callable[[], Router] | None = MiniupnpRouter,
    ) -> None:
        """`live` gives the records of the peers that may be asked, and `declared` are addresses that the user knows to
        work. Without a `router` no UPnP is tried. Raises: ConfigError for a declared address that is no TCP address.
        """
        self._host = host
        self._live = live
        self._interfaces = interfaces
        self._router = router
        self._machine = ReachabilityMachine()
        self._mapping: PortMapping | None = None
        sockets = tuple(TcpAddress("ip6" if ":" in at else "ip4", at, port) for at, port in host.listen_endpoints())
        self._declared = parse_declared(declared, host.peer_id)
        addresses = tuple(one.address for one in self._declared)
        self._situation = Situation(sockets, tuple(interfaces()), declared=addresses)
        self._asked: dict[PeerId, None] = {}  # the longest ago first
        self._changes = 0
        self._changed = trio.Event()
        self._hurried = trio.Event()
        self._account = account_of(self._machine, self._declared)
        self._update()

    # What others see.

    @property
    def verdict(self) -> Reachability:
        """How others reach us."""
        return self._account.verdict

    @property
    def account(self) -> Account:
        """The same with what was tried and what to do."""
        return self._account

    @property
    def standing(self) -> Standing:
        """Where this machine stands, as far as it is known."""
        return standing_of(self._situation)

    @property
    def is_cut_off(self) -> bool:
        """Whether others tried to dial us, and nobody could."""
        return self._machine.is_cut_off

    @property
    def is_reached_here(self) -> bool:
        """Whether peers on this machine reach us, and it has no network on which others could."""
        return self._machine.is_alone and self._machine.is_reached

    @property
    def wants_relay(self) -> bool:
        """Whether to keep places at relays: one that no interface makes public does not wait until it is found out."""
        machine, interfaces = self._machine, self._situation.interfaces
        if machine.is_reached or machine.is_on_loopback:
            return False
        return machine.is_cut_off or not any(scope_of(one.address) == "public" for one in interfaces)

    @property
    def is_looking(self) -> bool:
        """Whether it is not known yet if the router gives us a port."""
        is_wanted = self._router is not None and self._port_to_map() is not None
        return is_wanted and (self._mapping is None or self._mapping.state.state == "searching")

    @property
    def changes(self) -> int:
        """How often anything of this changed: for `wait_change`."""
        return self._changes

    async def wait_change(self, seen: int) -> int:
        """The number of changes, once it is not `seen` any more."""
        while self._changes == seen:
            await self._changed.wait()
        return self._changes

    def status(self) -> dict[str, Any]:
        """What `shardp2p status --json` says of it."""
        account = self._account
        return {
            "verdict": account.verdict,
            "tried": list(account.tried),
            "advice": account.advice,
            "withheld": list(account.withheld),
            "seen_as": sorted(map(str, self._machine.seen_as)),
            "mapping": self._machine.mapping,
            "upnp": None if self._mapping is None else str(self._mapping.state),
        }

    # What others tell.

    def set_circuits(self, circuits: Sequence[str]) -> None:
        """The addresses of relays that keep a place for us now, as `…/p2p/RELAY/p2p-circuit`."""
        parsed = (parse_address(text) for text in circuits)
        kept = tuple(address for address in parsed if isinstance(address, CircuitAddress))
        self._situation = replace(self._situation, circuits=kept)
        self._machine.has_relay = bool(self._situation.circuits)
        self._update()

    def note_punched(self) -> None:
        """A hole in our router serves a connection."""
        if not self._machine.has_punched:
            self._machine.has_punched = True
            self._update()

    def sight(self, sighting: Sighting) -> None:
        """Somebody sees a connection of ours, of which we know the local port."""
        self._machine.sight(sighting, trio.current_time())
        self._update()

    # Running.

    async def run(self) -> None:
        """Keep everything up to date until cancelled; a port of the router is given back then."""
        async with trio.open_nursery() as nursery:
            if (port := self._port_to_map()) is not None and self._router is not None:
                self._mapping = PortMapping(port, self._router(), self._port_changed)
                nursery.start_soon(self._mapping.run)
            while True:
                if not self.standing.is_on_loopback:
                    self._look()
                if trio.current_time() >= self._machine.next_round_at:
                    await self._ask_round()
                self._hurried = trio.Event()
                with trio.move_on_after(LOOK_S):
                    await self._hurried.wait()

    def _port_to_map(self) -> int | None:
        """The port that a home router could send to us, None where there is none or the user said how we are reached.

        UPnP maps ports of IPv4 only: IPv6 needs none.
        """
        if self._situation.declared or self.standing.is_on_loopback:
            return None
        ours = [one.address for one in self._situation.interfaces if not one.is_of_containers]
        is_behind = any(ip.version == 4 and scope_of(ip) == "private" for ip in ours)
        ports = [socket.port for socket in self._situation.sockets if not socket.is_ipv6]
        return ports[0] if ports and is_behind else None

    def _port_changed(self) -> None:
        """The router gave us a port, or took it back: others are to try it."""
        self._machine.hurry()
        self._hurried.set()
        self._update()
        self._note_change()

    def _look(self) -> None:
        """Notice that our own addresses changed: what others said is about another place then."""
        interfaces = tuple(self._interfaces())
        if interfaces != self._situation.interfaces:
            log.info("addresses_changed")
            self._machine.reset()
            self._situation = replace(self._situation, interfaces=interfaces)
        self._machine.forget(trio.current_time())
        self._update()

    async def _ask_round(self) -> None:
        """Ask some peers at once; without anybody to ask, it is no round."""
        ports = self._ports()
        records = {record.peer_id: record for record in self._live() if record.peer_id != self._host.peer_id}
        peers = choose_observers(self._candidates(list(records.values())), self._asked, ASKED_AT_ONCE)
        if not ports or not peers:
            return
        reports: list[DialBack] = []

        async def ask(peer: PeerId) -> None:
            try:
                reports.append(await ask_dial_back(self._host, peer, records[peer].addresses, ports))
            except (PeerUnavailableError, RemoteProtocolError, ConfigError) as error:
                log.debug("dial_back_failed", peer=peer, reason=error.message)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look_up_declared)
            for peer in peers:
                self._note_asked(peer)
                nursery.start_soon(ask, peer)
        now = trio.current_time()
        for report in reports:
            self._note(report, now)
        self._machine.asked(now)
        self._update()

    async def _look_up_declared(self) -> None:
        """Find out where names lead that the user declared: what others fail to reach there is not told."""
        for at, one in enumerate(self._declared):
            if one.is_name and (hosts := await _look_up(one.address)):
                self._declared = (*self._declared[:at], one.leading_to(hosts), *self._declared[at + 1 :])

    def _candidates(self, records: Sequence[CoverageRecord]) -> list[tuple[PeerId, str, bool]]:
        """Who may be asked: connected directly or dialable, and not behind our own router."""
        standing = self.standing
        found = []
        for record in records:
            addresses = _parsed(record.addresses)
            if is_same_home(standing, addresses):
                continue
            paths = self._host.paths(record.peer_id)
            is_direct = bool(paths) and paths[0].is_direct
            straight = [at for at in dialable_from(standing, addresses) if isinstance(at, TcpAddress)]
            if is_direct or (straight and not paths):
                found.append((record.peer_id, place_of(straight[0].host) if straight else record.peer_id, is_direct))
        return found

    def _ports(self) -> tuple[int, ...]:
        """Where we hope to be reached: what the user declared, what the router maps, and where we listen."""
        situation, mapping = self._situation, self._mapping
        mapped = [mapping.state.port] if mapping is not None and mapping.state.state == "mapped" else []
        ports = [*(at.port for at in situation.declared), *mapped, *(at.port for at in situation.sockets)]
        return tuple(dict.fromkeys(port for port in ports if port))[:MAX_DIAL_PORTS]

    def _note_asked(self, peer: PeerId) -> None:
        self._asked.pop(peer, None)
        self._asked[peer] = None
        while len(self._asked) > MAX_ASKED:
            del self._asked[next(iter(self._asked))]

    def _note(self, report: DialBack, now: float) -> None:
        self._machine.report(report.observer_host, report.host, report.outcomes, now)
        if report.local_port is not None:
            sighting = Sighting(report.observer_host, report.local_port, report.host, report.port)
            self._machine.sight(sighting, now)

    def _update(self) -> None:
        """Announce what follows from all that is known, and wake who waits for it."""
        machine, before = self._machine, (self._situation, self._account, self._host.standing)
        machine.is_on_loopback = self.standing.is_on_loopback
        machine.is_alone = is_alone(self._host.peer_id, self._situation)
        machine.own_hosts = frozenset(str(one.address) for one in self._situation.interfaces)
        self._situation = self._learned()
        self._account = account_of(machine, self._declared)
        self._host.standing = self.standing
        self._host.announce(announced(self._host.peer_id, self._situation))
        if (self._situation, self._account, self._host.standing) != before:
            if self._account.verdict != before[1].verdict:
                log.info("reachability", verdict=self._account.verdict, advice=self._account.advice)
            self._note_change()

    def _note_change(self) -> None:
        self._changes += 1
        self._changed.set()
        self._changed = trio.Event()

    def _learned(self) -> Situation:
        machine, mapping = self._machine, self._mapping
        opened = [_address(host, port) for host, port in machine.opened]
        if mapping is not None and mapping.state.state == "mapped":
            opened.append(_address(mapping.state.host, mapping.state.port))
        return replace(
            self._situation,
            seen_as=machine.seen_as,
            opened=tuple(at for at in dict.fromkeys(opened) if scope_of(ipaddress.ip_address(at.host)) == "public"),
            closed=frozenset(_address(host, port) for host, port in machine.closed)
            | {one.address for one in self._declared if one.has_failed(machine.closed)},
        )


async def _look_up(name: TcpAddress) -> frozenset[str]:
    """The IP addresses of a name; none when it has none, or nobody answers in time."""
    family = {"dns4": trio.socket.AF_INET, "dns6": trio.socket.AF_INET6}.get(name.protocol, trio.socket.AF_UNSPEC)
    with trio.move_on_after(LOOK_UP_S), suppress(OSError):
        found = await trio.socket.getaddrinfo(name.host, name.port, family, trio.socket.SOCK_STREAM)
        return frozenset(str(remote[0]) for *_, remote in found)
    return frozenset()


def _parsed(texts: Sequence[str]) -> list[Address]:
    """The addresses in a stranger's record that are any."""
    found = []
    for text in texts:
        try:
            found.append(parse_address(text))
        except ConfigError:
            continue
    return found


def _address(host: str, port: int) -> TcpAddress:
    return TcpAddress("ip6" if ":" in host else "ip4", host, port)
