"""Which layers of which models one peer should hold: the scheduler's answers, within the peer's memory. Pure.

`choose` for a peer that holds nothing yet, `settle` when others chose at the same moment, `review` while it serves.
`answer` says which of these a question of the life machine asks for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from shardp2p.errors import ConfigError, LocalProtocolError
from shardp2p.runtime.budget import Budget
from shardp2p.scheduler.holders import UNMEASURED_LAYER_S, Holder, counts, holders_of, missing_ranges
from shardp2p.scheduler.occasion import Occasion
from shardp2p.scheduler.options import allowed, thin
from shardp2p.scheduler.reseating import better_seat, is_spare, may_leave
from shardp2p.scheduler.settling import must_move, rank, resolve_conflict
from shardp2p.scheduler.sharing import Offer, share
from shardp2p.scheduler.topology import ModelShape, Topology
from shardp2p.swarm.life import Choose, Seat, Seats
from shardp2p.vocabulary import LayerRange, PeerId
from shardp2p.weights.footprint import Footprint
from shardp2p.weights.store import StoredModel
from shardp2p.wire.records import CoverageRecord

NOTHING_MISSING = "nothing is missing that this peer should take"


@dataclass(frozen=True, slots=True)
class Offered:
    """A model that the peer could serve: where its bytes are, and what its layers take."""

    stored: StoredModel
    footprint: Footprint

    @property
    def shape(self) -> ModelShape:
        """The model as the scheduler sees it."""
        manifest = self.stored.manifest
        layer_bytes = max(self.footprint.layer_bytes)
        return ModelShape(self.stored.name, manifest.digest, manifest.layers, layer_bytes, 2 * manifest.hidden_size)


class Seating:
    """What one peer offers, and where it could sit."""

    def __init__(
        self, peer: PeerId, models: Sequence[Offered], budget: Budget, pinned: LayerRange | None = None
    ) -> None:
        """`pinned` layers were chosen by the user, of the only model."""
        self._peer = peer
        self._models = {offered.shape.digest: offered for offered in models}
        self._budget = budget
        self._pinned = pinned
        self._occasions = {digest: Occasion() for digest in self._models}
        self._mends: Seats = ()

    def offered(self, digest: str) -> Offered:
        """The model of that digest. Raises: LocalProtocolError for one that is not offered."""
        try:
            return self._models[digest]
        except KeyError:
            raise LocalProtocolError(f"the model {digest[:12]} is not offered") from None

    def need_bytes(self, seat: Seat) -> int:
        """What a seat's layers and caches take."""
        return self._budget.need_bytes(self.offered(seat.digest).footprint, seat.layers)

    def cache_bytes(self, seat: Seat) -> int:
        """What the caches of all sessions over a seat's layers may take together."""
        return self._budget.cache_rows * self.offered(seat.digest).footprint.row_bytes(seat.layers)

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
        if held and claimed == self._mends and not self._helps(held, claimed, self._ahead(others)):
            return held, "another peer goes there"
        if held and self.is_whole(claimed, records):
            return claimed, "others serve what it gives up"
        return self.settle(claimed, others, topology)

    def choose(self, records: Iterable[CoverageRecord], topology: Topology, *, stored: Seats = ()) -> tuple[Seats, str]:
        """Where to sit, and why; no seats where nothing fits. `stored` are seats whose layers are in memory or near."""
        if self._pinned is not None:
            return self._pinned_seats(self._pinned)
        if not self._models:
            return (), "there is no model on this machine; import one with `shardp2p model import`"
        records = tuple(records)
        held = {digest: self._held(digest, records) for digest in self._models}
        # The first and the last layers bring embeddings along, in whose place several inner layers may fit.
        anywhere, inner = (self._most(records, topology, stored, is_inner=is_inner) for is_inner in (False, True))
        found = [choice for choice in (anywhere, inner, *self._ends(held)) if choice is not None]
        if not found:
            return (), self._nothing_fits()
        return max(found, key=lambda choice: self._worth(choice[0], held))

    def _worth(self, seats: Seats, held: Mapping[str, Sequence[int]]) -> tuple[bool, tuple[int, ...], int]:
        """How much seats are worth beside what others hold. Missing ends come first: few peers have room for those.

        Then the scarcest layers, by how many hold them; then more layers.
        """
        after = {digest: list(by_layer) for digest, by_layer in held.items()}
        takes_missing_end = False
        for seat in seats:
            for layer in range(seat.layers.start, seat.layers.stop):
                is_end = layer in (0, len(after[seat.digest]) - 1)
                takes_missing_end |= is_end and after[seat.digest][layer] == 0
                after[seat.digest][layer] += 1
        scarcest = sorted(count for by_layer in after.values() for count in by_layer)
        return takes_missing_end, tuple(scarcest), sum(len(seat.layers) for seat in seats)

    def _most(
        self, records: Sequence[CoverageRecord], topology: Topology, stored: Seats, *, is_inner: bool
    ) -> tuple[Seats, str] | None:
        """The best seats of the largest memory in which they fit, without the ends of models where `is_inner`."""
        offers = [self._offer(offered, records, stored, is_inner=is_inner) for offered in self._models.values()]
        memory_bytes = self._budget.free_bytes
        while memory_bytes > 0:
            shares = share(self._peer, memory_bytes, offers, topology)
            seats = tuple(
                sorted(
                    Seat(one.shape.model, one.shape.digest, layers) for one in shares for layers in one.placement.ranges
                )
            )
            if seats and self._fits(seats):
                return seats, "; ".join(reason for one in shares for reason in one.placement.reasons)
            memory_bytes -= min(offer.room_bytes for offer in offers)
        return None

    def _ends(self, held: Mapping[str, Sequence[int]]) -> Iterator[tuple[Seats, str]]:
        """For each end of a model: as many layers from there on as fit."""
        for digest, offered in self._models.items():
            layers = offered.shape.layers
            lengths = range(layers, 0, -1)
            ends = {0: [LayerRange(0, count) for count in lengths]}
            ends[layers - 1] = [LayerRange(layers - count, layers) for count in lengths]
            for end, parts in ends.items():
                seats = (Seat(offered.shape.model, digest, part) for part in parts)
                longest = next((seat for seat in seats if self._fits((seat,))), None)
                if longest is not None:
                    yield (longest,), f"{_few(held[digest][end])} layer {end} of {offered.shape.model}"

    def _holders(self, digest: str, records: Iterable[CoverageRecord]) -> tuple[Holder, ...]:
        """Who holds layers of a model. Whoever lies about how many it has is left out."""
        layers = self.offered(digest).shape.layers
        return tuple(holder for holder in holders_of(digest, records) if holder.layers.stop <= layers)

    def _held(self, digest: str, records: Sequence[CoverageRecord]) -> list[int]:
        """How many others hold each layer of a model, or are about to."""
        coming = [holder.layers for holder in self._holders(digest, records) if holder.is_coming]
        return counts(self.offered(digest).shape.layers, coming)

    def settle(self, seats: Seats, records: Iterable[CoverageRecord], topology: Topology) -> tuple[Seats, str]:
        """The claim `seats` again, or others where it must give way to other claims; and why."""
        if self._pinned is not None:
            return self._pinned_seats(self._pinned)
        records = tuple(records)
        settled: list[Seat] = []
        reasons: list[str] = []
        for digest, offered in self._models.items():
            mine = [seat for seat in seats if seat.digest == digest]
            if not mine:
                continue
            others = self._holders(digest, records)
            claims = [Holder(self._peer, seat.layers, state="placing") for seat in mine]
            moved = resolve_conflict(offered.shape, self._peer, [*others, *claims])
            if moved is None:
                settled += mine
            else:
                settled += [Seat(offered.shape.model, digest, layers) for layers in moved.ranges]
                reasons += moved.reasons
        if reasons and not self._fits(settled):
            again, reason = self.choose(records, topology)
            counted = {digest: self._held(digest, records) for digest in self._models}
            if again and self._worth(again, counted) > self._worth(seats, counted):
                return again, reason
        if not reasons or not self._fits(settled):
            return seats, "nobody else took them"
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
        for digest, offered in self._models.items():
            coverage = self._holders(digest, records)
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
            if self._fits(seats):
                occasion.moved()
                self._mends = seats if better.aim == "redundancy" else ()
                return seats, "; ".join(better.reasons)
        if any(occasion.is_open(now) for occasion in self._occasions.values()):
            return self._mend(held, records, topology)
        return held, NOTHING_MISSING

    def _mend(self, held: Seats, records: Sequence[CoverageRecord], topology: Topology) -> tuple[Seats, str]:
        """`held` again, or seats of layers that few hold, within our own memory, which only we know to the byte.

        Nobody moves while another peer is on its way, or where the best ring would be slower without it.
        """
        coverage = [(offered.shape, self._holders(digest, records)) for digest, offered in self._models.items()]
        everywhere = [self._held(digest, records) for digest in self._models]
        is_calm = all(one.state == "serving" for _, holders in coverage for one in holders)
        if not is_calm or not any(thin(by_layer, allowed(by_layer)) for by_layer in everywhere):
            return held, NOTHING_MISSING
        others = [record for record in records if record.peer_id != self._peer]
        seats, reason = self.choose(others, topology, stored=held)
        if not self._helps(held, seats, others) or not self.may_leave(held, seats, records):
            return held, NOTHING_MISSING
        if not all(is_spare(shape, self._peer, holders, topology) for shape, holders in coverage):
            return held, NOTHING_MISSING
        for occasion in self._occasions.values():
            occasion.moved()
        self._mends = seats
        return seats, reason

    def _helps(self, held: Seats, seats: Seats, others: Sequence[CoverageRecord]) -> bool:
        """Whether `seats` instead of `held` leave fewer layers on too few peers: by half of what they are, at least.

        Or so that all layers that were on the fewest peers are on more.
        """
        before: list[int] = []
        after: list[int] = []
        short_before = short_after = 0
        for digest in self._models:
            beside = self._held(digest, others)
            old, new = ([seat.layers for seat in some if seat.digest == digest] for some in (held, seats))
            was = [count + own for count, own in zip(beside, counts(len(beside), old), strict=True)]
            will = [count + own for count, own in zip(beside, counts(len(beside), new), strict=True)]
            level = allowed(was)
            short_before, short_after = short_before + thin(was, level), short_after + thin(will, level)
            before.append(min(was))
            after.append(min(will))
        helped = short_before - short_after
        return helped > 0 and (2 * helped >= sum(len(seat.layers) for seat in seats) or min(after) > min(before))

    def _ahead(self, others: Sequence[CoverageRecord]) -> list[CoverageRecord]:
        """Others, those on their way where they claim if they come before us, and where they serve if after us."""
        first = rank("", self._peer)
        return [
            replace(
                record,
                held=tuple(
                    held for held in record.held if (held.state == "serving") != (rank("", record.peer_id) < first)
                ),
            )
            if record.state == "placing"
            else record
            for record in others
        ]

    def may_leave(self, held: Seats, wanted: Seats, records: Iterable[CoverageRecord]) -> bool:
        """Whether all layers that a move from `held` to `wanted` gives up stay served by others. As for `review`."""
        records = tuple(records)
        gives_up = {seat.digest for seat in held if seat not in wanted}
        return all(
            may_leave(self.offered(digest).shape, self._peer, self._holders(digest, records)) for digest in gives_up
        )

    def is_whole(self, seats: Seats, records: Iterable[CoverageRecord]) -> bool:
        """Whether every layer of the models of `seats` is served, so that moving there is no hurry."""
        records = tuple(records)
        return not any(
            missing_ranges(
                self.offered(digest).shape.layers,
                [holder.layers for holder in self._holders(digest, records) if holder.state == "serving"],
            )
            for digest in {seat.digest for seat in seats}
        )

    def _pinned_seats(self, layers: LayerRange) -> tuple[Seats, str]:
        offered = next(iter(self._models.values()))
        try:
            self._budget.require(offered.footprint, layers)
        except ConfigError as error:
            return (), error.message
        return (Seat(offered.shape.model, offered.shape.digest, layers),), "the user chose them"

    def _offer(self, offered: Offered, records: Sequence[CoverageRecord], stored: Seats, *, is_inner: bool) -> Offer:
        shape = offered.shape
        coverage = self._holders(shape.digest, records)
        speeds = sorted(holder.layer_s for holder in coverage if holder.state == "serving")
        return Offer(
            shape=shape,
            room_bytes=max(
                layer + self._budget.cache_rows * row
                for layer, row in zip(offered.footprint.layer_bytes, offered.footprint.layer_row_bytes, strict=True)
            ),
            layer_s=speeds[len(speeds) // 2] if speeds else UNMEASURED_LAYER_S,
            coverage=coverage,
            stored=tuple(seat.layers for seat in stored if seat.digest == shape.digest),
            barred=frozenset((0, shape.layers - 1)) if is_inner else frozenset(),
        )

    def _fits(self, seats: Iterable[Seat]) -> bool:
        return sum(map(self.need_bytes, seats)) <= self._budget.free_bytes

    def _nothing_fits(self) -> str:
        """Why not even one layer fits, for the model of which least is missing."""
        reasons = []
        for offered in self._models.values():
            try:
                self._budget.require_any(offered.footprint)
            except ConfigError as error:
                reasons.append(error.message)
        return min(reasons, key=len) if reasons else "no part of a model fits into the memory that is offered"


def _few(count: int) -> str:
    return {0: "nobody holds", 1: "only one peer holds"}.get(count, f"only {count} peers hold")
