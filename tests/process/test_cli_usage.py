"""What the command line says about itself, and about lines that it cannot understand."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from shardp2p.cli.main import run
from tests.support.processes import HANG_S, running

MODULES = """
import sys
from shardp2p.cli.main import run
assert run(sys.argv[1:]) == 0
print(*sorted({"torch", "transformers", "libp2p", "trio"} & set(sys.modules)), file=sys.stderr)
"""


@pytest.mark.parametrize("arguments", [["--help"], ["up", "--help"], ["coverage", "--help"], ["--version"], []])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    command = [sys.executable, "-c", MODULES, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert not {"torch", "transformers", "libp2p"} & set(result.stderr.split())
    assert result.stdout


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    for command in ("demo", "up", "generate", "coverage", "peers", "status", "plan", "model", "bench"):
        assert f" {command} " in shown


def test_version_is_the_package_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"shardp2p {version('shardp2p')}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["frobnicate"], "No such command 'frobnicate'; see shardp2p --help"),
        (["up", "--frobnicate"], "No such option: --frobnicate"),
        (["generate"], "Missing argument"),
        (["generate", "m", "p", "--max-tokens", "0"], "Invalid value for '--max-tokens'"),
        (["up", "--threads", "many"], "Invalid value for '--threads'"),
        (["coverage", ""], "the name of the model is empty"),
        (["plan", ""], "the name of the model is empty"),
    ],
)
def test_unknown_usage_is_one_line_and_exit_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"shardp2p: error: {said}")
    assert err.count("\n") == 1


def test_group_without_a_command_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["model"]) == 2
    out, err = capsys.readouterr()
    assert "import" in out + err


def test_bug_shows_its_traceback_and_exits_with_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(arguments: object) -> int:
        raise ZeroDivisionError("of our own making")

    monkeypatch.setattr("shardp2p.cli.app.run_command", fail)
    assert run(["--help"]) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.splitlines()[-1] == "shardp2p: error: this is a bug: ZeroDivisionError: of our own making"


def test_output_that_nobody_reads_ends_quietly() -> None:
    with running("--version") as process:
        process.close_stdout()
        assert process.wait()[0] == 128 + signal.SIGPIPE
        assert process.stderr == ""


def redirected(redirection: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """`shardp2p` as a shell runs it with this redirection."""
    command = ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-m", "shardp2p", *map(str, arguments)]

    return subprocess.run(
        command,
        capture_output=True,
        check=False,
        timeout=60,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize("arguments", [("--help",), ("up", "--help"), ("--version",), ("model", "list", "--json")])
def test_full_disk_behind_stdout_is_one_line(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    result = redirected(">/dev/full", *arguments, XDG_DATA_HOME=str(tmp_path), XDG_CONFIG_HOME=str(tmp_path))
    assert result.returncode == 2
    assert result.stderr == b"shardp2p: error: cannot write to standard output: No space left on device\n"


def test_full_disk_behind_stderr_leaves_the_exit_code(tmp_path: Path) -> None:
    result = redirected("2>/dev/full", "frobnicate")
    assert (result.returncode, result.stdout, result.stderr) == (2, b"", b"")


@pytest.mark.parametrize(
    ("redirection", "arguments", "code"),
    [
        (">&-", ("model", "list"), 0),
        (">&- 2>&-", ("model", "list"), 0),
        ("<&- >&- 2>&-", ("model", "list"), 0),
        ("2>&-", ("generate", "absent", "hello"), 2),
        (">&-", ("--help",), 0),
    ],
)
def test_streams_that_are_closed_swallow_what_is_written(
    tmp_path: Path, redirection: str, arguments: tuple[str, ...], code: int
) -> None:
    result = redirected(redirection, *arguments, XDG_DATA_HOME=str(tmp_path), XDG_CONFIG_HOME=str(tmp_path))
    assert (result.returncode, result.stdout, result.stderr) == (code, b"", b"")


PEER = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWA4Xop1JaT3MHxwYMkCepYsv4iPVopMXwCz5iHYdBfeSB"


def test_prompt_from_a_closed_stdin_is_an_empty_one(tmp_path: Path) -> None:
    result = redirected("<&-", "generate", "absent", "-", "--peer", PEER, XDG_CONFIG_HOME=str(tmp_path))
    assert (result.returncode, result.stdout) == (2, b"")
    assert result.stderr.startswith(b"shardp2p: error: the prompt is empty; ")


def test_names_that_stdout_has_no_character_for_are_escaped(tmp_path: Path) -> None:
    places = {"XDG_CONFIG_HOME": str(tmp_path), "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    listed = redirected("", "model", "list", "--json", "--data-dir", tmp_path / "é", **places)
    assert listed.returncode == 0, listed.stderr
    assert os.fsencode(json.loads(listed.stdout)["directory"]) == bytes(tmp_path / "é" / "models")
    refused = redirected("", "up", "--config", tmp_path / "日本", **places)
    assert refused.returncode == 2
    assert refused.stderr.startswith(b"shardp2p: error: there is no settings file")
    assert refused.stderr.count(b"\n") == 1


def test_thread_that_is_still_at_work_does_not_hold_up_the_end() -> None:
    program = """
import threading
from shardp2p.cli import main
from shardp2p.cli.output import report, write
from shardp2p.errors import PeerUnavailableError

def run(arguments):
    threading.Thread(target=threading.Event().wait).start()
    write("said")
    return report(PeerUnavailableError("nobody is there"))

main.run = run
main.main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG_S, check=False)
    assert (done.returncode, done.stdout) == (3, "said")
    assert done.stderr == "shardp2p: error: nobody is there\n"
