"""The swarms that this user owns: for each a directory with its key, and which invites were made.

swarms/NAME/owner.key      the key whose peer id is the swarm's id
swarms/NAME/swarm.json     whether it is open
swarms/NAME/invites.jsonl  every invite without its secret, one in a line
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from shardp2p.errors import ConfigError
from shardp2p.identity.join import PREFIX, Join, OpenSwarm, read_join
from shardp2p.identity.joined import JoinedSwarms
from shardp2p.identity.keys import Identity, load_or_create, public_bytes_of
from shardp2p.identity.membership import revocation_statement
from shardp2p.identity.private_file import append_lines, read_lines, write_private
from shardp2p.identity.revocation import RevokedKind, sign_revocation
from shardp2p.identity.token import MAX_NAME_BYTES, Grant, Invite, Role, invite_id_of
from shardp2p.vocabulary import PeerId, SwarmId

OWN_LIFETIME_S: Final = 10 * 365 * 86400.0
"""Of the place that an owner's own peer has: as long as any invite lasts."""

_NAME = re.compile(rf"[a-z0-9][a-z0-9_-]{{0,{MAX_NAME_BYTES - 1}}}")
_INVITE_ID = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class IssuedInvite:
    """An invite that was made, without its secret. `public` is its key in hexadecimal; `uses` 0: any number."""

    id: str
    public: str
    role: str
    issued_at_s: int
    expires_at_s: int
    uses: int
    bound_to: str | None

    @classmethod
    def of(cls, grant: Grant) -> IssuedInvite:
        """What is kept of a grant."""
        return cls(
            grant.invite_id,
            grant.invite.hex(),
            grant.role,
            grant.issued_at_s,
            grant.expires_at_s,
            grant.uses,
            grant.bound_to,
        )


@dataclass(frozen=True, slots=True)
class OwnedSwarm:
    """A swarm whose key this user has."""

    directory: Path
    swarm: SwarmId
    is_open: bool

    @property
    def name(self) -> str:
        """What the owner calls it."""
        return self.directory.name

    def invite(
        self,
        now_s: float,
        lifetime_s: float,
        *,
        role: Role = "member",
        uses: int = 0,
        bound_to: PeerId | None = None,
        peers: tuple[str, ...] = (),
    ) -> Invite:
        """A new invite, listed in invites.jsonl. Raises: ConfigError, also where the swarm is open and needs none."""
        self._refuse_open("needs no invites; whoever has its join text is in")
        invite = Invite.issue(
            self._owner(), self.name, now_s, lifetime_s, role=role, uses=uses, bound_to=bound_to, peers=peers
        )
        append_lines(self.directory / "invites.jsonl", [json.dumps(asdict(IssuedInvite.of(invite.grant)))])
        return invite

    def own_invite(self, identity: Identity, now_s: float) -> Invite:
        """The invite by which a peer of the owner's own is in; it is made anew each time and listed nowhere."""
        return Invite.issue(self._owner(), self.name, now_s, OWN_LIFETIME_S, bound_to=identity.peer_id)

    def invites(self) -> tuple[IssuedInvite, ...]:
        """The invites that were made, in order. Raises: ConfigError when their file is damaged."""
        path = self.directory / "invites.jsonl"
        try:
            return tuple(IssuedInvite(**json.loads(line)) for line in read_lines(path))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{path} is damaged: a line of it is no invite; remove that line") from error

    def revoke(self, what: str, now_s: float, joined: JoinedSwarms) -> RevokedKind:
        """Take back an invite by its id, or shut out a peer; kept where this user's peers of the swarm find it.

        Raises: ConfigError when `what` is neither an invite that was made here nor a peer id.
        """
        self._refuse_open("has no members to shut out")
        kind, public = self._revocable(what)
        sealed = sign_revocation(self._owner(), kind, public, now_s)
        joined.add_revocations(self.swarm, [revocation_statement(sealed)])
        return kind

    def _revocable(self, what: str) -> tuple[RevokedKind, bytes]:
        if _INVITE_ID.fullmatch(what) is None:
            try:
                return "peer", public_bytes_of(PeerId(what))
            except ConfigError as error:
                raise ConfigError(
                    f"{what[:64]!r} is neither the id of an invite nor of a peer; see: shardp2p swarm show {self.name}"
                ) from error
        public = next((bytes.fromhex(invite.public) for invite in self.invites() if invite.id == what), None)
        if public is None or invite_id_of(public) != what:
            raise ConfigError(f"no invite {what} was made for {self.name} here; see: shardp2p swarm show {self.name}")
        return "invite", public

    def _owner(self) -> Identity:
        owner = load_or_create(self.directory / "owner.key")
        if SwarmId(owner.peer_id) != self.swarm:
            raise ConfigError(f"{self.directory / 'owner.key'} is not the key of swarm {self.swarm}; restore it")
        return owner

    def _refuse_open(self, why: str) -> None:
        if self.is_open:
            raise ConfigError(f"the swarm {self.name} is open: it {why}")


class OwnedSwarms:
    """The swarms under `root`, the directory `Paths.swarms_dir`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def create(self, name: str, *, is_open: bool) -> OwnedSwarm:
        """A new swarm with a new key. Raises: ConfigError for a name that is taken or not allowed."""
        if _NAME.fullmatch(name) is None:
            raise ConfigError(
                f"{name[:80]!r} is no name of a swarm; use at most {MAX_NAME_BYTES} lower-case letters, digits, - and _"
            )
        directory = self._root / name
        if (directory / "owner.key").exists():
            raise ConfigError(f"you have a swarm {name} already; see: shardp2p swarm show {name}")
        owner = load_or_create(directory / "owner.key")
        settings = json.dumps({"swarm": owner.peer_id, "is_open": is_open})
        write_private(directory / "swarm.json", f"{settings}\n".encode("ascii"))
        return OwnedSwarm(directory, SwarmId(owner.peer_id), is_open)

    def list(self) -> tuple[OwnedSwarm, ...]:
        """All of them, by name. Raises: ConfigError when one is damaged."""
        return tuple(_load(path.parent) for path in sorted(self._root.glob("*/swarm.json")))

    def find(self, name: str | None) -> OwnedSwarm:
        """The swarm of that name, or the only one there is. Raises: ConfigError."""
        names = [path.parent.name for path in sorted(self._root.glob("*/swarm.json"))]
        if not names:
            raise ConfigError(f"you own no swarm in {self._root}; make one: shardp2p swarm create NAME")
        if name is None and len(names) > 1:
            raise ConfigError(f"you own several swarms; name one of them: {', '.join(names)}")
        if name is not None and name not in names:
            raise ConfigError(f"you own no swarm {name[:80]!r}; yours: {', '.join(names)}")
        return _load(self._root / (name or names[0]))

    def read_join(self, given: str, identity: Identity, now_s: float) -> Join:
        """What `--join` stands for: a swarm of the user's own by its name, else a token, a file or `-`.

        Raises: ConfigError.
        """
        if _NAME.fullmatch(given) is None or given.startswith(PREFIX) or not (self._root / given).is_dir():
            return read_join(given)
        swarm = self.find(given)
        if swarm.is_open:
            return OpenSwarm(swarm.swarm, swarm.name, ())
        return swarm.own_invite(identity, now_s)


def _load(directory: Path) -> OwnedSwarm:
    path = directory / "swarm.json"
    try:
        settings = json.loads(path.read_text("ascii"))
        swarm, is_open = SwarmId(settings["swarm"]), settings["is_open"] is True
        public_bytes_of(PeerId(swarm))
    except (OSError, ValueError, TypeError, KeyError, ConfigError) as error:
        raise ConfigError(f"{path} is damaged; restore it from a backup") from error
    return OwnedSwarm(directory, swarm, is_open)
