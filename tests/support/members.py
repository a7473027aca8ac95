"""A private swarm for tests: its owner, invites and memberships, all from fixed seeds."""

from __future__ import annotations

from shardp2p.identity.keys import Identity
from shardp2p.identity.membership import Membership
from shardp2p.identity.token import Invite, Role
from shardp2p.vocabulary import PeerId

OWNER = Identity.from_seed(b"o" * 32)
OTHER_OWNER = Identity.from_seed(b"x" * 32)
NOW_S = 1_800_000_000.0
DAY_S = 86_400.0


def peer(number: int) -> Identity:
    """The identity of that number."""
    return Identity.from_seed(number.to_bytes(32, "big"))


def invite(
    now_s: float = NOW_S,
    lifetime_s: float = DAY_S,
    *,
    owner: Identity = OWNER,
    key: int = 1000,
    role: Role = "member",
    uses: int = 0,
    bound_to: PeerId | None = None,
    peers: tuple[str, ...] = (),
) -> Invite:
    """An invite to the swarm "lab" of `owner`."""
    return Invite.issue(
        owner, "lab", now_s, lifetime_s, role=role, uses=uses, bound_to=bound_to, peers=peers, key=peer(key)
    )


def membership(number: int, of: Invite | None = None, now_s: float = NOW_S) -> Membership:
    """The place of a peer in the swarm, by `of` or by an invite for anyone."""
    return Membership((of or invite(now_s)).claim(peer(number), now_s))
