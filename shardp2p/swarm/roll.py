"""The roll: which peers of a view are shown to be members of a private swarm, and by what proof. Pure.

A record of a peer whose membership is not shown counts for nothing. Rules: docs/protocols/gossip.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

from shardp2p.errors import IntegrityError, RemoteProtocolError
from shardp2p.identity.canonical import Reader, sized
from shardp2p.identity.token import MAX_MEMBER_BYTES, Member, Refusal, RefusedError
from shardp2p.swarm.blame import FORBIDDEN
from shardp2p.swarm.sealed_records import open_record
from shardp2p.vocabulary import PeerId, SwarmId
from shardp2p.wire.news import ShortId
from shardp2p.wire.records import MAX_SEALED_BYTES, CoverageRecord

Judgement = Literal["believed", "unproven", "refused", "forbidden"]
"""What a record is, by its peer's membership: unproven needs the proof, which may make it any of the others."""


class Admits(Protocol):
    """Who is admitted, as `identity.membership.Membership` knows it."""

    def check(self, proof: bytes, peer: PeerId, now_s: float) -> Member: ...
    def refusal(self, member: Member, now_s: float) -> Refusal | None: ...


class Roll:
    """The proofs of one view. Without an `admission` the swarm is open, and everybody is believed."""

    def __init__(self, admission: Admits | None = None, unix_clock: Callable[[], float] = lambda: 0.0) -> None:
        self._admission = admission
        self._unix_clock = unix_clock
        self._shown: dict[ShortId, tuple[Member, bytes]] = {}

    def lacks(self, short: ShortId) -> bool:
        """Whether a record of this peer counts only with its proof."""
        return self._admission is not None and short not in self._shown

    def proof_of(self, short: ShortId) -> bytes:
        """The proof that this peer is a member; empty where none is kept."""
        shown = self._shown.get(short)
        return b"" if shown is None else shown[1]

    def judge(self, record: CoverageRecord, short: ShortId, proof: bytes) -> Judgement:
        """Whether `record`, which came with `proof` or with none, counts. Keeps the proof of one that does.

        Raises: RemoteProtocolError for a malformed proof; IntegrityError for a forged one, or another peer's.
        """
        if self._admission is None:
            return "believed"
        shown = self._shown.get(short)
        now_s = self._unix_clock()
        is_refused = False
        if proof and (shown is None or shown[1] != proof):
            try:
                shown = self._admission.check(proof, record.peer_id, now_s), proof
            except RefusedError:
                is_refused = True
        if shown is None:
            return "refused" if is_refused else "unproven"
        is_refused = self._admission.refusal(shown[0], now_s) is not None
        if is_refused or (record.held and shown[0].grant.role == "client"):
            # The peer may have joined again by another invite, so what was shown earlier does not decide.
            self._shown.pop(short, None)
            if not proof:
                return "unproven"
            return "refused" if is_refused else "forbidden"
        self._shown[short] = shown
        return "believed"

    def forget(self, short: ShortId) -> None:
        """The view has no record of this peer any more."""
        self._shown.pop(short, None)

    def ended(self) -> list[ShortId]:
        """Who is not admitted any more."""
        if self._admission is None:
            return []
        now_s = self._unix_clock()
        return [short for short, (member, _) in self._shown.items() if self._admission.refusal(member, now_s)]


def kept_value(sealed: bytes, proof: bytes) -> bytes:
    """What the directory keeps of a peer: its sealed record and its proof of membership, empty in an open swarm."""
    return sized(proof, 2) + sized(sealed, 2)


def open_kept(value: bytes, peer: PeerId, swarm: SwarmId, admission: Admits | None, now_s: float) -> CoverageRecord:
    """The record in what the directory keeps of `peer`, once its peer is shown to be a member; `now_s` is Unix time.

    Raises: RemoteProtocolError for malformed bytes, another swarm's record, a peer that is not admitted, or a client
    that claims layers; IntegrityError for a wrong signature or another peer's record.
    """
    reader = Reader(value, "directory value")
    proof, sealed = reader.sized(2, MAX_MEMBER_BYTES), reader.sized(2, MAX_SEALED_BYTES)
    reader.finish()
    record = open_record(sealed, swarm)
    if record.peer_id != peer:
        raise IntegrityError(f"a record of {record.peer_id} stands under {peer}")
    if admission is None:
        return record
    try:
        member = admission.check(proof, record.peer_id, now_s)
    except RefusedError as error:
        raise RemoteProtocolError(error.message, record.peer_id) from None
    if record.held and member.grant.role == "client":
        raise RemoteProtocolError(f"peer {record.peer_id} {FORBIDDEN}", record.peer_id)
    return record


def kept_sequence(
    swarm: SwarmId, admission: Admits | None, unix_clock: Callable[[], float], peer: PeerId, value: bytes
) -> int:
    """The sequence of the record in what the directory keeps of `peer`. Raises: as `open_kept`."""
    return open_kept(value, peer, swarm, admission, unix_clock()).sequence
