"""A swarm as one peer sees it, on its way to this machine's other commands: sealed records, so nothing is retold."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardp2p.member import Member
    from shardp2p.wire.records import CoverageRecord


def view_of(member: Member) -> dict[str, Any]:
    """The live records and the peer's own links, as JSON has them."""
    return {
        "peer_id": member.peer_id,
        "swarm": member.swarm,
        "name": member.name,
        "records": [base64.b64encode(sealed).decode("ascii") for sealed in member.gossip.live_sealed()],
    }


def records_of(view: dict[str, Any]) -> tuple[CoverageRecord, ...]:
    """The records of a view. Raises: RemoteProtocolError, IntegrityError for one that is none."""
    from shardp2p.swarm.sealed_records import open_record

    return tuple(open_record(base64.b64decode(text), view["swarm"]) for text in view["records"])
