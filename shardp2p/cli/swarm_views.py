"""A swarm as one peer sees it, on its way to this machine's other commands, and what those make of it.

Records travel sealed, as their peers made them; hints of the directory travel with whether the peer answered.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from shardp2p.cli.sight import Sight
from shardp2p.errors import ConfigError
from shardp2p.scheduler.coverage import Seen
from shardp2p.vocabulary import PeerId, SwarmId
from shardp2p.wire.records import CoverageRecord, Link, decode_record, encode_record

if TYPE_CHECKING:
    from shardp2p.member import Member


DIGEST: Final = re.compile(r"[0-9a-f]{64}")
"""A model's, whole."""


def view_of(member: Member) -> dict[str, Any]:
    """The live records and the peer's own links, as JSON has them."""
    return {
        **_head_of(member),
        "records": [_text(sealed) for sealed in member.gossip.live_sealed()],
    }


def digest_of(asked: Mapping[str, Any]) -> str | None:
    """The model that another command asks the directory for, if for one. Raises: ConfigError for what is no digest."""
    digest = asked.get("digest")
    if digest is None or (isinstance(digest, str) and DIGEST.fullmatch(digest)):
        return digest
    raise ConfigError("a model's digest is 64 hexadecimal digits; name the model as `shardp2p model list` does")


async def directory_view_of(member: Member, digest: str | None = None) -> dict[str, Any]:
    """What the directory says of the swarm now, or of the peers that hold the model `digest`."""
    topic = f"{member.swarm}/{digest}" if digest else member.swarm
    hints = [(encode_record(one.record), one.is_live) for one in await member.ask_directory(topic)]
    own = member.gossip.own
    if own is not None and (digest is None or any(held.model_digest == digest for held in own.held)):
        hints.append((encode_record(own), True))  # the directory tells of others only
    return {**_head_of(member), "hints": [[_text(payload), is_live] for payload, is_live in hints]}


def sight_of(view: dict[str, Any]) -> Sight:
    """What a view shows. Raises: RemoteProtocolError, IntegrityError for records that are none."""
    if "hints" in view:
        seen = tuple(Seen(decode_record(base64.b64decode(text)), bool(live)) for text, live in view["hints"])
    else:
        seen = tuple(Seen(record) for record in records_of(view))
    return Sight(
        peer_id=PeerId(view["peer_id"]),
        swarm=SwarmId(view["swarm"]),
        name=str(view["name"]),
        source="directory" if "hints" in view else "gossip",
        seen=tuple(sorted(seen, key=lambda one: one.record.peer_id)),
        links=tuple(Link(PeerId(peer), rtt_s, spread_s, rate) for peer, rtt_s, spread_s, rate in view["links"]),
        edges=tuple(view["edges"]),
    )


def records_of(view: dict[str, Any]) -> tuple[CoverageRecord, ...]:
    """The records of a view, in its order. Raises: RemoteProtocolError for bytes that are none.

    Seals are not checked again: this user's own peer did, and ten thousand would take seconds.
    """
    from shardp2p.swarm.sealed_records import payload_of

    return tuple(decode_record(payload_of(base64.b64decode(text))) for text in view["records"])


def _head_of(member: Member) -> dict[str, Any]:
    import trio

    return {
        "peer_id": member.peer_id,
        "swarm": member.swarm,
        "name": member.name,
        "links": [
            [link.peer, link.rtt_s, link.spread_s, link.bandwidth_bytes_s]
            for link in member.links.snapshot(trio.current_time())
        ],
        "edges": member.paths.edges(),
    }


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
