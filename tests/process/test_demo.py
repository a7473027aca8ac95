"""`shardp2p demo`: the swarm it starts, the answer it checks, what it refuses, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from shardp2p.cli.main import run
from shardp2p.lab.local_swarm import even_splits, local_swarm
from shardp2p.lab.reference_process import open_reference
from shardp2p.vocabulary import LayerRange
from tests.support.models import smollm2_directory, tiny_llama
from tests.support.processes import HANG_S, Shardp2p, running

LAYERS = 4
CONTEXT_TOKENS = 512
SERVERS = 1 if sys.platform == "linux" else 0
"""Processes that stages are forked from."""


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "tiny"
    return tiny_llama(directory, layers=LAYERS, context_tokens=CONTEXT_TOKENS)


@pytest.fixture
def tiny_demo(tiny: Path, tmp_path: Path) -> Iterator[Shardp2p]:
    """A demo of two stages whose answer is as long as the model allows."""
    options = ("--model", tiny, "--data-dir", tmp_path, "--stages", 2, "--draft", "none", "--dtype", "bfloat16")
    with running("demo", *options, "--raw", "--prompt", "a", "--max-tokens", CONTEXT_TOKENS - 1) as process:
        yield process


def report_of(*arguments: object) -> dict[str, object]:
    """What `demo --json` prints: one object and nothing else."""
    with running("demo", "--json", *arguments) as process:
        exit_code, out = process.wait()
        assert exit_code == 0, process.stderr
        assert process.stderr == ""
    report = json.loads(out)
    assert isinstance(report, dict)
    assert out.count("\n") == 1
    return report


def children_of(process: Shardp2p) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def test_real_model_over_three_processes_answers_like_the_whole_model() -> None:
    data_dir = smollm2_directory().parent.parent
    question = "What is the capital of France? Say it twice."
    report = report_of("--data-dir", data_dir, "--stages", 3, "--max-tokens", 24, "--prompt", question)
    stages = report["stages"]
    assert isinstance(stages, list)
    assert [stage["layers"] for stage in stages] == [[0, 10], [10, 20], [20, 30]]
    assert len({stage["pid"] for stage in stages} | {os.getpid()}) == 4
    assert len({stage["peer_id"] for stage in stages}) == 3
    assert all(stage["rss_bytes"] > stage["layer_bytes"] > 100_000_000 for stage in stages)
    assert report["model"] == "smollm2"
    assert report["identical"] is True
    assert report["tokens"] == report["reference_tokens"]
    assert "Paris" in str(report["text"])


def test_answer_without_drafts_takes_a_lap_for_each_token(tiny: Path, tmp_path: Path) -> None:
    options = ("--model", tiny, "--data-dir", tmp_path, "--stages", 1, "--draft", "none", "--no-reference")
    report = report_of(*options, "--max-tokens", 8, "--prompt", "abc", "--raw")
    tokens = report["tokens"]
    assert isinstance(tokens, list)
    assert report["laps"] == len(tokens)
    assert report["accepted_per_lap"] == 1.0
    assert report["identical"] is None
    assert report["reference_tokens"] is None


def test_people_see_the_ring_the_answer_and_the_verdict(tiny: Path, tmp_path: Path) -> None:
    options = ("--model", tiny, "--data-dir", tmp_path, "--stages", 2, "--max-tokens", 8)
    with running("demo", *options, "--prompt", "Say\x1b[31m it") as process:
        exit_code, out = process.wait()
    assert exit_code == 0
    lines = out.splitlines()
    assert lines[0] == "tiny in float32, over 2 peers on this machine"
    assert lines[2].split() == ["stage", "layers", "peer", "process", "weights", "memory"]
    assert [line.split()[:2] for line in lines[3:5]] == [["1", "0:2"], ["2", "2:4"]]
    assert lines[-2].split()[1] == "tokens/s,"
    assert lines[-1].startswith("identical to the whole model in one process")
    assert "\x1b" not in out


async def test_children_run_nothing_that_lies_in_the_current_directory(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    for name in ("dns.py", "shardp2p.py", "torch.py"):
        (hostile / name).write_text("raise SystemExit('run from the current directory')")
    monkeypatch.chdir(hostile)
    async with local_swarm(str(tiny), even_splits(LAYERS, 1), dtype="float32", threads=1, data_dir=tmp_path) as stages:
        assert stages[0].layers == LayerRange(0, LAYERS)
    async with open_reference(tiny, "float32", threads=1) as reference:
        assert len((await reference.generate([5], 3)).tokens) == 3


def test_full_disk_behind_stdout_ends_the_demo_in_one_line(tiny: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "shardp2p", "demo", "--model", str(tiny), "--data-dir", str(tmp_path)]
    with Path("/dev/full").open("wb") as full:
        result = subprocess.run(
            [*command, "--stages", "1", "--prompt", "a"],
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=HANG_S,
            check=False,
        )
    assert result.returncode == 2
    assert result.stderr == b"shardp2p: error: cannot write to standard output: No space left on device\n"
    assert list((tmp_path / "temporary").iterdir()) == []


def test_prompt_in_any_language_is_understood_in_the_c_locale(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--model", tiny, "--data-dir", tmp_path, "--stages", 1, "--no-reference", "--max-tokens", 4, "--raw")
    expected = report_of(*options, "--prompt", "né 日")
    for name, value in (("LC_ALL", "C"), ("PYTHONUTF8", "0"), ("PYTHONCOERCECLOCALE", "0")):
        monkeypatch.setenv(name, value)
    assert report_of(*options, "--prompt", "né 日")["tokens"] == expected["tokens"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--stages", "0"), "--stages is 0; it must be at least 1"),
        (("--stages", "5"), "5 stages are asked for; the model's 4 layers make between 1 and 4"),
        (("--prompt", " \n"), "the prompt is empty"),
        (("--prompt", os.fsdecode(b"\xff")), "the prompt is not UTF-8 text"),
        (("--max-tokens", "0"), "--max-tokens is 0"),
        (("--max-tokens", "600"), "600 more are asked for; tiny takes 512 in all"),
        (("--depth", "0"), "--depth is 0; it must be between 1 and 32"),
        (("--depth", "33"), "--depth is 33"),
        (("--draft", "magic"), "--draft is 'magic'; it must be one of lookup, none"),
        (("--dtype", "int4"), "dtype is 'int4'"),
        (("--model", "nowhere"), "there is no model 'nowhere'"),
        (("--stages", "many"), "Invalid value for '--stages'"),
    ],
)
def test_value_that_cannot_be_is_named_before_anything_starts(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert run(["demo", "--model", str(tiny), "--data-dir", str(tmp_path), *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("shardp2p: error: ")
    assert said in err
    assert err.count("\n") == 1


def has_children(count: int) -> Callable[[int], bool]:
    return lambda pid: len(psutil.Process(pid).children(recursive=True)) == count


def wait_server(process: Shardp2p) -> None:
    def has_server(pid: int) -> bool:
        with suppress(psutil.NoSuchProcess):  # children of another kind come and go
            return any("shardp2p.lab.prefork" in child.cmdline() for child in psutil.Process(pid).children())
        return False

    if sys.platform == "linux":
        process.wait_until(has_server)
    else:
        wait_start(process)


def wait_start(process: Shardp2p) -> None:
    process.wait_until(has_children(SERVERS + 2))


def wait_answer(process: Shardp2p) -> None:
    while not process.read_line().startswith("> "):
        pass


def wait_check(process: Shardp2p) -> None:
    wait_answer(process)
    while "tokens/s" not in process.read_line():
        pass
    process.wait_until(has_children(SERVERS + 1))


@pytest.mark.parametrize(
    ("number", "wait_moment"),
    [
        (signal.SIGINT, wait_server),
        (signal.SIGINT, wait_start),
        (signal.SIGINT, wait_answer),
        (signal.SIGINT, wait_check),
        (signal.SIGHUP, wait_answer),
        (signal.SIGKILL, wait_answer),
    ],
)
def test_signal_at_any_moment_leaves_no_process(
    tiny_demo: Shardp2p, tmp_path: Path, number: signal.Signals, wait_moment: Callable[[Shardp2p], None]
) -> None:
    wait_moment(tiny_demo)
    children = children_of(tiny_demo)
    assert children
    tiny_demo.send_signal(number)
    exit_code, _ = tiny_demo.wait()
    assert exit_code == (-number if number == signal.SIGKILL else 128 + number)
    _, alive = psutil.wait_procs(children, HANG_S)
    assert alive == []
    if number != signal.SIGKILL:
        assert list((tmp_path / "temporary").iterdir()) == []


def test_stage_that_dies_ends_the_demo_and_is_named(tiny_demo: Shardp2p) -> None:
    wait_answer(tiny_demo)
    children = children_of(tiny_demo)
    second = next(child for child in children if "2:4" in child.cmdline())
    second.kill()
    exit_code, _ = tiny_demo.wait()
    assert exit_code == 3
    assert "stage 2 of 2 (layers 2:4" in tiny_demo.error_line
    _, alive = psutil.wait_procs(children, HANG_S)
    assert alive == []
