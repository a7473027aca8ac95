"""`shardp2p swarm`: make a swarm, invite peers to it, take invites back, and see what was given out."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, cast, get_args

import typer

from shardp2p.cli.hints import hinted
from shardp2p.cli.options import AsJson, DataDir
from shardp2p.cli.output import note, write_json
from shardp2p.config import Paths, load_settings, user_path
from shardp2p.errors import ConfigError
from shardp2p.identity.join import OpenSwarm, check_peer_address, write_join
from shardp2p.identity.joined import JoinedSwarms
from shardp2p.identity.keys import peer_id_of, public_bytes_of
from shardp2p.identity.owned import IssuedInvite, OwnedSwarm, OwnedSwarms
from shardp2p.identity.private_file import write_private
from shardp2p.identity.revocation import RevocationList
from shardp2p.identity.token import CLOCK_GRACE_S, InviteId, Role, invite_id_of
from shardp2p.vocabulary import PeerId

app = typer.Typer(name="swarm", help="Make a swarm, invite peers, take invites back.", no_args_is_help=True)

Name = Annotated[str | None, typer.Argument(help="Which of your swarms; needless if you have one.", show_default=False)]

_UNITS: Final = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400, "y": 365 * 86400}
_LIFETIME = re.compile(r"([0-9]{1,9})([mhdwy])")
_LONGEST_S: Final = 10 * _UNITS["y"]


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="What you call it: lower-case letters, digits, - and _.")],
    is_open: Annotated[bool, typer.Option("--open", help="Anybody who knows where it is may join.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Make a swarm: its owner's key stays here, and the key's peer id is the swarm's id."""
    swarm = OwnedSwarms(_paths(data_dir).swarms_dir).create(name, is_open=is_open)
    if as_json:
        write_json(_summary(swarm))
        return
    kind = "open to anybody" if is_open else "private"
    typer.echo(f"{name} is made: {swarm.swarm}, {kind}; its key lies in {swarm.directory}, keep a copy of it")
    note(hinted(f"next: shardp2p swarm invite {name} --peer MULTIADDR, with the address of a peer that is up"))


@app.command()
def invite(
    name: Name = None,
    peers: Annotated[
        list[str] | None,
        typer.Option("--peer", metavar="MULTIADDR", help="A peer to dial first, as it prints it; repeat for more."),
    ] = None,
    role: Annotated[str, typer.Option("--role", help="member: serves and asks. client: only asks.")] = "member",
    expires: Annotated[
        str,
        typer.Option(
            "--expires",
            metavar="TIME",
            help="How long it, and what joins by it, counts: 12h, 7d, 1y. Clocks may be ten minutes off.",
        ),
    ] = "30d",
    uses: Annotated[int, typer.Option("--uses", min=0, help="For so many peers; 0: for any number.")] = 0,
    bound_to: Annotated[str | None, typer.Option("--for", metavar="PEER_ID", help="For this peer alone.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Write the token to this file, not to stdout.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Make a token by which peers join. Whoever has it can join, so hand it out as you would a password."""
    swarm = OwnedSwarms(_paths(data_dir).swarms_dir).find(name)
    addresses = _addresses(peers or [])
    # Before an invite is listed: a token that cannot be written, or has no place, was not made.
    text = write_join(OpenSwarm(swarm.swarm, swarm.name, addresses))
    details: dict[str, Any] = {}
    with _place_for(out):
        if not swarm.is_open:
            made = swarm.invite(
                time.time(),
                parse_lifetime(expires),
                role=_role(role),
                uses=uses,
                bound_to=None if bound_to is None else peer_id_of(public_bytes_of(PeerId(bound_to))),
                peers=addresses,
            )
            details = _described(IssuedInvite.of(made.grant), is_revoked=False)
            text = write_join(made)
        if out is not None:
            write_private(user_path(out), f"{text}\n".encode("ascii"))
    if not addresses:
        note("no peer is in it: whoever joins must name one with --peer, or find one on the local network")
    if as_json:
        where = {"token": text} if out is None else {"file": str(user_path(out))}
        write_json({**_head(swarm), **details, "peers": addresses, **where})
    else:
        typer.echo(text if out is None else f"the token is in {user_path(out)}; {_use(details)} --join {out}")


@contextmanager
def _place_for(out: Path | None) -> Iterator[None]:
    """The file, empty at first; gone again when nothing comes of it. Raises: ConfigError when it cannot be made."""
    if out is None:
        yield
        return
    path = user_path(out)
    write_private(path, b"", may_replace=False)
    try:
        yield
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _use(details: Mapping[str, Any]) -> str:
    """What an invite is good for."""
    is_to_ask = details.get("role") == "client"
    return "ask with: shardp2p generate MODEL PROMPT" if is_to_ask else "join with: shardp2p up"


@app.command()
def revoke(
    what: Annotated[str, typer.Argument(help="An invite's id, or a peer id.")],
    name: Name = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Take back an invite with all that joined by it, or shut out one peer."""
    paths = _paths(data_dir)
    swarm = OwnedSwarms(paths.swarms_dir).find(name)
    kind = swarm.revoke(what, time.time(), JoinedSwarms(paths.swarms_dir))
    if as_json:
        write_json({**_head(swarm), "kind": kind, "revoked": what})
        return
    what_else = "; revoke its invite too, or it comes back under another key" if kind == "peer" else ""
    typer.echo(f"the {kind} {what} is revoked{what_else}")
    run_one = f"run one on this machine, if none does: shardp2p up --join {swarm.name}"
    note(hinted(f"the swarm hears of it from your peers: {run_one}"))


@app.command()
def show(name: Name = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show a swarm's id, the invites that were made here, and what was revoked."""
    paths = _paths(data_dir)
    swarm = OwnedSwarms(paths.swarms_dir).find(name)
    revocations = _revocations(swarm, paths)
    revoked_ids = {invite_id_of(found.public) for found in revocations.revocations() if found.kind == "invite"}
    invites = [_described(made, is_revoked=InviteId(made.id) in revoked_ids) for made in swarm.invites()]
    revoked = [
        {
            "kind": found.kind,
            "revoked": invite_id_of(found.public) if found.kind == "invite" else peer_id_of(found.public),
            "revoked_at_s": found.revoked_at_s,
        }
        for found in revocations.revocations()
    ]
    if as_json:
        write_json({**_summary(swarm), "invites": invites, "revoked": revoked})
        return
    typer.echo(f"{swarm.name}  {swarm.swarm}  {'open' if swarm.is_open else 'private'}  {swarm.directory}")
    for made in invites:
        typer.echo(_invite_line(made))
    for entry in revoked:
        typer.echo(f"revoked {entry['kind']} {entry['revoked']} on {_day(int(entry['revoked_at_s']))}")


def parse_lifetime(text: str) -> float:
    """The seconds that `7d` or `12h` stand for. Raises: ConfigError."""
    found = _LIFETIME.fullmatch(text)
    lifetime_s = int(found[1]) * _UNITS[found[2]] if found else 0
    if not 0 < lifetime_s <= _LONGEST_S:
        raise ConfigError(f"{text[:40]!r} is no lifetime; write 30m, 12h, 7d, 4w or 1y, at most 10y")
    return float(lifetime_s)


def _paths(data_dir: Path | None) -> Paths:
    return load_settings(data_dir=data_dir).paths


def _addresses(peers: list[str]) -> tuple[str, ...]:
    from shardp2p.host.addresses import CircuitAddress, parse_address

    for text in peers:
        check_peer_address(text)
        address = parse_address(text)
        dialled = address.relay if isinstance(address, CircuitAddress) else address
        if dialled.port == 0 or dialled.host in ("0.0.0.0", "::"):
            raise ConfigError(f"{text} can be dialled from nowhere; name the address that the peer prints")
        if dialled is not address and dialled.peer == address.peer:
            raise ConfigError(f"{text} names one peer as the relay and as who is behind it; name {dialled}")
    return tuple(peers)


def _role(text: str) -> Role:
    if text not in get_args(Role):
        raise ConfigError(f"the role is {text[:40]!r}; it must be one of {', '.join(get_args(Role))}")
    return cast(Role, text)


def _revocations(swarm: OwnedSwarm, paths: Paths) -> RevocationList:
    found = RevocationList(swarm.swarm)
    for statement in JoinedSwarms(paths.swarms_dir).revocations(swarm.swarm):
        found.receive(statement[1:])
    return found


def _head(swarm: OwnedSwarm) -> dict[str, Any]:
    return {"name": swarm.name, "swarm": swarm.swarm, "is_open": swarm.is_open}


def _summary(swarm: OwnedSwarm) -> dict[str, Any]:
    return {**_head(swarm), "directory": str(swarm.directory)}


def _described(made: IssuedInvite, *, is_revoked: bool) -> dict[str, Any]:
    """What --json says about an invite. Its secret is nowhere but in the token."""
    return {
        "id": made.id,
        "role": made.role,
        "issued_at_s": made.issued_at_s,
        "expires_at_s": made.expires_at_s,
        "uses": made.uses or None,
        "for": made.bound_to,
        "is_expired": time.time() > made.expires_at_s + CLOCK_GRACE_S,
        "is_revoked": is_revoked,
    }


def _invite_line(made: dict[str, Any]) -> str:
    state = "revoked" if made["is_revoked"] else "expired" if made["is_expired"] else "open"
    limit = f"for {made['for']}" if made["for"] else f"for {made['uses']} peers" if made["uses"] else "for any number"
    return f"invite {made['id']}  {made['role']:<6}  {state:<7}  until {_day(made['expires_at_s'])}  {limit}"


def _day(unix_s: int) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
