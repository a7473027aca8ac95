"""Layers that few hold: when a peer that serves goes there, as far as only it can tell. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardp2p.scheduler.holders import counts
from shardp2p.scheduler.options import MAX_RANGES, allowed, thin
from shardp2p.scheduler.settling import rank
from shardp2p.seating.room import Room
from shardp2p.swarm.life import Seat, Seats
from shardp2p.vocabulary import LayerRange, PeerId
from shardp2p.wire.records import CoverageRecord


def helps(room: Room, held: Seats, seats: Seats, others: Sequence[CoverageRecord]) -> bool:
    """Whether `seats` instead of `held` leave fewer layers on too few peers: by half of what they are, at least.

    Or so that all layers that were on the fewest peers are on more.
    """
    before: list[int] = []
    after: list[int] = []
    short_before = short_after = 0
    for digest in room.models:
        beside = room.held(digest, others)
        old, new = ([seat.layers for seat in some if seat.digest == digest] for some in (held, seats))
        was = [count + own for count, own in zip(beside, counts(len(beside), old), strict=True)]
        will = [count + own for count, own in zip(beside, counts(len(beside), new), strict=True)]
        level = allowed(was)
        short_before, short_after = short_before + thin(was, level), short_after + thin(will, level)
        before.append(min(was))
        after.append(min(will))
    helped = short_before - short_after
    return helped > 0 and (2 * helped >= sum(len(seat.layers) for seat in seats) or min(after) > min(before))


def ahead_of(peer: PeerId, others: Sequence[CoverageRecord]) -> list[CoverageRecord]:
    """Others, those on their way where they claim if they come before `peer`, and where they serve if after us."""
    first = rank("", peer)
    return [
        replace(
            record,
            held=tuple(held for held in record.held if (held.state == "serving") != (rank("", record.peer_id) < first)),
        )
        if record.state == "placing"
        else record
        for record in others
    ]


def is_coming_before(peer: PeerId, other: CoverageRecord) -> bool:
    """Whether `other` is on its way to a seat, and goes before `peer`."""
    return other.state == "loading" or (other.state == "placing" and rank("", other.peer_id) < rank("", peer))


def filled(room: Room, held: Seats, others: Sequence[CoverageRecord]) -> Seats:
    """`held` and one more run of inner layers in memory that is left, so that another peer may leave those.

    Where every layer on few peers has its holders bound, nobody can help alone. Never so much that more holders would
    be asked of every layer.
    """
    for digest, offered in room.models.items():
        own = [seat.layers for seat in held if seat.digest == digest]
        beside = room.held(digest, others)
        by_layer = [count + mine for count, mine in zip(beside, counts(len(beside), own), strict=True)]
        level = allowed(by_layer)
        if not own or len(own) >= MAX_RANGES or not thin(by_layer, level):
            continue
        most = min(len(beside) - 2, (level + 1) * len(beside) - 1 - sum(by_layer))
        for width in range(most, 0, -1):
            starts = range(1, len(beside) - width)
            runs = (LayerRange(start, start + width) for start in starts)
            seats = [Seat(offered.shape.model, digest, run) for run in runs if not _overlaps(run, own)]
            if seats and room.fits((*held, seats[0])):
                return tuple(sorted((*held, min(seats, key=lambda seat: _thickness(seat, by_layer, own)))))
    return held


def _thickness(seat: Seat, by_layer: Sequence[int], own: Sequence[LayerRange]) -> tuple[int, int]:
    """Smaller is better: layers on few peers, then near to our own."""
    near = min(max(part.start - seat.layers.stop, seat.layers.start - part.stop) for part in own)
    return sum(by_layer[seat.layers.start : seat.layers.stop]), near


def _overlaps(run: LayerRange, own: Sequence[LayerRange]) -> bool:
    return any(run.start < part.stop and part.start < run.stop for part in own)
