"""The checks of `shardp2p doctor`. Each ends within its bound and gives findings, never an error."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import trio

from shardp2p.cli.doctor_findings import (
    Finding,
    counted,
    judge_clock,
    judge_disk,
    judge_memory,
    judge_peers,
    judge_reach,
    judge_upnp,
)
from shardp2p.config import Paths, UpSettings
from shardp2p.errors import ConfigError, ShardError
from shardp2p.vocabulary import SwarmId
from shardp2p.wire.messages import PeerAddress
from shardp2p.wire.records import CoverageRecord

if TYPE_CHECKING:
    from shardp2p.host.circuit.service import HostCircuits
    from shardp2p.identity.joined import JoinedSwarm
    from shardp2p.swarm.reachable import Reachable

NAME: Final = "huggingface.co"
"""Where models come from: the one name that a peer needs without anybody having said it."""
NAMES_S: Final = 5.0
DEVICE_S: Final = 60.0
"""torch takes seconds to import, on a cold disk many."""
NETWORK_S: Final = 40.0
"""Looking for a router, dialling peers, and two rounds of dial-backs."""
DECIDED_S: Final = 20.0
PLACE_S: Final = 5.0
PEER_S: Final = 10.0
ANYWHERE: Final = "/ip4/0.0.0.0/tcp/0"
NO_NAMES: Final = (
    "peers cannot be named by host, nor the demo model be fetched but from a mirror; see /etc/resolv.conf or the router"
)
BUSY: Final = "ask again when this machine has less to do"


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be checked, and with whom: a swarm that was joined, where one is meant."""

    settings: UpSettings
    paths: Paths
    join: str | None = None
    peers: tuple[str, ...] = ()


@dataclass(slots=True)
class _Met:
    """Who answered."""

    records: list[CoverageRecord] = field(default_factory=list)
    relays: list[PeerAddress] = field(default_factory=list)
    """Those that say that anybody can dial them."""
    issued_s: list[float] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)


async def examine(asked: Asked) -> tuple[Finding, ...]:
    """Every finding, in the order of reading; all checks run at once. Raises: ConfigError for a wrong question."""
    found: dict[str, tuple[Finding, ...]] = {}
    checks = (
        ("names", partial(_names, asked), NAMES_S, NO_NAMES),
        ("network", partial(_network, asked), NETWORK_S, BUSY),
        ("disk", partial(_disk, asked), NAMES_S, BUSY),
        ("device", partial(_device, asked), DEVICE_S, BUSY),
    )

    async def check(name: str, run: Any, within_s: float, advice: str) -> None:
        with trio.move_on_after(within_s) as scope:
            found[name] = await run()
        if scope.cancelled_caught:
            found[name] = (Finding(name, "warning", f"not known: it took more than {within_s:.0f} s", advice),)

    async with trio.open_nursery() as nursery:
        for name, run, within_s, advice in checks:
            nursery.start_soon(check, name, run, within_s, advice)
    return tuple(finding for name, *_ in checks for finding in found[name])


async def _names(asked: Asked) -> tuple[Finding, ...]:
    started = trio.current_time()
    try:
        await trio.socket.getaddrinfo(NAME, 443)
    except OSError as error:
        return (Finding("names", "warning", f"{NAME} is not found: {error.strerror or error}", NO_NAMES),)
    return (Finding("names", "ok", f"{NAME} found in {1e3 * (trio.current_time() - started):.0f} ms"),)


async def _disk(asked: Asked) -> tuple[Finding, ...]:
    return (await trio.to_thread.run_sync(_look_at_disk, asked.paths.data_dir, abandon_on_cancel=True),)


def _look_at_disk(data_dir: Path) -> Finding:
    place = next(path for path in (data_dir, *data_dir.parents) if path.exists())
    try:
        free_bytes = shutil.disk_usage(place).free
    except OSError as error:
        return Finding("disk", "problem", f"cannot read {place}: {error.strerror}", "name another --data-dir")
    return judge_disk(str(data_dir), free_bytes, is_writable=place.is_dir() and os.access(place, os.W_OK | os.X_OK))


async def _device(asked: Asked) -> tuple[Finding, ...]:
    return await trio.to_thread.run_sync(_look_at_device, asked.settings, abandon_on_cancel=True)


def _look_at_device(settings: UpSettings) -> tuple[Finding, ...]:
    """Imports torch: only that knows what it can compute on."""
    from shardp2p.runtime.device import check_device
    from shardp2p.runtime.free_memory import free_memory_bytes

    device = settings.device
    try:
        check_device(device)
    except ConfigError as error:
        return (Finding("device", "problem", error.message),)
    finding = Finding("device", "ok", device)
    if device == "cpu":
        try:
            check_device("cuda")
        except ConfigError:
            finding = Finding("device", "ok", "cpu; torch sees no GPU")
        else:
            finding = Finding("device", "warning", "cpu, though there is a GPU", "serve on it with --device cuda")
    return finding, judge_memory(device, free_memory_bytes(device))


async def _network(asked: Asked) -> tuple[Finding, ...]:
    """The port, peers, clock, how others reach us, and the router: from the peer that runs here, if any does."""
    if asked.join is None and not asked.peers:
        try:
            told = await trio.to_thread.run_sync(_ask_running, asked.paths.run_dir, abandon_on_cancel=True)
        except ShardError as error:
            told = (Finding("peers", "problem", error.message, "the peer that runs here may hang: start it again"),)
        if told is not None:
            return told
    with ExitStack() as stack:
        identity, joined, addresses = _who_asks(asked, stack)
        return await _try_network(asked, identity, joined, addresses)


def _ask_running(run_dir: Path) -> tuple[Finding, ...] | None:
    """What the peer that runs here knows; None where none runs."""
    from shardp2p.cli.swarm_views import sight_of
    from shardp2p.gateway.local import ask_local, ask_running

    told = ask_running(run_dir)
    hanging = tuple(Finding("peers", "problem", reason) for reason in told.silent.values())
    for peer, status in told.answers.items():
        seen = sight_of(ask_local(run_dir, peer, "records")).seen
        issued_s = [one.record.issued_at_s for one in seen if one.record.peer_id != peer]
        reach = status["reach"]
        return (
            *hanging,
            Finding("port", "ok", f"the peer that runs here listens: {', '.join(status['addresses'])}"),
            Finding(
                "peers",
                "ok",
                f"{counted(len(status['neighbours']), 'neighbour')}, {counted(status['live_peers'], 'peer')} live",
            ),
            judge_clock(time.time(), issued_s),
            judge_reach(reach),
            judge_upnp(reach, is_public=reach["verdict"] == "public"),
        )
    return hanging or None


def _who_asks(asked: Asked, stack: ExitStack) -> tuple[Any, JoinedSwarm | None, tuple[str, ...]]:
    """The identity that dials, the swarm that it is in, and whom it dials. Raises: ConfigError."""
    from shardp2p.cli.client_identity import client_place
    from shardp2p.identity.keys import Identity

    place = stack.enter_context(client_place(asked.join, asked.paths))
    if place is None:
        return Identity.generate(), None, asked.peers
    return place.identity, place.joined, tuple(dict.fromkeys((*asked.peers, *place.joined.peers)))


async def _try_network(
    asked: Asked, identity: Any, joined: JoinedSwarm | None, addresses: Sequence[str]
) -> tuple[Finding, ...]:
    from shardp2p.host.circuit.service import open_circuits
    from shardp2p.host.host import open_host
    from shardp2p.member import bootstrap_of
    from shardp2p.node import Node
    from shardp2p.swarm.reachable import Reachable

    port, listen = await _port(asked.settings.listen_addresses(in_swarm=True))
    peers = bootstrap_of(addresses, identity.peer_id)
    met = _Met()
    membership = None if joined is None else joined.membership
    async with open_host(identity, listen, membership=membership) as host, open_circuits(host) as circuits:
        node = Node(host)
        async with trio.open_nursery() as nursery:
            for peer in peers:
                nursery.start_soon(_meet, node, joined, peer, met)
        reachable = Reachable(host, lambda: met.records, declared=asked.settings.announce)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reachable.run)
            with trio.move_on_after(DECIDED_S):
                await _decided(reachable, can_ask=bool(met.records))
            if reachable.verdict == "unreachable" and met.relays:
                with trio.move_on_after(PLACE_S):
                    await _take_place(circuits, met.relays, reachable)
            nursery.cancel_scope.cancel()
    reach = reachable.status()
    is_public = reachable.verdict == "public"
    findings = [port, judge_peers(len(peers), met.reasons), judge_clock(time.time(), met.issued_s)]
    if met.records:
        findings.append(judge_reach(reach))
    else:
        findings.append(Finding("reach", "ok", "cannot tell: no peer that could dial this machine back"))
    return (*findings, judge_upnp(reach, is_public=is_public))


async def _take_place(circuits: HostCircuits, relays: Sequence[PeerAddress], reachable: Reachable) -> None:
    """Take a place at a relay, as `up` does; it is given up with `circuits`."""
    from shardp2p.host.circuit.candidates import Candidate

    circuits.set_candidates(Candidate(relay.peer_id, relay.addresses) for relay in relays)
    circuits.want(True)
    while not circuits.held():
        await circuits.wait_changed()
    reachable.set_circuits(circuits.addresses())


async def _port(listen: Sequence[str]) -> tuple[Finding, tuple[str, ...]]:
    """Whether the addresses of `up` can be listened on, and those to go on with."""
    from shardp2p.host.addresses import parse_listen_address
    from shardp2p.host.tcp import open_listeners

    parsed = [parse_listen_address(text) for text in listen]
    try:
        listeners = await open_listeners(parsed)
    except ConfigError as error:
        return Finding("port", "problem", error.message), (ANYWHERE,)
    for listener in listeners:
        await listener.aclose()
    texts = ", ".join(listen)
    if all(address.host.startswith("127.") or address.host == "::1" for address in parsed):
        advice = "for others, start it with --listen /ip4/0.0.0.0/tcp/4001; the checks below are for such a one"
        return Finding("port", "warning", f"{texts}: only this machine reaches it", advice), (ANYWHERE,)
    return Finding("port", "ok", f"{texts} is free"), tuple(listen)


async def _meet(node: Any, joined: JoinedSwarm | None, peer: PeerAddress, met: _Met) -> None:
    """Ask a peer what it says of itself; outside a swarm, only whether it is there."""
    from shardp2p.host.failures import single_errors
    from shardp2p.swarm.sealed_records import open_record

    try:
        with trio.fail_after(PEER_S):
            if joined is None:
                with single_errors():
                    await node.members(peer.addresses)
            else:
                record = open_record(await node.ask_record(peer.peer_id, peer.addresses), joined.swarm)
                met.issued_s.append(record.issued_at_s)
                if record.reachability == "public":
                    met.relays.append(PeerAddress(peer.peer_id, record.addresses))
    except ShardError as error:
        met.reasons.append(error.message)
        return
    except trio.TooSlowError:
        met.reasons.append(f"peer {peer.peer_id} does not answer within {PEER_S:.0f} s")
        return
    swarm = joined.swarm if joined is not None else SwarmId(peer.peer_id)
    met.records.append(CoverageRecord(swarm, peer.peer_id, 1, 1.0, 1.0, "joining", peer.addresses))


async def _decided(reachable: Reachable, *, can_ask: bool) -> None:
    """Wait until the router answered, or did not, and peers agree on how they reach us."""
    seen = reachable.changes
    while reachable.is_looking or (can_ask and reachable.verdict == "unknown" and not reachable.is_reached_here):
        seen = await reachable.wait_change(seen)
