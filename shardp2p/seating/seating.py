"""Where one peer sits: what it claims, whether it keeps that, and whether it goes elsewhere. Pure.

`choose` for a peer that holds nothing yet, `settle` when others chose at the same moment, `review` while it serves.
`answer` says which of these a question of the life machine asks for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shardp2p.runtime.budget import Budget
from shardp2p.scheduler.holders import Holder, missing_ranges
from shardp2p.scheduler.occasion import Occasion
from shardp2p.scheduler.options import allowed, thin
from shardp2p.scheduler.reseating import better_seat, is_spare, may_leave
from shardp2p.scheduler.settling import must_move, resolve_conflict
from shardp2p.scheduler.topology import Topology
from shardp2p.seating.choosing import Chooser
from shardp2p.seating.copies import copies
from shardp2p.seating.offered import Offered
from shardp2p.seating.room import Room
from shardp2p.seating.thinness import ahead_of, filled, helps, is_coming_before
from shardp2p.swarm.life import Choose, Seat, Seats
from shardp2p.vocabulary import LayerRange, PeerId
from shardp2p.wire.records import CoverageRecord

NOTHING_MISSING = "nothing is missing that this peer should take"


class Seating:
    """What one peer offers, and where it could sit."""

    def __init__(
        self, peer: PeerId, models: Sequence[Offered], budget: Budget, pinned: LayerRange | None = None
    ) -> None:
        """`pinned` layers were chosen by the user, of the only model."""
        self._peer = peer
        self._room = Room(models, budget)
        self._chooser = Chooser(peer, self._room)
        self._pinned = pinned
        self._occasions = {digest: Occasion() for digest in self._room.models}
        self._mends: Seats = ()
        self._fills: Seats = ()

    def offered(self, digest: str) -> Offered:
        """The model of that digest. Raises: LocalProtocolError for one that is not offered."""
        return self._room.offered(digest)

    def need_bytes(self, seat: Seat) -> int:
        """What a seat's layers and caches take."""
        return self._room.need_bytes(seat)

    def cache_bytes(self, seat: Seat) -> int:
        """What the caches of all sessions over a seat's layers may take together."""
        return self._room.cache_bytes(seat)

    def answer(
        self,
        question: Choose,
        claimed: Seats,
        held: Seats,
        records: Iterable[CoverageRecord],
        topology: Topology,
        now: float,
    ) -> tuple[Seats, str]:
        """Where to sit for a peer that claims and holds these seats, and why. `records` have its own among them."""
        records = tuple(records)
        others = [record for record in records if record.peer_id != self._peer]
        if question.is_review:
            return self.review(held, records, topology, now)
        if not claimed:
            return self.choose(others, topology, stored=held)
        if held and not self.may_leave(held, claimed, records):
            return held, "its layers are needed where it is"
        if held and self._gives_way(held, claimed, others):
            return held, "another peer goes before it"
        if held and self.is_whole(claimed, records):
            return claimed, "others serve what it gives up"
        return self.settle(claimed, others, topology)

    def choose(self, records: Iterable[CoverageRecord], topology: Topology, *, stored: Seats = ()) -> tuple[Seats, str]:
        """Where to sit, and why; no seats where nothing fits. `stored` are seats whose layers are in memory or near."""
        if self._pinned is not None:
            return self._room.pinned(self._pinned)
        return self._chooser.choose(records, topology, stored=stored)

    def settle(self, seats: Seats, records: Iterable[CoverageRecord], topology: Topology) -> tuple[Seats, str]:
        """The claim `seats` again, or others where it must give way to other claims; and why."""
        if self._pinned is not None:
            return self._room.pinned(self._pinned)
        records = tuple(records)
        settled: list[Seat] = []
        reasons: list[str] = []
        for digest, offered in self._room.models.items():
            mine = [seat for seat in seats if seat.digest == digest]
            if not mine:
                continue
            others = self._room.holders(digest, records)
            claims = [Holder(self._peer, seat.layers, state="placing") for seat in mine]
            moved = resolve_conflict(offered.shape, self._peer, [*others, *claims])
            if moved is None:
                settled += mine
            else:
                settled += [Seat(offered.shape.model, digest, layers) for layers in moved.ranges]
                reasons += moved.reasons
        if reasons and not self._room.fits(settled):
            again, reason = self.choose(records, topology)
            counted = {digest: self._room.held(digest, records) for digest in self._room.models}
            if again and self._chooser.worth(again, counted) > self._chooser.worth(seats, counted):
                return again, reason
        if not reasons or not self._room.fits(settled):
            return seats, copies(self._room, seats, records)
        return tuple(sorted(settled)), "; ".join(reasons)

    def review(
        self, held: Seats, records: Iterable[CoverageRecord], topology: Topology, now: float
    ) -> tuple[Seats, str]:
        """`held` again, or other seats: where layers are missing, or where the best ring gets clearly faster; and why.

        `records` have our own among them. Unless somebody came, went or moved, nobody moves for speed: what was
        measured anew is no reason.
        """
        if self._pinned is not None:
            return held, "the user chose these layers"
        records = tuple(records)
        for digest, offered in self._room.models.items():
            coverage = self._room.holders(digest, records)
            if must_move(offered.shape, self._peer, coverage):
                others = [record for record in records if record.peer_id != self._peer]
                return self.choose(others, topology, stored=held)
            occasion = self._occasions[digest]
            occasion.note(coverage, now)
            better = better_seat(offered.shape, self._peer, coverage, topology) if occasion.is_open(now) else None
            if better is None:
                continue
            kept = [seat for seat in held if seat.digest != digest]
            seats = tuple(sorted([*kept, *(Seat(offered.shape.model, digest, layers) for layers in better.ranges)]))
            if self._room.fits(seats):
                occasion.moved()
                self._mends = seats if better.aim == "redundancy" else ()
                return seats, "; ".join(better.reasons)
        if any(occasion.is_open(now) for occasion in self._occasions.values()):
            return self._mend(held, records, topology, now)
        return held, NOTHING_MISSING

    def _mend(
        self, held: Seats, records: Sequence[CoverageRecord], topology: Topology, now: float
    ) -> tuple[Seats, str]:
        """`held` again, or seats of layers that few hold, within our own memory, which only we know to the byte.

        Nobody moves while another peer is on its way, or where the best ring would be slower without it. Once nobody
        could help for a while, whoever has room left takes more layers, which sets others free.
        """
        coverage = [
            (offered.shape, self._room.holders(digest, records)) for digest, offered in self._room.models.items()
        ]
        everywhere = [self._room.held(digest, records) for digest in self._room.models]
        is_calm = all(one.state == "serving" for _, holders in coverage for one in holders)
        if not is_calm or not any(thin(by_layer, allowed(by_layer)) for by_layer in everywhere):
            return held, NOTHING_MISSING
        others = [record for record in records if record.peer_id != self._peer]
        seats, reason = self.choose(others, topology, stored=held)
        is_better = helps(self._room, held, seats, others) and self.may_leave(held, seats, records)
        if is_better and all(is_spare(shape, self._peer, holders, topology) for shape, holders in coverage):
            self._mends = seats
        elif all(occasion.is_quiet(now) for occasion in self._occasions.values()):
            seats, reason = filled(self._room, held, others), "there is room, so that others can leave these layers"
            self._fills = seats
        else:
            seats = held
        if seats == held:
            return held, NOTHING_MISSING
        for occasion in self._occasions.values():
            occasion.moved()
        return seats, reason

    def _gives_way(self, held: Seats, claimed: Seats, others: Sequence[CoverageRecord]) -> bool:
        """Whether a peer that goes before us makes it needless that we go where we claim, because layers are thin."""
        if claimed == self._fills:
            return any(is_coming_before(self._peer, record) for record in others)
        return claimed == self._mends and not helps(self._room, held, claimed, ahead_of(self._peer, others))

    def may_leave(self, held: Seats, wanted: Seats, records: Iterable[CoverageRecord]) -> bool:
        """Whether all layers that a move from `held` to `wanted` gives up stay served by others. As for `review`."""
        records = tuple(records)
        gives_up = {seat.digest for seat in held if seat not in wanted}
        return all(
            may_leave(self._room.offered(digest).shape, self._peer, self._room.holders(digest, records))
            for digest in gives_up
        )

    def is_whole(self, seats: Seats, records: Iterable[CoverageRecord]) -> bool:
        """Whether every layer of the models of `seats` is served, so that moving there is no hurry."""
        records = tuple(records)
        return not any(
            missing_ranges(
                self._room.offered(digest).shape.layers,
                [holder.layers for holder in self._room.holders(digest, records) if holder.state == "serving"],
            )
            for digest in {seat.digest for seat in seats}
        )
