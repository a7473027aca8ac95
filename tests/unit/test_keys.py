"""An identity survives restarts, stays private and is used by one process at a time."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.peer.id import ID

from shardp2p.errors import ConfigError
from shardp2p.identity.keys import Identity, hold, load_or_create
from shardp2p.identity.private_file import write_private

SEED = bytes(range(32))


@settings(deadline=None, derandomize=True)
@given(st.binary(min_size=32, max_size=32))
def test_peer_id_equals_that_of_libp2p(seed: bytes) -> None:
    assert Identity.from_seed(seed).peer_id == ID.from_pubkey(create_new_key_pair(seed).public_key).to_base58()


def test_known_seed_has_known_peer_id() -> None:
    assert Identity.from_seed(SEED).peer_id == "12D3KooWA4Xop1JaT3MHxwYMkCepYsv4iPVopMXwCz5iHYdBfeSB"


def test_repr_does_not_show_the_key() -> None:
    assert repr(Identity.from_seed(SEED)) == "Identity()"


def test_identity_is_made_once_and_kept_privately(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "identity.key"
    first = load_or_create(path)
    assert load_or_create(path).peer_id == first.peer_id
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["identity.key"]


def test_an_existing_key_is_never_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "identity.key"
    winner = Identity.from_seed(SEED)
    monkeypatch.setattr(Identity, "generate", classmethod(lambda cls: _made_meanwhile(path, winner)))
    assert load_or_create(path).peer_id == winner.peer_id


def _made_meanwhile(path: Path, winner: Identity) -> Identity:
    from shardp2p.identity import keys

    keys._create(path, winner)
    return Identity.from_seed(bytes(32))


def test_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    load_or_create(path)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match=f"chmod 600 {path}"):
        load_or_create(path)


@pytest.mark.parametrize("size", [1, 4, 5, 36, 67])
def test_truncated_key_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "identity.key"
    load_or_create(path)
    os.truncate(path, size)
    with pytest.raises(ConfigError, match="wrong length"):
        load_or_create(path)


@pytest.mark.parametrize("content", [b"", b"-----BEGIN PRIVATE KEY-----\n", bytes(68), b"\xff" * 68])
def test_file_that_is_no_key_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "identity.key"
    path.touch(mode=0o600)
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="holds no Ed25519 key"):
        load_or_create(path)


def test_damaged_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    load_or_create(path)
    content = bytearray(path.read_bytes())
    content[10] ^= 1
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="damaged"):
        load_or_create(path)


def test_directory_in_place_of_the_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the identity"):
        load_or_create(tmp_path)


def test_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot (make|read) the identity"):
        load_or_create(tmp_path / "file" / "identity.key")


def test_identity_is_held_once_and_free_again_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    already_held = rf"\(pid {os.getpid()}\) already runs with the identity {path}"
    with hold(path), pytest.raises(ConfigError, match=already_held), hold(path):
        pass
    with hold(path):
        pass


def test_identity_is_held_without_a_pid_where_the_disk_is_full(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        with hold(path), pytest.raises(ConfigError, match=r"\(pid unknown\) already runs"), hold(path):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_identity_that_a_full_disk_cannot_take_leaves_nothing_and_says_so(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        for write in (load_or_create, lambda path: write_private(path, b"data")):
            with pytest.raises(ConfigError, match="File too large; free some space there") as caught:
                write(tmp_path / "identity.key")
            assert "writable" not in caught.value.message
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", [Path(), Path("/")])
def test_identity_in_no_file_is_refused(path: Path) -> None:
    with pytest.raises(ConfigError, match="is a directory; name a file"), hold(path):
        pass


def test_second_process_with_the_same_identity_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    program = (
        "import sys\nfrom pathlib import Path\nfrom shardp2p.identity.keys import hold\n"
        "with hold(Path(sys.argv[1])):\n    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        with pytest.raises(ConfigError, match=rf"\(pid {child.pid}\)"), hold(path):
            pass
        child.kill()
        child.wait()
    with hold(path):
        pass
