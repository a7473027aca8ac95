from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

PATIENCE_S = 120.0


def lab(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-P", "-m", "shardp2p", "lab", *arguments]


async def test_a_network_stands_until_it_is_interrupted(tmp_path: Path) -> None:
    file = tmp_path / "home.json"
    file.write_text(json.dumps({"hosts": {"relay": {}, "alice": {"behind": "home"}}, "routers": {"home": {}}}))
    with trio.fail_after(PATIENCE_S):
        process = await trio.lowlevel.open_process(
            lab(["up", str(file), "--json"]), stdout=subprocess.PIPE, process_group=0
        )
        assert process.stdout is not None
        said = b""
        while not said.endswith(b"\n"):
            said += await process.stdout.receive_some()
        hosts = {host["name"]: host for host in json.loads(said)["hosts"]}
        inside = await trio.run_process([*hosts["alice"]["enter"], "ip", "-brief", "address"], capture_stdout=True)
        assert hosts["alice"]["address"].encode() in inside.stdout
        assert hosts["alice"]["public_address"] != hosts["alice"]["address"]
        holder = os.pidfd_open(int(hosts["alice"]["namespaces"][-1].split("/")[2]))
        try:
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 0
            await trio.lowlevel.wait_readable(holder)
        finally:
            os.close(holder)
        await process.stdout.aclose()


async def test_the_lab_does_what_it_is_asked_for() -> None:
    """Each figure is the best of a few tries, since a busy machine can only make it worse."""
    with trio.fail_after(PATIENCE_S):
        done = await trio.run_process(lab(["run", "check", "--json"]), capture_stdout=True, check=False)
    found = json.loads(done.stdout)
    assert {measurement["what"] for measurement in found["measurements"]} == {
        "rtt_ms",
        "up_mbit_s",
        "down_mbit_s",
        "loss",
    }
    assert [measurement for measurement in found["measurements"] if not measurement["within"]] == []
    assert (found["within"], done.returncode) == (True, 0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["up", "no-such-network"], "neither a shipped network"),
        (["run", "no-such-scenario"], "there is no scenario"),
        (["run", "check", "--network", "/dev/null"], "not JSON"),
    ],
)
async def test_a_wrong_name_is_told_in_one_line(arguments: list[str], said: str) -> None:
    with trio.fail_after(PATIENCE_S):
        done = await trio.run_process(lab(arguments), capture_stdout=True, capture_stderr=True, check=False)
    assert done.returncode == 2
    assert said in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1


async def test_list_names_networks_and_scenarios() -> None:
    with trio.fail_after(PATIENCE_S):
        done = await trio.run_process(lab(["list", "--json"]), capture_stdout=True)
    listed = json.loads(done.stdout)
    assert {"three-50ms", "nat-kinds", "story"} <= {network["name"] for network in listed["networks"]}
    assert "check" in {scenario["name"] for scenario in listed["scenarios"]}
