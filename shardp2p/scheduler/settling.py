"""How peers that chose at the same moment come apart, and when a peer that runs must move. Pure.

A claim (state `placing`) may be stale: two peers took the same layers before they heard of each other. Once no news of
claims came for a while, each peer plays the same game over the claims that it sees: whoever could help scarce layers
more elsewhere, given all the others, gives way, the last in rank first. All compute the same end, so each moves at most
once for what it had not seen. Link times play no part: no two peers know the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from shardp2p.scheduler.holders import Holder, counts, missing_ranges, named
from shardp2p.scheduler.options import Option, allowed, help_of, options
from shardp2p.scheduler.placement import Placement
from shardp2p.scheduler.topology import ModelShape
from shardp2p.vocabulary import LayerRange, PeerId

MAX_CLAIMS = 64
"""Claims that take part in one game; the others count as settled. The game takes time in the square of them."""

UNEVEN = 5
"""Where peers come and go all the time no layer has as many holders as memory allows: one that has a fifth less is
not scarce, so nobody gives up its claim for it. With four holders or fewer each one counts."""


def rank(digest: str, peer: PeerId) -> tuple[bytes, PeerId]:
    """The order in which peers keep their places in a model: the same for all, another one for each model."""
    return sha256(f"{digest}/{peer}".encode()).digest(), peer


def resolve_conflict(shape: ModelShape, me: PeerId, coverage: Sequence[Holder]) -> Placement | None:
    """Where `me`, whose claim is part of `coverage`, must go because of other claims; None where it may stay."""
    holders = [holder for holder in coverage if holder.is_coming]
    claims = sorted(_claims(shape, holders), key=lambda claim: rank(shape.digest, claim.peer_id), reverse=True)
    claims = claims[:MAX_CLAIMS]
    mine = next((claim for claim in claims if claim.peer_id == me), None)
    if mine is None:
        return None
    playing = {claim.peer_id for claim in claims}
    settled = [holder.layers for holder in holders if holder.peer_id not in playing]
    for _ in range(2 * len(claims)):
        at, better = _first_to_move(shape.layers, settled, claims)
        if better is None:
            break
        claims[at] = _Claim(claims[at].peer_id, better.ranges, tuple(sorted(better.layers)))
    end = next(claim for claim in claims if claim.peer_id == me)
    if end.ranges == mine.ranges:
        return None
    reason = (
        f"others chose the layers {named(mine.ranges)} at the same time and keep them; it takes {named(end.ranges)}"
    )
    return Placement(end.ranges, "coverage", (reason,))


def must_move(shape: ModelShape, me: PeerId, coverage: Sequence[Holder]) -> bool:
    """Whether `me`, which serves, should look for another place: layers are missing and nobody needs it where it is.

    Of several such peers only as many move as the missing layers need, the first in rank first.
    """
    holders = [holder for holder in coverage if holder.is_coming]
    missing = missing_ranges(shape.layers, [holder.layers for holder in holders])
    if not missing:
        return False
    held = counts(shape.layers, [holder.layers for holder in holders])
    by_peer: dict[PeerId, list[LayerRange]] = {}
    for holder in holders:
        if holder.state == "serving":
            by_peer.setdefault(holder.peer_id, []).append(holder.layers)
    needed = sum(map(len, missing))
    for peer in sorted(by_peer, key=lambda one: rank(shape.digest, one)):
        if needed <= 0:
            return False
        own = counts(shape.layers, by_peer[peer])
        if all(count > mine for count, mine in zip(held, own, strict=True) if mine):
            if peer == me:
                return True
            needed -= sum(1 for mine in own if mine)
            held = [count - mine for count, mine in zip(held, own, strict=True)]
    return False


@dataclass(frozen=True, slots=True)
class _Claim:
    peer_id: PeerId
    ranges: tuple[LayerRange, ...]
    layers: tuple[int, ...]


def _claims(shape: ModelShape, holders: Sequence[Holder]) -> list[_Claim]:
    """What each peer claims, if it is still free to choose: none of its layers of this model is loading or serving."""
    by_peer: dict[PeerId, list[Holder]] = {}
    for holder in holders:
        by_peer.setdefault(holder.peer_id, []).append(holder)
    claims = []
    for peer, held in by_peer.items():
        if all(holder.state == "placing" for holder in held):
            ranges = tuple(sorted(holder.layers for holder in held))
            taken = [layer for layer, count in enumerate(counts(shape.layers, ranges)) if count]
            claims.append(_Claim(peer, ranges, tuple(taken)))
    return claims


def _first_to_move(layers: int, settled: Sequence[LayerRange], claims: Sequence[_Claim]) -> tuple[int, Option | None]:
    """The first of `claims` that would help more elsewhere, given all others, and where."""
    everything = counts(layers, [*settled, *(part for claim in claims for part in claim.ranges)])
    even = allowed(everything)
    level = even - even // UNEVEN
    for at, claim in enumerate(claims):
        held = list(everything)
        for layer in claim.layers:
            held[layer] -= 1
        found = options(layers, len(claim.layers), held, level)
        best = max(found, key=lambda one: (one.relief, one.balance, -len(one.ranges), -one.start))
        if best.relief > help_of(claim.layers, held, level):
            return at, best
    return 0, None
