"""Grants, invites and members: who may be in a private swarm, provable to anyone without asking its owner. Pure.

The owner signs a grant, which names a key pair made for this one invite. Whoever holds the invite's private key signs
its own peer id with it. The two signatures together make a peer a member; the private key never crosses the network.
Layouts and what is guaranteed: docs/protocols/membership.md. Start at `Invite`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Final, Literal, NewType, get_args

from shardp2p.errors import ConfigError, IntegrityError, PeerUnavailableError, RemoteProtocolError
from shardp2p.identity.canonical import Reader, number, sized
from shardp2p.identity.keys import PUBLIC_BYTES, Identity, peer_id_of, public_bytes_of
from shardp2p.identity.signed import SIGNATURE_BYTES, seal, sign, unseal, verify_with
from shardp2p.vocabulary import PeerId, SwarmId

InviteId = NewType("InviteId", str)
"""An invite, without its secret: 16 lower-case hexadecimal digits."""

Role = Literal["member", "client"]
"""A member serves and asks; a client only asks, and whatever it claims to hold is ignored."""

Refusal = Literal["expired", "revoked", "other_swarm", "used_up", "invalid"]

CLOCK_GRACE_S: Final = 600
"""A grant counts for so long after it expired: the clocks of home machines are minutes apart."""
MAX_NAME_BYTES: Final = 64
MAX_USES: Final = 1000
"""Each use of a counted invite is remembered by every member."""
MAX_GRANT_BYTES: Final = 512
MAX_MEMBER_BYTES: Final = 1024
"""Twice what the longest has, as room for a later layout."""

_GRANT: Final = "grant/1"
_MEMBER: Final = "member/1"
_ROLES: Final[tuple[Role, ...]] = get_args(Role)

NEXT_STEP: Final[dict[Refusal, str]] = {
    "expired": "the invite has expired; ask the swarm's owner for a new invite",
    "revoked": "the swarm's owner revoked it; ask the owner for a new invite",
    "other_swarm": "the invite is one to another swarm; ask this swarm's owner for an invite",
    "used_up": "as many peers as the invite is for have used it; ask the swarm's owner for a new invite",
    "invalid": "the proof of membership is wrong; join again with the invite as the owner gave it out",
}
"""What is wrong with a membership, and what its holder does next."""


class RefusedError(PeerUnavailableError):
    """A proof of membership that is sound, but does not count, or no more."""

    def __init__(self, refusal: Refusal, peer: PeerId) -> None:
        super().__init__(f"peer {peer} is not admitted: {NEXT_STEP[refusal]}", peer)
        self.refusal: Refusal = refusal


class TurnedAwayError(PeerUnavailableError):
    """A peer of the swarm does not admit us, and says why."""

    def __init__(self, message: str, refusal: Refusal) -> None:
        super().__init__(message)
        self.refusal: Refusal = refusal


def turned_away(swarm_name: str, refusal: Refusal) -> str:
    """What the user is told whose own peer a swarm does not admit."""
    if refusal in ("revoked", "expired"):
        return f"the swarm {swarm_name} admits this peer no more ({refusal}); ask its owner for a new invite"
    return f"the swarm {swarm_name} does not admit this peer: {NEXT_STEP[refusal]}"


@dataclass(frozen=True, slots=True)
class Grant:
    """What the owner of a swarm signs. `invite` is a public key; `uses` 0 means: by any number of peers.

    `issued_at_s` and `expires_at_s` are whole Unix seconds; what the grant gives ends with it. `hints` is a digest of
    the addresses that were given out with it.
    """

    swarm: SwarmId
    invite: bytes
    role: Role
    issued_at_s: int
    expires_at_s: int
    uses: int
    bound_to: PeerId | None
    hints: bytes
    name: str

    @property
    def invite_id(self) -> InviteId:
        """What the invite is called where it is listed and revoked."""
        return invite_id_of(self.invite)

    def is_expired(self, now_s: float) -> bool:
        """Whether it is over, also by the clock of a machine that is CLOCK_GRACE_S slow."""
        return now_s > self.expires_at_s + CLOCK_GRACE_S


HINTS_BYTES: Final = 16


def invite_id_of(invite: bytes) -> InviteId:
    """The id of the invite with that public key."""
    return InviteId(hashlib.sha256(invite).hexdigest()[:16])


def hints_of(peers: tuple[str, ...]) -> bytes:
    """The digest of a peer list that a grant carries."""
    return hashlib.sha256(b"".join(sized(peer.encode("utf-8"), 2) for peer in peers)).digest()[:HINTS_BYTES]


def sign_grant(owner: Identity, grant: Grant) -> bytes:
    """The grant as sealed bytes. The owner's key is the swarm's id, so it is in the seal."""
    bound = b"" if grant.bound_to is None else public_bytes_of(grant.bound_to)
    payload = (
        grant.invite
        + number(_ROLES.index(grant.role), 1)
        + number(grant.issued_at_s, 8)
        + number(grant.expires_at_s, 8)
        + number(grant.uses, 4)
        + sized(bound, 1)
        + grant.hints
        + sized(grant.name.encode("utf-8"), 1)
    )
    return seal(owner, _GRANT, payload)


def read_grant(data: bytes) -> Grant:
    """The grant in sealed bytes, once its signature is checked.

    Raises: RemoteProtocolError when it is malformed; IntegrityError for a wrong signature.
    """
    if len(data) > MAX_GRANT_BYTES:
        raise RemoteProtocolError(f"a grant of {len(data)} bytes is too long")
    sealed = unseal(data, _GRANT)
    reader = Reader(sealed.payload, "grant")
    invite = reader.take(PUBLIC_BYTES)
    role = reader.number(1)
    issued_at_s, expires_at_s, uses = reader.number(8), reader.number(8), reader.number(4)
    bound = reader.sized(1, PUBLIC_BYTES)
    hints = reader.take(HINTS_BYTES)
    name = reader.text(MAX_NAME_BYTES)
    reader.finish()
    if role >= len(_ROLES):
        raise RemoteProtocolError(f"a grant has the unknown role {role}; it may come from a newer version")
    if len(bound) not in (0, PUBLIC_BYTES) or uses > MAX_USES or expires_at_s < issued_at_s:
        raise RemoteProtocolError("a grant has a number that is out of bounds")
    bound_to = peer_id_of(bound) if bound else None
    swarm = SwarmId(sealed.signer)
    return Grant(swarm, invite, _ROLES[role], issued_at_s, expires_at_s, uses, bound_to, hints, name)


@dataclass(frozen=True, slots=True)
class Member:
    """A peer that may be in a swarm, as both signatures say."""

    grant: Grant
    peer: PeerId
    claimed_at_s: int


def read_member(data: bytes) -> Member:
    """The member that a proof of membership speaks of, once both signatures are checked. It says nothing of the time.

    Raises: RemoteProtocolError when it is malformed; IntegrityError where a signature is wrong or the grant is not for
    this peer.
    """
    if len(data) > MAX_MEMBER_BYTES:
        raise RemoteProtocolError(f"a proof of membership of {len(data)} bytes is too long")
    reader = Reader(data, "proof of membership")
    sealed_grant = reader.sized(2, MAX_GRANT_BYTES)
    public, claimed_at_s = reader.take(PUBLIC_BYTES), reader.number(8)
    signature = reader.take(SIGNATURE_BYTES)
    reader.finish()
    grant = read_grant(sealed_grant)
    verify_with(grant.invite, _MEMBER, _claim(sealed_grant, public, claimed_at_s), signature)
    peer = peer_id_of(public)
    if grant.bound_to not in (None, peer):
        raise IntegrityError(f"the invite is for {grant.bound_to} alone, not for {peer}")
    if claimed_at_s < grant.issued_at_s:
        raise IntegrityError("the invite was used before it was made")
    return Member(grant, peer, claimed_at_s)


@dataclass(frozen=True, slots=True)
class Invite:
    """A grant with the private key of its invite: whoever holds it can become a member, so it is a secret."""

    grant: Grant
    sealed_grant: bytes
    peers: tuple[str, ...]
    seed: bytes = field(repr=False)

    @classmethod
    def issue(
        cls,
        owner: Identity,
        name: str,
        now_s: float,
        lifetime_s: float,
        *,
        role: Role = "member",
        uses: int = 0,
        bound_to: PeerId | None = None,
        peers: tuple[str, ...] = (),
        key: Identity | None = None,
    ) -> Invite:
        """A new invite to the swarm of `owner`, with a key of its own (`key`, for tests). Raises: ConfigError."""
        if not 0 <= uses <= MAX_USES:
            raise ConfigError(f"an invite for {uses} peers cannot be counted; use 1 to {MAX_USES}, or leave --uses out")
        key = key or Identity.generate()
        issued_at_s = int(now_s)
        grant = Grant(
            swarm=SwarmId(owner.peer_id),
            invite=key.public_bytes,
            role=role,
            issued_at_s=issued_at_s,
            expires_at_s=issued_at_s + int(lifetime_s),
            uses=uses,
            bound_to=bound_to,
            hints=hints_of(peers),
            name=name,
        )
        return cls(grant, sign_grant(owner, grant), peers, key.seed)

    def claim(self, identity: Identity, now_s: float) -> bytes:
        """The proof of membership of `identity`: what it shows to other members. It is no secret.

        Raises: ConfigError when the invite has expired or is for another peer.
        """
        if self.grant.is_expired(now_s):
            raise ConfigError(NEXT_STEP["expired"])
        if self.grant.bound_to not in (None, identity.peer_id):
            raise ConfigError(
                f"the invite is for peer {self.grant.bound_to} alone, and this is {identity.peer_id}; ask the swarm's "
                f"owner for one made with --for {identity.peer_id}"
            )
        # A clock that is behind the owner's must not make the proof look older than the invite.
        claimed_at_s = max(int(now_s), self.grant.issued_at_s)
        signature = sign(
            Identity.from_seed(self.seed), _MEMBER, _claim(self.sealed_grant, identity.public_bytes, claimed_at_s)
        )
        return sized(self.sealed_grant, 2) + identity.public_bytes + number(claimed_at_s, 8) + signature


def _claim(sealed_grant: bytes, public: bytes, claimed_at_s: int) -> bytes:
    return hashlib.sha256(sealed_grant).digest() + public + number(claimed_at_s, 8)
