"""`shardp2p swarm` and what it leaves on disk, up to two peers that join by its token."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from shardp2p.cli.process_title import hide_argument
from shardp2p.cli.swarm import app, parse_lifetime
from shardp2p.cli.up_swarm import find_swarm, make_offer
from shardp2p.config import UpSettings, default_paths
from shardp2p.errors import ConfigError
from shardp2p.identity.join import PREFIX, OpenSwarm, parse_join, read_join
from shardp2p.identity.joined import JoinedSwarms
from shardp2p.identity.owned import OwnedSwarms
from shardp2p.identity.token import Invite
from shardp2p.vocabulary import LayerRange, ModelId
from tests.support.members import peer
from tests.support.models import smollm2_directory

ADDRESS = f"/ip4/192.0.2.7/tcp/4001/p2p/{peer(1).peer_id}"


def run(data_dir: Path, *arguments: str) -> Result:
    command, *rest = arguments
    return CliRunner().invoke(app, [command, "--data-dir", str(data_dir), *rest])


def object_of(data_dir: Path, *arguments: str) -> Any:
    result = run(data_dir, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def error_of(data_dir: Path, *arguments: str) -> str:
    result = run(data_dir, *arguments)
    assert isinstance(result.exception, ConfigError)
    return result.exception.message


def token_of(data_dir: Path, *arguments: str) -> Invite:
    made = parse_join(run(data_dir, "invite", *arguments).stdout)
    assert isinstance(made, Invite)
    return made


def test_create_makes_a_private_key_and_says_the_id(tmp_path: Path) -> None:
    made = object_of(tmp_path, "create", "lab")
    key = Path(made["directory"]) / "owner.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert (made["name"], made["is_open"]) == ("lab", False)
    assert made["swarm"].startswith("12D3KooW")
    assert object_of(tmp_path, "show") == {**made, "invites": [], "revoked": []}
    assert "already" in error_of(tmp_path, "create", "lab")


@pytest.mark.parametrize("name", ["", "Lab", "a b", "../x", "-x", "a" * 65])
def test_name_that_is_no_directory_name_is_refused(tmp_path: Path, name: str) -> None:
    assert "no name of a swarm" in error_of(tmp_path, "create", "--", name)


def test_invite_gives_a_token_with_its_limits(tmp_path: Path) -> None:
    swarm = object_of(tmp_path, "create", "lab")["swarm"]
    limits = ("--role", "client", "--uses", "3", "--expires", "7d", "--for", peer(2).peer_id)
    made = token_of(tmp_path, "--peer", ADDRESS, *limits)
    grant = made.grant
    assert (grant.swarm, grant.name, made.peers) == (swarm, "lab", (ADDRESS,))
    assert (grant.role, grant.uses, grant.bound_to) == ("client", 3, peer(2).peer_id)
    assert grant.expires_at_s - grant.issued_at_s == 7 * 86400
    (listed,) = object_of(tmp_path, "show", "lab")["invites"]
    assert (listed["id"], listed["role"], listed["uses"]) == (grant.invite_id, "client", 3)
    assert made.seed.hex() not in json.dumps(listed)


def test_token_in_a_file_is_private_and_nowhere_else(tmp_path: Path) -> None:
    object_of(tmp_path, "create", "lab")
    file = tmp_path / "token"
    result = run(tmp_path, "invite", "--peer", ADDRESS, "--out", str(file))
    assert PREFIX not in result.output
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert isinstance(read_join(str(file)), Invite)
    for taken in (file, tmp_path):
        assert "exists already" in error_of(tmp_path, "invite", "--out", str(taken))
    assert "cannot write" in error_of(tmp_path, "invite", "--out", "/proc/token")
    elsewhere = tmp_path / "elsewhere"
    assert "lifetime" in error_of(tmp_path, "invite", "--out", str(elsewhere), "--expires", "soon")
    assert not elsewhere.exists()
    assert len(object_of(tmp_path, "show", "lab")["invites"]) == 1  # of what could not be handed out nothing is listed
    secret = read_join(str(file)).seed.hex()  # type: ignore[union-attr]
    assert not any(secret in path.read_text("ascii", "replace") for path in tmp_path.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--peer", "/ip4/192.0.2.7/tcp/4001"), "is no peer's address"),
        (("--peer", f"/ip4/192.0.2/tcp/4001/p2p/{peer(1).peer_id}"), "is no multiaddr"),
        (("--peer", "/ip4/192.0.2.7/tcp/4001/p2p/12D3KooWx"), "does not end with a peer id"),
        (("--peer", ADDRESS.replace("/4001/", "/0/")), "dialled from nowhere"),
        (("--peer", ADDRESS.replace("192.0.2.7", "0.0.0.0")), "dialled from nowhere"),
        (("--peer", f"/p2p/{peer(2).peer_id}/p2p-circuit/p2p/{peer(1).peer_id}"), "write it like"),
        (("--peer", f"{ADDRESS}/p2p-circuit/p2p/{peer(1).peer_id}"), "as the relay and as who is behind it"),
        (("--peer", f"{ADDRESS}/p2p-circuit/p2p/{peer(2).peer_id}/p2p-circuit/p2p/{peer(3).peer_id}"), "no peer id"),
        (("--peer", ADDRESS) * 17, "too many"),
        (("--expires", "soon"), "is no lifetime"),
        (("--role", "king"), "must be one of member, client"),
        (("--for", "me"), "no peer id"),
        (("--uses", "5000"), "--uses"),
        (("nope",), "own no swarm 'nope'; yours: lab"),
    ],
)
def test_invite_says_what_is_wrong_and_lists_nothing(tmp_path: Path, arguments: tuple[str, ...], reason: str) -> None:
    object_of(tmp_path, "create", "lab")
    assert reason in error_of(tmp_path, "invite", *arguments)
    assert object_of(tmp_path, "show")["invites"] == []


def test_open_swarm_has_a_join_text_and_nothing_to_revoke(tmp_path: Path) -> None:
    made = object_of(tmp_path, "create", "pub", "--open")
    text = run(tmp_path, "invite", "--peer", ADDRESS).stdout
    assert parse_join(text) == OpenSwarm(made["swarm"], "pub", (ADDRESS,))
    assert "is open" in error_of(tmp_path, "revoke", peer(2).peer_id)


def test_of_several_swarms_one_must_be_named(tmp_path: Path) -> None:
    assert "shardp2p swarm create NAME" in error_of(tmp_path, "show")
    for name in ("lab", "pub"):
        object_of(tmp_path, "create", name)
    assert "lab, pub" in error_of(tmp_path, "show")
    assert object_of(tmp_path, "show", "pub")["name"] == "pub"


def test_revoked_invite_and_peer_are_shown_and_kept_for_peers(tmp_path: Path) -> None:
    object_of(tmp_path, "create", "lab")
    invite = token_of(tmp_path)
    joined = JoinedSwarms(default_paths(tmp_path).swarms_dir)
    now_s = time.time()
    running = joined.join(token_of(tmp_path), peer(3), now_s).membership
    assert running is not None
    running.admit(invite.claim(peer(2), now_s), peer(2).peer_id, now_s)
    object_of(tmp_path, "revoke", invite.grant.invite_id)
    object_of(tmp_path, "revoke", peer(4).peer_id)
    shown = object_of(tmp_path, "show")
    assert [entry["is_revoked"] for entry in shown["invites"]] == [True, False]
    assert {entry["revoked"] for entry in shown["revoked"]} == {invite.grant.invite_id, peer(4).peer_id}
    assert joined.refresh(running, now_s) == 2
    assert joined.refresh(running, now_s) == 0
    assert running.ended([peer(2).peer_id], now_s) == ((peer(2).peer_id, "revoked"),)
    assert len(running.pending()) == 2
    assert "neither the id of an invite nor of a peer" in error_of(tmp_path, "revoke", "abc")
    assert "no invite 0123456789abcdef" in error_of(tmp_path, "revoke", "0123456789abcdef")


def test_peer_that_joined_needs_the_token_no_more(tmp_path: Path) -> None:
    object_of(tmp_path / "owner", "create", "lab")
    invite = token_of(tmp_path / "owner", "--peer", ADDRESS, "--uses", "1")
    joined, now_s = JoinedSwarms(tmp_path / "swarms"), time.time()
    assert joined.remembered(peer(2).peer_id, now_s) == ()
    first = joined.join(invite, peer(2), now_s).membership
    again = joined.join(invite, peer(2), now_s + 100).membership
    (remembered,) = joined.remembered(peer(2).peer_id, now_s + 200)
    assert first is not None
    assert again is not None
    assert remembered.membership is not None
    assert first.proof == again.proof == remembered.membership.proof
    assert (remembered.name, remembered.peers) == ("lab", (ADDRESS,))
    assert joined.remembered(peer(3).peer_id, now_s) == ()
    joined.leave(remembered.swarm, peer(2).peer_id)
    assert joined.remembered(peer(2).peer_id, now_s) == ()


def test_what_a_peer_heard_of_revocations_outlives_it(tmp_path: Path) -> None:
    object_of(tmp_path / "owner", "create", "lab")
    invite = token_of(tmp_path / "owner")
    object_of(tmp_path / "owner", "revoke", peer(9).peer_id)
    heard = JoinedSwarms(default_paths(tmp_path / "owner").swarms_dir).revocations(invite.grant.swarm)
    joined, now_s = JoinedSwarms(tmp_path / "swarms"), time.time()
    running = joined.join(invite, peer(2), now_s).membership
    assert running is not None
    assert running.receive(heard[0], now_s)
    joined.keep(running)
    joined.keep(running)
    file = tmp_path / "swarms" / invite.grant.swarm / "revocations"
    assert len(file.read_text().splitlines()) == 1
    with file.open("a") as lines:
        lines.write("AQID\nnonsense!\nAQ")  # a wrong one, a damaged one, one that was cut short
    with pytest.raises(ConfigError, match="the swarm's owner revoked it"):
        joined.join(invite, peer(9), now_s)
    assert joined.join(invite, peer(2), now_s).membership.statements() == heard  # type: ignore[union-attr]


def test_damaged_file_says_which_and_what_to_do(tmp_path: Path) -> None:
    object_of(tmp_path, "create", "lab")
    invite = token_of(tmp_path)
    directory = default_paths(tmp_path).swarms_dir
    joined = JoinedSwarms(directory)
    joined.join(invite, peer(2), time.time())
    (directory / invite.grant.swarm / f"{peer(2).peer_id}.json").write_text("{}")
    with pytest.raises(ConfigError, match="join again with --join"):
        joined.remembered(peer(2).peer_id, time.time())
    (directory / "lab" / "invites.jsonl").write_text("[]\n")
    assert "is damaged" in error_of(tmp_path, "show")
    (directory / "lab" / "swarm.json").write_text("{}")
    assert "restore it from a backup" in error_of(tmp_path, "show")


def test_owner_joins_by_the_swarms_name(tmp_path: Path) -> None:
    made = object_of(tmp_path, "create", "lab")
    pub = object_of(tmp_path, "create", "pub", "--open")
    owned = OwnedSwarms(default_paths(tmp_path).swarms_dir)
    own = owned.read_join("lab", peer(1), time.time())
    assert isinstance(own, Invite)
    assert (own.grant.swarm, own.grant.bound_to) == (made["swarm"], peer(1).peer_id)
    assert owned.read_join("pub", peer(1), time.time()) == OpenSwarm(pub["swarm"], "pub", ())
    assert object_of(tmp_path, "show", "lab")["invites"] == []
    text = run(tmp_path, "invite", "lab").stdout.strip()
    assert owned.read_join(text, peer(1), time.time()) == parse_join(text)
    with pytest.raises(ConfigError, match="--join is neither"):
        owned.read_join("nothing-of-that-name", peer(1), time.time())


@pytest.mark.parametrize(("text", "lifetime_s"), [("30m", 1800), ("12h", 43200), ("7d", 604800), ("1y", 31536000)])
def test_lifetime_is_a_number_and_a_unit(text: str, lifetime_s: float) -> None:
    assert parse_lifetime(text) == lifetime_s


@pytest.mark.parametrize("text", ["", "7", "d", "0d", "-1d", "1.5d", "11y", "7 d", "٣d", "1" * 30 + "d"])
def test_other_lifetimes_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no lifetime"):
        parse_lifetime(text)


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="only Linux lets a process change what ps shows")
def test_token_on_the_command_line_vanishes_from_the_list_of_processes() -> None:
    program = (
        "import sys; from pathlib import Path; from shardp2p.cli.process_title import hide_argument; "
        "print(hide_argument(sys.argv[1]), hide_argument('ab'+'sent'), sys.argv[1]); "
        "print(Path('/proc/self/cmdline').read_bytes().decode())"
    )
    secret = f"{PREFIX}very-secret"
    result = subprocess.run(
        [sys.executable, "-c", program, secret, "last"], check=True, capture_output=True, text=True, env=os.environ
    )
    first, shown = result.stdout.splitlines()
    assert first == f"True False {secret}"
    assert secret not in shown
    assert shown.endswith(f"\0{'*' * len(secret)}\0last\0")


def test_nothing_is_hidden_where_there_is_nothing() -> None:
    assert not hide_argument("")


@pytest.mark.parametrize("is_remembered", [False, True])
def test_client_cannot_serve_and_is_told_what_it_can_do(tmp_path: Path, is_remembered: bool) -> None:
    object_of(tmp_path / "owner", "create", "lab")
    token = run(tmp_path / "owner", "invite", "--role", "client").stdout.strip()
    paths = default_paths(tmp_path)
    if is_remembered:
        JoinedSwarms(paths.swarms_dir).join(parse_join(token), peer(2), time.time())
    with pytest.raises(ConfigError, match=r"is for a client.*shardp2p generate.*--role member"):
        find_swarm(None if is_remembered else token, peer(2), paths, serves=True)
    remembered = JoinedSwarms(paths.swarms_dir).remembered(peer(2).peer_id, time.time())
    assert len(remembered) == is_remembered
    assert find_swarm(None, peer(2), paths, serves=False) is not None or not is_remembered


def test_layers_beyond_the_model_are_refused_before_anything_is_joined(tmp_path: Path) -> None:
    (tmp_path / "models").symlink_to(smollm2_directory().parent, target_is_directory=True)
    settings = UpSettings(model=ModelId("smollm2"), layers=LayerRange(0, 99))
    with pytest.raises(ConfigError, match="which has 30 layers: 0:30 are all"):
        make_offer(settings, default_paths(tmp_path))
