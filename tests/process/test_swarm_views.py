"""What the commands that look at a swarm show of one over real connections; its peers say what a test lets them say."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio

from shardp2p.cli.swarm_views import directory_view_of, view_of
from shardp2p.config import default_paths
from shardp2p.gateway.local import open_local
from shardp2p.identity.join import write_join
from shardp2p.identity.joined import JoinedSwarms
from shardp2p.identity.owned import OwnedSwarm, OwnedSwarms
from shardp2p.member import Member, open_member
from shardp2p.swarm.publisher import Coverage
from shardp2p.vocabulary import LayerRange, ModelId
from shardp2p.wire.records import HeldLayers
from tests.support.members import peer
from tests.support.processes import HANG_S, running

DIGEST = "ab" * 32
DAY_S = 86_400.0

PROGRAM = """
import sys
from shardp2p.cli.main import run
code = run(sys.argv[1:])
assert not {"torch", "transformers"} & set(sys.modules)
sys.exit(code)
"""


@dataclass
class Outcome:
    code: int
    out: str
    error_line: str

    @property
    def told(self) -> Any:
        assert self.code == 0, self.error_line
        return json.loads(self.out)


async def command(*arguments: object) -> Outcome:
    """A command in a process of its own, in which torch is not imported."""
    result = await trio.run_process(
        [sys.executable, "-c", PROGRAM, *map(str, arguments)], capture_stdout=True, capture_stderr=True, check=False
    )
    errors = result.stderr.decode().splitlines()
    assert len([line for line in errors if not line.startswith("shardp2p: error: ")]) == 0, errors
    return Outcome(result.returncode, result.stdout.decode(), errors[-1] if errors else "")


class Peers:
    """A swarm in the test's own process."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._owned: OwnedSwarm = OwnedSwarms(default_paths(root / "owner").swarms_dir).create("lab", is_open=False)
        self.members: list[Member] = []

    @property
    def token(self) -> str:
        """An invite with the address of the first peer."""
        addresses = self.members[0].node.addresses() if self.members else ()
        return write_join(self._owned.invite(time.time(), DAY_S, peers=addresses))

    @asynccontextmanager
    async def member(self, number: int, *held: HeldLayers) -> AsyncIterator[Member]:
        """Another peer, which says that it holds these layers."""
        kept = JoinedSwarms(default_paths(self._root / str(number)).swarms_dir)
        joined = kept.join(OwnedSwarms(self._root).read_join(self.token, peer(number), 0), peer(number), time.time())
        async with open_member(peer(number), joined, ["/ip4/127.0.0.1/tcp/0"], kept=kept) as member:
            member.say(
                Coverage(
                    state="serving",
                    addresses=member.node.addresses(),
                    region="lab-1",
                    version="0",
                    memory_bytes=1000,
                    free_memory_bytes=100,
                    held=held,
                )
            )
            self.members.append(member)
            yield member


def held(start: int, stop: int, **changes: Any) -> HeldLayers:
    values: dict[str, Any] = {
        "model": ModelId("toy"), "model_digest": DIGEST, "model_layers": 12, "layers": LayerRange(start, stop),
        "state": "serving", "dtype": "float32", "context_tokens": 512, "layer_bytes": 100, "cache_rows": 64,
        "free_cache_rows": 60, "decode_layer_s": 0.002, "prefill_layer_s": 0.001,
    }  # fmt: skip
    return HeldLayers(**(values | changes))


@asynccontextmanager
async def swarm_of_two(root: Path) -> AsyncIterator[Peers]:
    """Layers 0:7 and 7:12 on two peers that know of each other, and stand in the directory."""
    peers = Peers(root)
    async with peers.member(1, held(0, 7)) as first, peers.member(2, held(7, 12)) as second:
        with trio.fail_after(HANG_S):
            while len(first.live()) < 2 or len(second.live()) < 2:
                await trio.sleep(0.02)
            while len(await first.ask_directory(first.swarm)) + len(await second.ask_directory(first.swarm)) < 2:
                await trio.sleep(0.1)
        yield peers


async def test_machine_that_just_joined_sees_the_swarm_from_the_dht_alone(tmp_path: Path) -> None:
    async with swarm_of_two(tmp_path) as peers:
        at = ("--data-dir", tmp_path / "new", "--json")
        told = (await command("coverage", "toy", "--from-dht", "--join", peers.token, *at)).told
        assert (told["source"], told["swarm_name"]) == ("directory", "lab")
        assert (told["model"], told["digest"], told["layers"]) == ("toy", DIGEST, 12)
        assert (told["complete"], told["missing"], told["min_holders"]) == (True, [], 1)
        assert {(one["peer_id"], *one["layers"], one["state"], one["is_live"]) for one in told["holders"]} == {
            (peers.members[0].peer_id, 0, 7, "serving", True),
            (peers.members[1].peer_id, 7, 12, "serving", True),
        }
        assert told["holders"][0]["decode_layer_ms"] == 2.0
        assert told["holders"][0]["addresses"]
        # The token is not needed again, and a whole digest asks for that model's holders.
        again = (await command("coverage", DIGEST, "--from-dht", *at)).told
        assert again["holders"] == told["holders"]


async def test_listener_sees_by_gossip_who_is_live_and_how_far(tmp_path: Path) -> None:
    async with swarm_of_two(tmp_path) as peers:
        at = ("--data-dir", tmp_path / "new")
        seen = (await command("peers", "--join", peers.token, *at, "--json")).told
        assert seen["source"] == "gossip"
        assert {one["peer_id"] for one in seen["peers"]} == {member.peer_id for member in peers.members}
        assert seen["seen_by"] not in {one["peer_id"] for one in seen["peers"]}
        assert all(one["rtt_ms"] > 0 and one["region"] == "lab-1" for one in seen["peers"])
        told = (await command("plan", "toy", *at, "--json")).told
        assert [stage["layers"] for stage in told["route"]["stages"]] == [[0, 7], [7, 12]]
        assert told["plan"]["lap_ms"] >= 12 * 2.0
        unknown = await command("coverage", "nope", *at)
        assert (unknown.code, unknown.out) == (3, "")
        assert unknown.error_line.endswith("nobody serves a model called 'nope'; served are: toy")


async def test_peer_that_left_serves_nothing_though_the_directory_still_names_it(tmp_path: Path) -> None:
    peers = Peers(tmp_path)
    async with peers.member(1, held(0, 7)) as first:
        async with peers.member(2, held(7, 12)):
            with trio.fail_after(HANG_S):
                while len(await first.ask_directory(f"{first.swarm}/{DIGEST}")) < 1:
                    await trio.sleep(0.1)
        at = ("--join", peers.token, "--data-dir", tmp_path / "new", "--json")
        for where in ((), ("--from-dht",)):
            told = (await command("coverage", "toy", *where, *at)).told
            assert (told["complete"], told["missing"]) == (False, [[7, 12]])
            assert [one["peer_id"] for one in told["holders"] if one["is_live"]] == [first.peer_id]


async def test_running_peer_answers_for_its_data_directory(tmp_path: Path) -> None:
    async with swarm_of_two(tmp_path) as peers:
        first, home = peers.members[0], tmp_path / "home"

        async def status(_: Mapping[str, Any]) -> Any:
            return {"swarm": first.swarm, "swarm_name": first.name, "peer_id": first.peer_id}

        async def records(_: Mapping[str, Any]) -> Any:
            return view_of(first)

        async def directory(asked: Mapping[str, Any]) -> Any:
            return await directory_view_of(first, asked.get("digest"))

        answers = {"status": status, "records": records, "directory": directory}
        at = ("--data-dir", home, "--json")
        async with open_local(default_paths(home).run_dir, first.peer_id, answers):
            for source, extra in (("gossip", ()), ("directory", ("--from-dht",))):
                told = (await command("coverage", "toy", *extra, *at)).told
                assert (told["seen_by"], told["source"], told["complete"]) == (first.peer_id, source, True)
            assert (await command("status", *at)).told["peer_id"] == first.peer_id
            await trio.to_thread.run_sync(watch_as_lines, home)
            await trio.to_thread.run_sync(watch_on_a_terminal, home)
        gone = await command("status", *at)
        assert (gone.code, gone.out) == (3, "")
        assert "no peer of a swarm runs here" in gone.error_line


def watch_as_lines(data_dir: Path) -> None:
    """An object follows an object until Ctrl-C."""
    with running("coverage", "toy", "--watch", "--json", "--data-dir", data_dir) as process:
        assert [json.loads(process.read_line())["complete"] for _ in range(2)] == [True, True]
        process.send_signal(signal.SIGINT)
        assert process.wait()[0] == 0
        assert process.stderr == ""


def watch_on_a_terminal(data_dir: Path) -> None:
    """Bars are drawn on a screen of their own, which Ctrl-C leaves."""
    ours, theirs = pty.openpty()
    arguments = [sys.executable, "-m", "shardp2p", "coverage", "toy", "--watch", "--data-dir", str(data_dir)]
    environment = {**os.environ, "TERM": "xterm-256color"}
    process = subprocess.Popen(arguments, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    try:
        shown = b""
        while b"holders" not in shown:
            shown += os.read(ours, 65536)
        assert b"\x1b[?1049h" in shown
        process.send_signal(signal.SIGINT)
        while piece := _read(ours):
            shown += piece
        assert process.wait(HANG_S) == 0
        assert b"\x1b[?1049l" in shown
        assert b"\x1b[?25h" in shown
    finally:
        process.kill()
        process.wait(HANG_S)
        os.close(ours)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # how Linux tells that the other end is closed
        return b""


async def test_unreachable_peer_list_is_told_address_by_address(tmp_path: Path) -> None:
    peers = Peers(tmp_path)
    async with peers.member(1):
        token = peers.token
        address = peers.members[0].node.addresses()[0]
    failed = await command("coverage", "toy", "--join", token, "--data-dir", tmp_path / "new")
    assert (failed.code, failed.out) == (3, "")
    assert "no peer of the swarm can be reached" in failed.error_line
    assert address in failed.error_line


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("coverage", "toy"), 2, "this machine is in no swarm: name one with --join"),
        (("peers", "--peer", "nonsense", "--join", "TOKEN"), 2, "'nonsense' is no multiaddr"),
        (("plan", "toy", "--join", "shardp2p-join-x"), 2, ""),
        (("status",), 3, "no peer of a swarm runs here"),
    ],
)
async def test_what_cannot_be_looked_at_is_one_line(
    tmp_path: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    token = Peers(tmp_path).token
    given = [token if argument == "TOKEN" else argument for argument in arguments]
    outcome = await command(*given, "--data-dir", tmp_path / "new")
    assert (outcome.code, outcome.out) == (code, "")
    assert said in outcome.error_line
