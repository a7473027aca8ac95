"""Revocations: the owner of a swarm takes back an invite or shuts a peer out. Pure; docs/protocols/membership.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from shardp2p.errors import OverloadedError, RemoteProtocolError
from shardp2p.identity.canonical import Reader, number
from shardp2p.identity.keys import PUBLIC_BYTES, Identity
from shardp2p.identity.signed import SEAL_BYTES, seal, unseal
from shardp2p.identity.token import Member
from shardp2p.vocabulary import PeerId, SwarmId

RevokedKind = Literal["invite", "peer"]

REVOCATION_BYTES: Final = SEAL_BYTES + 1 + PUBLIC_BYTES + 8
MAX_REVOCATIONS: Final = 4096
"""Half a megabyte, kept by every member for good. Only the owner can make them; who needs more makes a new swarm."""

_REVOCATION: Final = "revocation/1"
_KINDS: Final[tuple[RevokedKind, ...]] = get_args(RevokedKind)


@dataclass(frozen=True, slots=True)
class Revocation:
    """What no longer counts in `swarm`: an invite with all that joined by it, or one peer. `public` is its key.

    A peer is shut out with every invite that was made until `revoked_at_s` (Unix seconds); with a later one the owner
    lets it in again.
    """

    swarm: SwarmId
    kind: RevokedKind
    public: bytes
    revoked_at_s: int


def sign_revocation(owner: Identity, kind: RevokedKind, public: bytes, now_s: float) -> bytes:
    """A revocation as sealed bytes."""
    return seal(owner, _REVOCATION, number(_KINDS.index(kind), 1) + public + number(int(now_s), 8))


def read_revocation(data: bytes, swarm: SwarmId) -> Revocation:
    """The revocation in sealed bytes, once it is clear that the owner of `swarm` made it.

    Raises: RemoteProtocolError when it is malformed; IntegrityError for a wrong signature or another signer.
    """
    if len(data) != REVOCATION_BYTES:
        raise RemoteProtocolError(f"a revocation has {REVOCATION_BYTES} bytes, not {len(data)}")
    sealed = unseal(data, _REVOCATION, signer=PeerId(swarm))
    reader = Reader(sealed.payload, "revocation")
    kind, public, revoked_at_s = reader.number(1), reader.take(PUBLIC_BYTES), reader.number(8)
    reader.finish()
    if kind >= len(_KINDS):
        raise RemoteProtocolError(f"a revocation of the unknown kind {kind}; it may come from a newer version")
    return Revocation(swarm, _KINDS[kind], public, revoked_at_s)


class RevocationList:
    """The revocations of one swarm. Merging is in any order, and as often as one likes, with the same outcome."""

    def __init__(self, swarm: SwarmId) -> None:
        self.swarm = swarm
        self._found: dict[tuple[RevokedKind, bytes], tuple[Revocation, bytes]] = {}

    def __len__(self) -> int:
        return len(self._found)

    def receive(self, data: bytes) -> bool:
        """Take up a sealed revocation; whether it was new.

        Raises: RemoteProtocolError, IntegrityError; OverloadedError when the list is full.
        """
        return self.add(read_revocation(data, self.swarm), data)

    def add(self, revocation: Revocation, data: bytes) -> bool:
        """Take up a revocation that was read from `data`; whether it was new. Raises: OverloadedError."""
        key = revocation.kind, revocation.public
        known = self._found.get(key)
        if known is not None and known[0].revoked_at_s >= revocation.revoked_at_s:
            return False
        if known is None and len(self._found) >= MAX_REVOCATIONS:
            raise OverloadedError(f"the swarm has {MAX_REVOCATIONS} revocations, which is all that members keep")
        self._found[key] = revocation, data
        return True

    def is_revoked(self, member: Member, public: bytes) -> bool:
        """Whether `member`, whose own key is `public`, is shut out."""
        if ("invite", member.grant.invite) in self._found:
            return True
        found = self._found.get(("peer", public))
        return found is not None and member.grant.issued_at_s <= found[0].revoked_at_s

    def revocations(self) -> tuple[Revocation, ...]:
        """All of them, the oldest first."""
        return tuple(sorted((found for found, _ in self._found.values()), key=lambda r: (r.revoked_at_s, r.public)))

    def sealed(self) -> tuple[bytes, ...]:
        """All of them as they were signed."""
        return tuple(data for _, data in self._found.values())
