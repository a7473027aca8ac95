"""The swarms that this user's peers have joined: what they prove, whom they dial first, and what was revoked.

    swarms/SWARM_ID/PEER_ID.json  the place of one of this user's peers; no secret, since it is bound to its key
    swarms/SWARM_ID/revocations   the owner's revocations, in base64, one in a line
    swarms/SWARM_ID/met           where this user's peers met others last, one in a line: a token's addresses may be old

Processes share the revocations: `swarm revoke` adds one, a running peer finds it by `refresh`, and adds what it hears
by `keep`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from shardp2p.errors import ConfigError, IntegrityError, OverloadedError, RemoteProtocolError
from shardp2p.identity.join import MAX_PEERS, Join, OpenSwarm, check_peer_address
from shardp2p.identity.keys import Identity
from shardp2p.identity.membership import Membership
from shardp2p.identity.private_file import append_lines, read_lines, write_private
from shardp2p.identity.token import RefusedError, read_member
from shardp2p.vocabulary import PeerId, SwarmId

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class JoinedSwarm:
    """A swarm that a peer is in. `membership` is None for an open one."""

    swarm: SwarmId
    name: str
    peers: tuple[str, ...]
    membership: Membership | None

    @property
    def proof(self) -> bytes:
        """The proof that we are in it; empty for an open one."""
        return b"" if self.membership is None else self.membership.proof

    def may_hold(self, peer: PeerId) -> bool:
        """Whether `peer` may hold layers for others, as far as its role is known: that of whoever was connected."""
        return self.membership is None or self.membership.role(peer) != "client"


class JoinedSwarms:
    """The swarms under `root`, the directory `Paths.swarms_dir`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._read_bytes: dict[SwarmId, int] = {}  # of the revocations that `refresh` has seen

    def join(self, join: Join, identity: Identity, now_s: float) -> JoinedSwarm:
        """Be in a swarm from now on, also after a restart without the token.

        A peer that joins again by the same invite keeps its first place in it.
        Raises: ConfigError when the invite has expired, was revoked or is for another peer.
        """
        if isinstance(join, OpenSwarm):
            self._save(identity.peer_id, join.swarm, join.name, join.peers, b"")
            return JoinedSwarm(join.swarm, join.name, join.peers, None)
        grant = join.grant
        proof = self._proof(grant.swarm, identity.peer_id)
        if not proof or read_member(proof).grant != grant:
            proof = join.claim(identity, now_s)
        membership = self._membership(proof, now_s)
        if refusal := membership.own_refusal(now_s):
            raise ConfigError(RefusedError(refusal, identity.peer_id).message)
        self._save(identity.peer_id, grant.swarm, grant.name, join.peers, proof)
        return JoinedSwarm(grant.swarm, grant.name, join.peers, membership)

    def remembered(self, peer: PeerId, now_s: float) -> tuple[JoinedSwarm, ...]:
        """The swarms that `peer` has joined earlier. Raises: ConfigError when a file is damaged."""
        return tuple(self._load(path, now_s) for path in sorted(self._root.glob(f"*/{peer}.json")))

    def named(self, name: str) -> SwarmId | None:
        """The swarm that some peer here has joined under this name, or with this id; None without any.

        Raises: ConfigError when several are called so, or a file is damaged.
        """
        found = self._names()
        if SwarmId(name) in found:
            return SwarmId(name)
        swarms = [swarm for swarm, called in found.items() if called == name]
        if len(swarms) > 1:
            raise ConfigError(
                f"several swarms that were joined here are called so; name one by its id: {', '.join(swarms)}"
            )
        return swarms[0] if swarms else None

    def names(self) -> tuple[str, ...]:
        """What the swarms are called that some peer here has joined. Raises: ConfigError when a file is damaged."""
        return tuple(sorted(set(self._names().values())))

    def leave(self, swarm: SwarmId, peer: PeerId) -> None:
        """Forget that `peer` has joined."""
        (self._root / swarm / f"{peer}.json").unlink(missing_ok=True)

    def add_revocations(self, swarm: SwarmId, statements: Iterable[bytes]) -> None:
        """Keep the revocations that are not kept yet. Raises: ConfigError."""
        known = set(self.revocations(swarm))
        new = [base64.b64encode(statement).decode("ascii") for statement in statements if statement not in known]
        if new:
            append_lines(self._revocations_file(swarm), new)

    def revocations(self, swarm: SwarmId) -> tuple[bytes, ...]:
        """The revocations that are kept, as statements, unchecked; a damaged line is left out and logged."""
        found = []
        for number, line in enumerate(read_lines(self._revocations_file(swarm)), 1):
            try:
                found.append(base64.b64decode(line, validate=True))
            except ValueError:
                log.warning("revocation_damaged", swarm=swarm, line=number)
        return tuple(found)

    def met(self, swarm: SwarmId) -> tuple[str, ...]:
        """Where this user's peers and clients met others of the swarm last; a damaged line is left out."""
        found = []
        for line in read_lines(self._root / swarm / "met")[:MAX_PEERS]:
            with suppress(ConfigError):
                found.append(check_peer_address(line))
        return tuple(found)

    def keep_met(self, swarm: SwarmId, addresses: Iterable[str]) -> None:
        """Keep where peers were met, the first MAX_PEERS of them. Raises: ConfigError when they cannot be written."""
        lines = [f"{address}\n" for address in list(addresses)[:MAX_PEERS]]
        write_private(self._root / swarm / "met", "".join(lines).encode("ascii"))

    def keep(self, membership: Membership) -> None:
        """Keep what a running peer has heard. Raises: ConfigError."""
        self.add_revocations(membership.swarm, membership.revocation_statements())

    def refresh(self, membership: Membership, now_s: float) -> int:
        """Let a running peer take up what other processes have added; how many revocations were news.

        It costs next to nothing where the file has not grown. Raises: ConfigError when it cannot be read.
        """
        path = self._revocations_file(membership.swarm)
        size_bytes = path.stat().st_size if path.exists() else 0
        if self._read_bytes.get(membership.swarm, 0) == size_bytes:
            return 0
        news = _take_up(membership, self.revocations(membership.swarm), now_s)
        self._read_bytes[membership.swarm] = size_bytes
        return news

    def _names(self) -> dict[SwarmId, str]:
        paths = (path for path in sorted(self._root.glob("*/*.json")) if path.name != "swarm.json")  # the user's own
        return dict(_read(path)[:2] for path in paths)

    def _membership(self, proof: bytes, now_s: float) -> Membership:
        membership = Membership(proof)
        _take_up(membership, self.revocations(membership.swarm), now_s)
        return membership

    def _proof(self, swarm: SwarmId, peer: PeerId) -> bytes:
        """The proof that is kept, empty where there is none."""
        path = self._root / swarm / f"{peer}.json"
        return _read(path)[3] if path.exists() else b""

    def _load(self, path: Path, now_s: float) -> JoinedSwarm:
        swarm, name, peers, proof = _read(path)
        return JoinedSwarm(swarm, name, peers, self._membership(proof, now_s) if proof else None)

    def _save(self, peer: PeerId, swarm: SwarmId, name: str, peers: tuple[str, ...], proof: bytes) -> None:
        value = {"swarm": swarm, "name": name, "peers": peers, "proof": proof.hex()}
        write_private(self._root / swarm / f"{peer}.json", f"{json.dumps(value)}\n".encode("ascii"))

    def _revocations_file(self, swarm: SwarmId) -> Path:
        return self._root / swarm / "revocations"


def _take_up(membership: Membership, statements: tuple[bytes, ...], now_s: float) -> int:
    """How many of `statements` were news to `membership`; a wrong one is left out and logged."""
    known = set(membership.revocation_statements())
    news = 0
    for statement in statements:
        if statement in known:
            continue
        try:
            news += membership.receive(statement, now_s)
        except (RemoteProtocolError, IntegrityError, OverloadedError) as error:
            log.warning("revocation_ignored", swarm=membership.swarm, error=error.message)
    return news


def _read(path: Path) -> tuple[SwarmId, str, tuple[str, ...], bytes]:
    try:
        value = json.loads(path.read_text("ascii"))
        proof = bytes.fromhex(value["proof"])
        if proof:
            read_member(proof)
        return SwarmId(value["swarm"]), str(value["name"]), tuple(map(str, value["peers"])), proof
    except (OSError, ValueError, TypeError, KeyError, RemoteProtocolError, IntegrityError) as error:
        raise ConfigError(f"{path} is damaged; remove it and join again with --join") from error
