"""Where a peer should sit that holds nothing yet, or looks anew. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from shardp2p.scheduler.holders import UNMEASURED_LAYER_S
from shardp2p.scheduler.sharing import Offer, share
from shardp2p.scheduler.topology import Topology
from shardp2p.seating.offered import Offered
from shardp2p.seating.room import Room
from shardp2p.swarm.life import Seat, Seats
from shardp2p.vocabulary import LayerRange, PeerId
from shardp2p.wire.records import CoverageRecord


class Chooser:
    """One peer's."""

    def __init__(self, peer: PeerId, room: Room) -> None:
        self._peer = peer
        self._room = room

    def choose(self, records: Iterable[CoverageRecord], topology: Topology, *, stored: Seats = ()) -> tuple[Seats, str]:
        """Where to sit, and why; no seats where nothing fits. `stored` are seats whose layers are in memory or near."""
        if not self._room.models:
            return (), "there is no model on this machine; import one: shardp2p model import SOURCE"
        records = tuple(records)
        held = {digest: self._room.held(digest, records) for digest in self._room.models}
        # The first and the last layers bring embeddings along, in whose place several inner layers may fit.
        anywhere, inner = (self._most(records, topology, stored, is_inner=is_inner) for is_inner in (False, True))
        found = [choice for choice in (anywhere, inner, *self._ends(held)) if choice is not None]
        if not found:
            return (), self._room.nothing_fits()
        return max(found, key=lambda choice: self.worth(choice[0], held))

    def worth(self, seats: Seats, held: Mapping[str, Sequence[int]]) -> tuple[bool, tuple[int, ...], int]:
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
        offers = [self._offer(offered, records, stored, is_inner=is_inner) for offered in self._room.models.values()]
        memory_bytes = self._room.budget.free_bytes
        while memory_bytes > 0:
            shares = share(self._peer, memory_bytes, offers, topology)
            seats = tuple(
                sorted(
                    Seat(one.shape.model, one.shape.digest, layers) for one in shares for layers in one.placement.ranges
                )
            )
            if seats and self._room.fits(seats):
                return seats, "; ".join(reason for one in shares for reason in one.placement.reasons)
            memory_bytes -= min(offer.room_bytes for offer in offers)
        return None

    def _ends(self, held: Mapping[str, Sequence[int]]) -> Iterator[tuple[Seats, str]]:
        """For each end of a model: as many layers from there on as fit."""
        for digest, offered in self._room.models.items():
            layers = offered.shape.layers
            lengths = range(layers, 0, -1)
            ends = {0: [LayerRange(0, count) for count in lengths]}
            ends[layers - 1] = [LayerRange(layers - count, layers) for count in lengths]
            for end, parts in ends.items():
                seats = (Seat(offered.shape.model, digest, part) for part in parts)
                longest = next((seat for seat in seats if self._room.fits((seat,))), None)
                if longest is not None:
                    yield (longest,), f"{_few(held[digest][end])} layer {end} of {offered.shape.model}"

    def _offer(self, offered: Offered, records: Sequence[CoverageRecord], stored: Seats, *, is_inner: bool) -> Offer:
        shape = offered.shape
        coverage = self._room.holders(shape.digest, records)
        speeds = sorted(holder.layer_s for holder in coverage if holder.state == "serving")
        return Offer(
            shape=shape,
            room_bytes=max(
                layer + self._room.budget.cache_rows * row
                for layer, row in zip(offered.footprint.layer_bytes, offered.footprint.layer_row_bytes, strict=True)
            ),
            layer_s=speeds[len(speeds) // 2] if speeds else UNMEASURED_LAYER_S,
            coverage=coverage,
            stored=tuple(seat.layers for seat in stored if seat.digest == shape.digest),
            barred=frozenset((0, shape.layers - 1)) if is_inner else frozenset(),
        )


def _few(count: int) -> str:
    return {0: "nobody holds", 1: "only one peer holds"}.get(count, f"only {count} peers hold")
