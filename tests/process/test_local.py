"""A running peer answers the other commands of its user, and nobody else's."""

from __future__ import annotations

import socket
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

from shardp2p.cli.swarm_views import digest_of
from shardp2p.errors import ConfigError, OverloadedError, PeerUnavailableError
from shardp2p.gateway import local
from shardp2p.gateway.local import MAX_REQUEST_BYTES, SUFFIX, ask_local, ask_running, open_local, running_peers
from shardp2p.vocabulary import PeerId

PEER = PeerId("12D3KooWFtqdxpkN5ijFFQxXAE8NG2gkDfT3k14rHYYjUMEkdBEb")


async def echo(request: Mapping[str, Any]) -> Any:
    return {"said": request.get("word")}


async def refuse(_: Mapping[str, Any]) -> Any:
    raise OverloadedError("too many ask; try again in a second")


ANSWERS = {"echo": echo, "refuse": refuse}


@pytest.fixture
def directory() -> Iterator[Path]:
    """One whose path is short enough for a socket that a test opens itself."""
    with tempfile.TemporaryDirectory(prefix="s") as path:
        yield Path(path)


async def ask(directory: Path, what: str, **arguments: Any) -> Any:
    return await trio.to_thread.run_sync(lambda: ask_local(directory, PEER, what, **arguments))


@pytest.mark.parametrize("depth", [1, 9])
async def test_answers_whoever_runs_as_this_user(tmp_path: Path, depth: int) -> None:
    directory = tmp_path.joinpath(*["a directory of some length"] * depth)
    async with open_local(directory, PEER, ANSWERS):
        assert running_peers(directory) == (PEER,)
        assert await ask(directory, "echo", word="grüße") == {"said": "grüße"}
        mode = (directory / f"{PEER}{SUFFIX}").stat().st_mode
        assert stat.S_IMODE(mode) == 0o600
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert running_peers(directory) == ()
    assert list(directory.iterdir()) == []


async def test_an_error_comes_back_as_its_line(directory: Path) -> None:
    async with open_local(directory, PEER, ANSWERS):
        with pytest.raises(ConfigError, match="try again in a second"):
            await ask(directory, "refuse")
        with pytest.raises(ConfigError, match="another version"):
            await ask(directory, "something new")


@pytest.mark.parametrize("how", ["alone", "in a group"])
async def test_a_bug_is_told_and_harms_nobody(directory: Path, how: str) -> None:
    async def fail(_: Mapping[str, Any]) -> Any:
        error = UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates")
        raise ExceptionGroup("both", [error, OverloadedError("no room")]) if how == "in a group" else error

    async def cannot_be_said(_: Mapping[str, Any]) -> Any:
        return {1, 2}

    async with open_local(directory, PEER, ANSWERS | {"fail": fail, "set": cannot_be_said}):
        for what in ("fail", "set"):
            with pytest.raises(ConfigError, match="which is a bug"):
                await ask(directory, what)
        assert await ask(directory, "echo", word="still here") == {"said": "still here"}


async def test_errors_of_several_tasks_come_back_as_the_first(directory: Path) -> None:
    async def fail(_: Mapping[str, Any]) -> Any:
        async with trio.open_nursery():
            raise OverloadedError("no room")

    async with open_local(directory, PEER, {"fail": fail}):
        with pytest.raises(ConfigError, match="no room"):
            await ask(directory, "fail")


@pytest.mark.parametrize("digest", ["zz\ud800", "a" * 63, "A" * 64, 5, ["x"]])
def test_only_a_digest_is_asked_of_the_directory(digest: Any) -> None:
    assert digest_of({}) is None
    assert digest_of({"digest": "ab" * 32}) == "ab" * 32
    with pytest.raises(ConfigError, match="64 hexadecimal digits"):
        digest_of({"digest": digest})


async def test_a_socket_that_a_killed_peer_left_is_no_running_peer_and_is_replaced(directory: Path) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(directory / f"{PEER}{SUFFIX}"))
    left.close()
    assert running_peers(directory) == ()
    with pytest.raises(PeerUnavailableError, match="does not answer"):
        await ask(directory, "echo")
    async with open_local(directory, PEER, ANSWERS):
        assert await ask(directory, "echo", word="again") == {"said": "again"}


async def test_peers_that_hang_do_not_hide_the_others(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def status(_: Mapping[str, Any]) -> Any:
        return {"peer_id": PEER}

    monkeypatch.setattr(local, "STATUS_S", 0.2)
    with socket.socket(socket.AF_UNIX) as hangs, socket.socket(socket.AF_UNIX) as is_full:
        for listener, name in ((hangs, "hangs"), (is_full, "is full")):
            listener.bind(str(directory / f"{name}{SUFFIX}"))
            listener.listen(16 if listener is hangs else 0)
        with socket.socket(socket.AF_UNIX) as other:
            other.connect(str(directory / f"is full{SUFFIX}"))
            async with open_local(directory, PEER, {"status": status}):
                told = await trio.to_thread.run_sync(ask_running, directory)
    assert told.answers == {PEER: {"peer_id": PEER}}
    assert sorted(told.silent) == ["hangs", "is full"]
    assert all("does not answer within 0 s: it hangs" in reason for reason in told.silent.values())


@pytest.mark.parametrize(
    "garbage", [b"\n", b"\xff\xfe\n", b"[]\n", b'{"ask": []}\n', b"[" * 60_000 + b"\n", b"x" * MAX_REQUEST_BYTES]
)
async def test_garbage_is_answered_and_harms_nobody(directory: Path, garbage: bytes) -> None:
    async with open_local(directory, PEER, ANSWERS):
        stream = await trio.open_unix_socket(str(directory / f"{PEER}{SUFFIX}"))
        async with stream:
            await stream.send_all(garbage)
            assert b"another version" in await stream.receive_some()
        assert await ask(directory, "echo", word="still here") == {"said": "still here"}


async def test_a_command_that_goes_away_harms_nobody(directory: Path) -> None:
    async with open_local(directory, PEER, ANSWERS):
        for sent in (b"", b'{"ask": "ec', b'{"ask": "echo"}\n'):
            stream = await trio.open_unix_socket(str(directory / f"{PEER}{SUFFIX}"))
            await stream.send_all(sent)
            await stream.aclose()
        assert await ask(directory, "echo", word="still here") == {"said": "still here"}


async def test_a_place_where_no_socket_can_be_says_so(directory: Path) -> None:
    (directory / "file").touch()
    with pytest.raises(ConfigError, match="cannot listen for this machine's commands"):
        async with open_local(directory / "file", PEER, ANSWERS):
            pass


async def test_a_peer_that_is_told_to_end_leaves_no_socket(directory: Path) -> None:
    with trio.CancelScope() as scope:
        async with open_local(directory, PEER, {}):
            assert await trio.to_thread.run_sync(running_peers, directory) == (PEER,)
            scope.cancel()
            await trio.sleep_forever()
    assert not await trio.Path(directory / f"{PEER}{SUFFIX}").exists()
