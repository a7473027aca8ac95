"""Which models of a swarm a peer holds layers of, and how much of its memory each gets. Pure.

Memory goes where layers are missing, then where a layer is on too few peers, then to the model that has the fewest
holders for what is asked of it. Within each model `placement` decides where.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardp2p.scheduler.holders import Holder, counts
from shardp2p.scheduler.options import SPARED
from shardp2p.scheduler.placement import Placement, place
from shardp2p.scheduler.settling import rank
from shardp2p.scheduler.topology import Machine, ModelShape, Topology
from shardp2p.vocabulary import LayerRange, PeerId


@dataclass(frozen=True, slots=True)
class Offer:
    """A model that the peer could serve.

    `room_bytes` is what one layer takes with its caches, `layer_s` how long it would compute, `stored` which layers'
    bytes it has, `barred` which it cannot hold, and `demand` what is asked of the model compared with others.
    """

    shape: ModelShape
    room_bytes: int
    layer_s: float
    coverage: tuple[Holder, ...] = ()
    stored: tuple[LayerRange, ...] = ()
    barred: frozenset[int] = frozenset()
    demand: float = 1.0


@dataclass(frozen=True, slots=True)
class Share:
    """What the peer should hold of one model."""

    shape: ModelShape
    placement: Placement


def share(peer: PeerId, memory_bytes: int, offers: Sequence[Offer], topology: Topology) -> tuple[Share, ...]:
    """How `peer` should use its memory, in the order in which models got their part; empty where no layer fits."""
    by_holders = [_counts(offer, peer) for offer in offers]
    granted = [0] * len(offers)
    left_bytes = memory_bytes
    for level in (*range(1, SPARED + 1), None):
        for at in sorted(range(len(offers)), key=lambda at: _urgency(offers[at], by_holders[at], level, peer)):
            offer, held = offers[at], by_holders[at]
            wanted = len(held) if level is None else sum(1 for count in held if count < level)
            more = max(0, min(wanted - granted[at], left_bytes // offer.room_bytes))
            granted[at] += more
            left_bytes -= more * offer.room_bytes
    shares = [
        Share(
            offer.shape,
            place(
                offer.shape,
                Machine(peer, layers, offer.layer_s),
                offer.coverage,
                topology,
                stored=offer.stored,
                barred=offer.barred,
            ),
        )
        for offer, layers in zip(offers, granted, strict=True)
        if layers
    ]
    return tuple(sorted(shares, key=lambda one: (one.placement.aim != "coverage", rank(one.shape.digest, peer))))


def _counts(offer: Offer, peer: PeerId) -> list[int]:
    others = [one.layers for one in offer.coverage if one.is_coming and one.peer_id != peer]
    return counts(offer.shape.layers, others)


def _urgency(offer: Offer, held: Sequence[int], level: int | None, peer: PeerId) -> tuple[float, bytes, PeerId]:
    """Smaller is more urgent. Of models with too few holders, that which is soonest complete; else the scarcest."""
    scarce = sum(1 for count in held if level is not None and count < level)
    need = scarce if level is not None else sum(held) / len(held)
    return (need / offer.demand, *rank(offer.shape.digest, peer))
