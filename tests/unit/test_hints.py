"""Hints go on with the data directory that was given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shardp2p.cli.hints import hinted, note_data_dir, parse_data_dir
from shardp2p.cli.main import run


@pytest.fixture(autouse=True)
def nothing_given() -> Iterator[None]:
    note_data_dir(None)  # whatever commands of other tests in this process were given
    yield
    note_data_dir(None)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("none; make one: shardp2p swarm create NAME", "none; make one: shardp2p swarm create NAME --data-dir 'a b'"),
        ("start one with `shardp2p up --join X`", "start one with `shardp2p up --join X --data-dir 'a b'`"),
        ("shardp2p generate toy Hello", "shardp2p generate toy Hello --data-dir 'a b'"),
        ("as its `shardp2p up` prints it", "as its `shardp2p up` prints it"),
        (
            "next: shardp2p swarm invite home --peer X, with",
            "next: shardp2p swarm invite home --peer X --data-dir 'a b', with",
        ),
        ("see: shardp2p bench loopback", "see: shardp2p bench loopback"),
    ],
)
def test_commands_to_run_here_have_the_directory_and_others_do_not(text: str, wanted: str) -> None:
    assert hinted(text) == text
    note_data_dir(Path("a b"))
    assert hinted(text) == wanted


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        (["swarm", "invite"], "make one: shardp2p swarm create NAME --data-dir {}"),
        (["status"], "start one: shardp2p up --join TOKEN|FILE --data-dir {}"),
        (["generate", "toy", "Hello"], "import one: shardp2p model import SOURCE --data-dir {}"),
        (["generate", "smollm2", "Hello"], "import one: shardp2p model import smollm2 --data-dir {}"),
    ],
)
def test_every_command_that_takes_a_directory_repeats_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str], hint: str
) -> None:
    assert run([*command, "--data-dir", str(tmp_path)]) in (2, 3)
    line = capsys.readouterr().err
    assert hint.format(tmp_path) in line
    assert run([*command[:1], "--help"]) == 0  # which is given none
    assert hinted("see: shardp2p status") == "see: shardp2p status"


def test_a_peer_that_may_not_start_leaves_no_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["up", "--data-dir", str(tmp_path)]) == 2
    assert "this peer is in no swarm: join one" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert run(["generate", "toy", "Hello", "--data-dir", str(tmp_path), "--peer", "foo"]) == 2
    assert "--peer 'foo' is no multiaddr" in (said := capsys.readouterr().err)
    assert said.endswith("write it like /ip4/192.0.2.7/tcp/4001/p2p/PEER-ID\n")


@pytest.mark.parametrize(("role", "use"), [("member", "join with: shardp2p up"), ("client", "ask with: shardp2p gen")])
def test_an_invite_says_what_it_is_good_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], role: str, use: str
) -> None:
    place = ("--data-dir", str(tmp_path))
    assert run(["swarm", "create", "home", *place]) == 0
    assert run(["swarm", "invite", "home", "--role", role, "--out", str(tmp_path / "token"), *place]) == 0
    assert f"{tmp_path / 'token'}; {use}" in capsys.readouterr().out


def test_an_empty_data_directory_is_not_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_data_dir("a") == Path("a")
    assert run(["peers", "--data-dir", ""]) == 2
    assert capsys.readouterr().err == "shardp2p: error: --data-dir is empty; name a directory, or leave it out\n"
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_no_data_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a file"
    file.touch()
    assert run(["model", "list", "--data-dir", str(file)]) == 2
    said = f"shardp2p: error: --data-dir {file} is a file; name a directory, which may be new\n"
    assert capsys.readouterr().err == said
