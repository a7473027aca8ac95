"""Why nobody of a swarm answers, in one line that is not too long to read. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shardp2p.errors import ShardError
from shardp2p.vocabulary import PeerId

SHOWN: Final = 4
"""Peers whose addresses are listed."""


def silence(swarm_name: str, failures: Sequence[tuple[PeerId, ShardError]]) -> str:
    """Each address that was tried with its reason, and what helps; a peer's id stands there once."""
    told = sorted(_shortly(peer, error.message) for peer, error in failures)
    more = [f"and {len(told) - SHOWN} more"] if len(told) > SHOWN else []
    return (
        f"no peer of the swarm can be reached: {'; '.join([*told[:SHOWN], *more])}; start one of them, or name one "
        "that can be dialled from here, by an address that its `shardp2p status` shows: "
        f"--join {swarm_name} --peer MULTIADDR"
    )


def _shortly(peer: PeerId, message: str) -> str:
    reasons = message.removeprefix(f"cannot reach peer {peer}: ")
    first, end, rest = reasons.partition(f"/p2p/{peer}")
    return first + end + rest.replace(f"/p2p/{peer}", "")
