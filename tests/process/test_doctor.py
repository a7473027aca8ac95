"""`shardp2p doctor` on this machine, with and without a peer that dials back."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import trio

from shardp2p.cli import doctor_checks
from shardp2p.cli.doctor_checks import Asked, examine
from shardp2p.cli.doctor_findings import Finding
from shardp2p.config import UpSettings, default_paths
from shardp2p.errors import ConfigError
from shardp2p.host import upnp
from shardp2p.host.announcing import Interface
from shardp2p.host.host import open_host
from shardp2p.host.upnp import UpnpError
from shardp2p.identity.keys import Identity
from shardp2p.node import Node
from shardp2p.swarm import reachable as reachability

LOOPBACK = ["/ip4/127.0.0.1/tcp/0"]
LO = Interface("lo", ip_address("127.0.0.1"), 8)
WLAN = Interface("wlan0", ip_address("192.168.1.5"), 24)
ANYWHERE = ("/ip4/0.0.0.0/tcp/0",)


class AbsentRouter:
    def find(self) -> str:
        raise UpnpError(upnp.NO_ROUTER)

    def map_port(self, external: int, internal: int, lease_s: int) -> None:
        raise AssertionError("there is no router")

    def unmap_port(self, external: int) -> None:
        raise AssertionError("there is no router")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No name is asked for outside, no router is looked for, and no torch imported."""
    monkeypatch.setattr(doctor_checks, "NAME", "localhost")
    monkeypatch.setattr(doctor_checks, "_look_at_device", lambda settings: (Finding("device", "ok", "cpu"),))
    defaults = reachability.Reachable.__init__.__kwdefaults__ or {}
    monkeypatch.setattr(reachability.Reachable.__init__, "__kwdefaults__", {**defaults, "router": AbsentRouter})


def by_check(findings: tuple[Finding, ...]) -> dict[str, Finding]:
    return {finding.check: finding for finding in findings}


def asked(tmp_path: Path, listen: tuple[str, ...] = ANYWHERE, peers: tuple[str, ...] = ()) -> Asked:
    return Asked(UpSettings(listen=listen), default_paths(tmp_path), peers=peers)


async def test_without_a_peer_it_says_what_it_cannot_tell(tmp_path: Path) -> None:
    found = by_check(await examine(asked(tmp_path)))
    assert list(found) == ["names", "port", "peers", "clock", "reach", "upnp", "disk", "device"]
    assert {one.verdict for one in found.values()} <= {"ok", "warning"}
    assert "cannot tell" in found["clock"].found
    assert "cannot tell" in found["reach"].found


@pytest.mark.parametrize(("others", "verdict"), [((WLAN,), "public"), ((), "unknown")])
async def test_a_peer_dials_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: tuple[Interface, ...], verdict: str
) -> None:
    """Who is on the same machine says nothing of how others reach a machine without a network."""
    defaults = reachability.Reachable.__init__.__kwdefaults__ or {}
    given = {**defaults, "interfaces": lambda: (LO, *others)}
    monkeypatch.setattr(reachability.Reachable.__init__, "__kwdefaults__", given)
    async with open_host(Identity.generate(), LOOPBACK) as host:
        Node(host)
        found = by_check(await examine(asked(tmp_path, peers=host.addresses())))
    assert found["peers"] == Finding("peers", "ok", "1 of 1 answer")
    assert found["reach"].found.startswith(f"{verdict}; 127.0.0.1:")


async def test_a_peer_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"/ip4/127.0.0.1/tcp/{probe.getsockname()[1]}/p2p/{Identity.generate().peer_id}"
    found = by_check(await examine(asked(tmp_path, peers=(address,))))
    assert found["peers"].verdict == "problem"
    assert "refused, nothing listens there" in found["peers"].found


async def test_a_port_that_another_program_has_is_a_problem(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        found = by_check(await examine(asked(tmp_path, (f"/ip4/127.0.0.1/tcp/{other.getsockname()[1]}",))))
    assert found["port"].verdict == "problem"
    assert "another program already uses this port" in found["port"].found


async def test_who_listens_on_loopback_alone_is_told(tmp_path: Path) -> None:
    found = by_check(await examine(asked(tmp_path, tuple(LOOPBACK))))
    assert found["port"].verdict == "warning"
    assert "--listen /ip4/0.0.0.0/tcp/4001" in found["port"].advice


async def test_a_check_that_hangs_is_given_up_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(asked: Asked) -> tuple[Finding, ...]:
        await trio.sleep_forever()

    monkeypatch.setattr(doctor_checks, "_names", hang)
    monkeypatch.setattr(doctor_checks, "NAMES_S", 0.2)
    found = by_check(await examine(asked(tmp_path)))
    assert found["names"].verdict == "warning"
    assert "took more than" in found["names"].found


async def test_a_malformed_peer_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.RaisesGroup(ConfigError):
        await examine(asked(tmp_path, peers=("/ip4/127.0.0.1/tcp/1",)))


def run_doctor(*arguments: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "shardp2p", "doctor", "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, json.loads(done.stdout)


def test_the_command_prints_one_object_and_its_exit_code_says_whether_a_peer_can_run(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = f"/ip4/127.0.0.1/tcp/{other.getsockname()[1]}"
        code, told = run_doctor("--data-dir", str(tmp_path), "--listen", taken)
    assert (code, told["ok"]) == (3, False)
    assert {one["check"] for one in told["checks"]} >= {"names", "port", "disk", "device"}
