"""What the command line says about itself, and about lines that it cannot understand."""

from __future__ import annotations

import signal
import subprocess
import sys
from importlib.metadata import version

import pytest

from shardp2p.cli.main import run
from tests.support.processes import running

MODULES = """
import sys
from shardp2p.cli.main import run
assert run(sys.argv[1:]) == 0
print(*sorted({"torch", "transformers", "libp2p", "trio"} & set(sys.modules)), file=sys.stderr)
"""


@pytest.mark.parametrize("arguments", [["--help"], ["up", "--help"], ["generate", "--help"], ["--version"], []])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    command = [sys.executable, "-c", MODULES, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert not {"torch", "transformers", "libp2p"} & set(result.stderr.split())
    assert result.stdout


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    for command in ("demo", "up", "generate", "model", "bench"):
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
