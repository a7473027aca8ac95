"""Layers that few hold: when a peer that serves goes there, as far as only it can tell. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardp2p.scheduler.holders import counts
from shardp2p.scheduler.options import allowed, thin
from shardp2p.scheduler.settling import rank
from shardp2p.seating.room import Room
from shardp2p.swarm.life import Seats
from shardp2p.vocabulary import PeerId
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
