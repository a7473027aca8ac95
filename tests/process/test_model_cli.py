from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from shardp2p.cli.model import app
from shardp2p.cli.progress import progress_bar
from shardp2p.errors import ConfigError
from tests.support.models import tiny_gguf, tiny_llama


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return tiny_gguf(tmp_path / "tiny.gguf", tiny_llama(tmp_path / "tiny", layers=2))


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_import_prints_one_object(gguf: Path, tmp_path: Path) -> None:
    results = [run("import", gguf, "--name", "mine", "--data-dir", tmp_path / "data", "--json") for _ in range(2)]
    first, second = (json.loads(result.stdout) for result in results)
    assert [result.exit_code for result in results] == [0, 0]
    assert (first["model"], first["layers"], first["dtype"]) == ("mine", 2, "BF16")
    assert first["directory"] == str(tmp_path / "data" / "models" / "mine")
    assert len(first["digest"]) == 64
    assert (first.pop("was_there"), second.pop("was_there")) == (False, True)
    assert first == second


def test_import_says_whether_the_model_was_there(gguf: Path, tmp_path: Path) -> None:
    assert "tiny is imported: 2 layers" in run("import", gguf, "--data-dir", tmp_path / "data").stdout
    assert "is already there and intact" in run("import", gguf, "--data-dir", tmp_path / "data").stdout
    assert "is imported" in run("import", gguf, "--data-dir", tmp_path / "data", "--force").stdout


def test_list_shows_sound_and_damaged_models(gguf: Path, tmp_path: Path) -> None:
    where = ("--data-dir", tmp_path / "data")
    assert "shardp2p model import smollm2" in run("list", *where).stdout
    assert json.loads(run("list", *where, "--json").stdout)["models"] == []
    run("import", gguf, "--name", "a", *where)
    run("import", gguf, "--name", "b", *where)
    (tmp_path / "data" / "models" / "b" / "config.json").unlink()
    listed = json.loads(run("list", *where, "--json").stdout)
    assert listed["directory"] == str(tmp_path / "data" / "models")
    sound, damaged = listed["models"]
    assert (sound["model"], sound["problem"]) == ("a", None)
    assert damaged["model"] == "b"
    assert "config.json is missing" in damaged["problem"]
    lines = run("list", *where).stdout.splitlines()
    assert lines[0].startswith("a    2 layers")
    assert lines[1].startswith("b  damaged: ")


def test_error_is_raised_for_the_caller_to_map(tmp_path: Path) -> None:
    result = run("import", tmp_path / "nowhere", "--data-dir", tmp_path)
    assert isinstance(result.exception, ConfigError)
    assert result.stdout == ""


def test_torch_is_not_imported_by_import_and_list(gguf: Path, tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from shardp2p.cli.model import app\n"
        "for arguments in (['import', sys.argv[1]], ['list']):\n"
        "    app([*arguments, '--data-dir', sys.argv[2]], standalone_mode=False)\n"
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))\n"
    )
    subprocess.run([sys.executable, "-c", code, str(gguf), str(tmp_path / "data")], check=True, capture_output=True)


def test_progress_shows_nothing_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar() as report:
        report("working", 0, 0)
        report("working", 1, 2)
    assert capsys.readouterr() == ("", "")


def test_progress_draws_the_latest_step_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar() as report:
        report("downloading", 0, 0)
        report("converting", 1, 2)
    written = capsys.readouterr()
    assert written.out == ""
    assert "converting" in written.err
