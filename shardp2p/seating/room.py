"""What fits into one peer's memory, and what is held of the models that it offers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shardp2p.errors import ConfigError, LocalProtocolError
from shardp2p.runtime.budget import Budget
from shardp2p.scheduler.holders import Holder, counts, holders_of
from shardp2p.seating.offered import Offered
from shardp2p.swarm.life import Seat, Seats
from shardp2p.vocabulary import LayerRange
from shardp2p.wire.records import CoverageRecord


class Room:
    """Of one peer. `models` by digest, in the order of its offer."""

    def __init__(self, models: Sequence[Offered], budget: Budget) -> None:
        self.models = {offered.shape.digest: offered for offered in models}
        self.budget = budget

    def offered(self, digest: str) -> Offered:
        """The model of that digest. Raises: LocalProtocolError for one that is not offered."""
        try:
            return self.models[digest]
        except KeyError:
            raise LocalProtocolError(f"the model {digest[:12]} is not offered") from None

    def need_bytes(self, seat: Seat) -> int:
        """What a seat's layers and caches take."""
        return self.budget.need_bytes(self.offered(seat.digest).footprint, seat.layers)

    def cache_bytes(self, seat: Seat) -> int:
        """What the caches of all sessions over a seat's layers may take together."""
        return self.budget.cache_rows * self.offered(seat.digest).footprint.row_bytes(seat.layers)

    def fits(self, seats: Iterable[Seat]) -> bool:
        """Whether seats fit into the memory together."""
        return sum(map(self.need_bytes, seats)) <= self.budget.free_bytes

    def holders(self, digest: str, records: Iterable[CoverageRecord]) -> tuple[Holder, ...]:
        """Who holds layers of a model. Whoever lies about how many it has is left out."""
        layers = self.offered(digest).shape.layers
        return tuple(holder for holder in holders_of(digest, records) if holder.layers.stop <= layers)

    def held(self, digest: str, records: Sequence[CoverageRecord]) -> list[int]:
        """How many others hold each layer of a model, or are about to."""
        coming = [holder.layers for holder in self.holders(digest, records) if holder.is_coming]
        return counts(self.offered(digest).shape.layers, coming)

    def pinned(self, layers: LayerRange) -> tuple[Seats, str]:
        """The layers of the only model that the user chose, if they fit; and why."""
        offered = next(iter(self.models.values()))
        try:
            self.budget.require(offered.footprint, layers)
        except ConfigError as error:
            return (), error.message
        return (Seat(offered.shape.model, offered.shape.digest, layers),), "the user chose them"

    def nothing_fits(self) -> str:
        """Why not even one layer fits, for the model of which least is missing."""
        reasons = []
        for offered in self.models.values():
            try:
                self.budget.require_any(offered.footprint)
            except ConfigError as error:
                reasons.append(error.message)
        return min(reasons, key=len) if reasons else "no part of a model fits into the memory that is offered"
