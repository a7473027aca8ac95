"""Membership: who is admitted to one private swarm, by all that is known of it right now. Pure.

It holds our own proof, the owner's revocations, and the uses of counted invites. Members exchange the latter two as
*statements* (bytes that anyone can check), in any order. Rules: docs/protocols/membership.md. Start at `admit`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from shardp2p.errors import IntegrityError, OverloadedError, RemoteProtocolError
from shardp2p.identity.keys import public_bytes_of
from shardp2p.identity.revocation import REVOCATION_BYTES, Revocation, RevocationList, read_revocation
from shardp2p.identity.token import MAX_MEMBER_BYTES, Member, Refusal, RefusedError, Role, read_member
from shardp2p.vocabulary import PeerId, SwarmId

MAX_STATEMENT_BYTES: Final = 1 + MAX_MEMBER_BYTES
MAX_COUNTED_USES: Final = 8192
"""Of all counted invites together: about 3 MB. Beyond it counted invites admit nobody new."""
MAX_REMEMBERED_PEERS: Final = 2048
"""Several times the connections of a host, so that no connected peer is forgotten."""
MAX_PENDING: Final = 1024
"""News that gossip has not fetched; what is dropped reaches others when they ask for all statements."""

_REVOCATION: Final = b"\x01"
_USE: Final = b"\x02"
_LAST_TIME: Final = 2**64 - 1


class CountedUses:
    """Which peers count as the users of each invite that is for so many.

    The first ones by the time that they state, then by key, so that members who know the same uses agree, whatever the
    order in which they heard of them. Later ones are not kept.
    """

    def __init__(self) -> None:
        self._uses: dict[bytes, dict[PeerId, tuple[Member, bytes]]] = {}

    def receive(self, member: Member, proof: bytes) -> bool:
        """Take up a use of a counted invite; whether that changed anything. Raises: OverloadedError without room."""
        uses = self._uses.setdefault(member.grant.invite, {})
        known = uses.get(member.peer)
        if known is not None and _order(known[0]) <= _order(member):
            return False
        if known is None and len(uses) >= member.grant.uses:
            last = max(uses.values(), key=lambda use: _order(use[0]))[0]
            if _order(last) <= _order(member):
                return False
            del uses[last.peer]
        elif known is None and sum(map(len, self._uses.values())) >= MAX_COUNTED_USES:
            raise OverloadedError(f"members keep at most {MAX_COUNTED_USES} uses of counted invites")
        uses[member.peer] = member, proof
        return True

    def holds(self, member: Member) -> bool:
        """Whether the peer is among those that count."""
        return member.peer in self._uses.get(member.grant.invite, {})

    def forget_expired(self, now_s: float) -> None:
        """Drop the uses of invites that admit nobody any more."""
        for invite, uses in list(self._uses.items()):
            if all(member.grant.is_expired(now_s) for member, _ in uses.values()):
                del self._uses[invite]

    def proofs(self) -> tuple[bytes, ...]:
        """Every use that counts."""
        return tuple(proof for uses in self._uses.values() for _, proof in uses.values())


class Membership:
    """Our place in a private swarm, and who else has one.

    The host asks `admit` during every handshake. Its owner asks `ended` now and then, and after `receive`, and closes
    the connections to whom it names.
    """

    def __init__(self, proof: bytes) -> None:
        self.own = read_member(proof)
        self.proof = proof
        self.revocations = RevocationList(self.swarm)
        self._uses = CountedUses()
        self._admitted: dict[PeerId, Member] = {}  # the one heard of longest ago first
        self._pending: dict[bytes, None] = {}
        if self.own.grant.uses:
            self._take_use(self.own, proof)

    @property
    def swarm(self) -> SwarmId:
        """The swarm's id."""
        return self.own.grant.swarm

    @property
    def name(self) -> str:
        """What the owner calls the swarm."""
        return self.own.grant.name

    def admit(self, proof: bytes, peer: PeerId, now_s: float) -> Member:
        """The member that `peer`, authenticated as such, proves to be; `now_s` is Unix time.

        Raises: RefusedError when it may not be in the swarm; IntegrityError or RemoteProtocolError for a proof that is
        none, or another peer's.
        """
        member = self.check(proof, peer, now_s)
        self._admitted.pop(peer, None)
        while len(self._admitted) >= MAX_REMEMBERED_PEERS:
            del self._admitted[next(iter(self._admitted))]
        self._admitted[peer] = member
        return member

    def check(self, proof: bytes, peer: PeerId, now_s: float) -> Member:
        """As `admit`, for a peer that somebody else tells of: its role is not remembered."""
        member = read_member(proof)
        if member.peer != peer:
            raise IntegrityError(f"the proof of membership is that of {member.peer}", peer)
        if member.grant.swarm != self.swarm:
            raise RefusedError("other_swarm", peer)
        refusal = self.refusal(member, now_s)
        if refusal == "used_up":  # as far as was known until now
            refusal = self._first_use(member, proof, now_s)
        if refusal is not None:
            raise RefusedError(refusal, peer)
        return member

    def role(self, peer: PeerId) -> Role | None:
        """What an admitted peer, or we ourselves, may do; None for one that was not admitted."""
        member = self.own if peer == self.own.peer else self._admitted.get(peer)
        return None if member is None else member.grant.role

    def ended(self, connected: Iterable[PeerId], now_s: float) -> tuple[tuple[PeerId, Refusal], ...]:
        """Which of the connected peers may not be in the swarm any more, and why."""
        found: list[tuple[PeerId, Refusal]] = []
        for peer in connected:
            member = self._admitted.get(peer)
            refusal: Refusal | None = "invalid" if member is None else self.refusal(member, now_s)
            if refusal is not None:
                found.append((peer, refusal))
        return tuple(found)

    def own_refusal(self, now_s: float) -> Refusal | None:
        """Why the others do not, or no longer, admit us; None while they do."""
        return self.refusal(self.own, now_s)

    def receive(self, statement: bytes, now_s: float) -> bool:
        """Take up a statement from gossip or from disk; whether it was news. News is passed on by `pending`.

        Raises: RemoteProtocolError for bytes that are no statement; IntegrityError for a wrong signature or another
        swarm's statement; OverloadedError when there is no room for it.
        """
        said = read_statement(statement, self.swarm)
        if isinstance(said, Revocation):
            is_news = self.revocations.add(said, statement[1:])
            if is_news:
                self._publish(statement)
            return is_news
        if said.grant.is_expired(now_s):
            return False
        self._uses.forget_expired(now_s)
        return self._take_use(said, statement[1:])

    def pending(self) -> tuple[bytes, ...]:
        """The statements that are news since the last call, for gossip to spread."""
        news = tuple(self._pending)
        self._pending.clear()
        return news

    def statements(self) -> tuple[bytes, ...]:
        """Every statement, for a peer that was away."""
        return self.revocation_statements() + tuple(_USE + proof for proof in self._uses.proofs())

    def revocation_statements(self) -> tuple[bytes, ...]:
        """The statements that are kept on disk. Uses need not be: who used an invite shows it at every connection."""
        return tuple(revocation_statement(data) for data in self.revocations.sealed())

    def refusal(self, member: Member, now_s: float) -> Refusal | None:
        """Why a member whose proof was checked does not count now; None while it does."""
        if self.revocations.is_revoked(member, public_bytes_of(member.peer)):
            return "revoked"
        if member.grant.is_expired(now_s):
            return "expired"
        if member.grant.uses and not self._uses.holds(member):
            return "used_up"
        return None

    def _first_use(self, member: Member, proof: bytes, now_s: float) -> Refusal | None:
        """Count a use that was not known, if there is room for it."""
        self._uses.forget_expired(now_s)
        try:
            self._take_use(member, proof)
        except OverloadedError:
            return "used_up"
        return self.refusal(member, now_s)

    def _take_use(self, member: Member, proof: bytes) -> bool:
        is_news = self._uses.receive(member, proof)
        if is_news:
            self._publish(_USE + proof)
        return is_news

    def _publish(self, statement: bytes) -> None:
        if len(self._pending) < MAX_PENDING:
            self._pending[statement] = None


def read_statement(statement: bytes, swarm: SwarmId) -> Revocation | Member:
    """The revocation, or the use of a counted invite, that a statement about `swarm` is.

    Raises: RemoteProtocolError for bytes that are no statement; IntegrityError for a wrong signature or swarm.
    """
    if len(statement) > MAX_STATEMENT_BYTES:
        raise RemoteProtocolError(f"a statement of {len(statement)} bytes is too long")
    kind, body = statement[:1], statement[1:]
    if kind == _REVOCATION:
        return read_revocation(body, swarm)
    if kind != _USE:
        raise RemoteProtocolError("a statement of an unknown kind; it may come from a newer version")
    member = read_member(body)
    if member.grant.swarm != swarm:
        raise IntegrityError("a statement about another swarm")
    if not member.grant.uses:
        raise RemoteProtocolError("a statement about the use of an invite that is not counted")
    return member


def subject_of(said: Revocation | Member) -> tuple[bytes, int]:
    """What a statement is about, and a number that is larger in the one of two that replaces the other.

    Whoever passes statements on keeps the last about each subject: the latest revocation, the earliest use.
    """
    if isinstance(said, Revocation):
        return said.kind.encode("ascii") + said.public, said.revoked_at_s
    return said.grant.invite + public_bytes_of(said.peer), _LAST_TIME - said.claimed_at_s


def revocation_statement(sealed: bytes) -> bytes:
    """A sealed revocation as the statement that members exchange."""
    assert len(sealed) == REVOCATION_BYTES
    return _REVOCATION + sealed


def _order(member: Member) -> tuple[int, bytes]:
    return member.claimed_at_s, public_bytes_of(member.peer)
