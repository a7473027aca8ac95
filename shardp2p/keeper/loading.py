"""Layers from the store onto the device, and into service."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

import structlog
import trio

from shardp2p.keeper.kept import Kept
from shardp2p.keeper.offer import Offer
from shardp2p.node import Node
from shardp2p.seating import Seating
from shardp2p.stage.holding import CacheBudget, Holding
from shardp2p.swarm.life import Seat
from shardp2p.swarm.speed import SpeedEstimate

if TYPE_CHECKING:
    from shardp2p.runtime.device import DeviceThread

log = structlog.get_logger()


class NotWantedError(Exception):
    """The peer ends while layers are loaded."""


class Loader:
    """One peer's."""

    def __init__(self, node: Node, offer: Offer, seating: Seating) -> None:
        self.get_device: Callable[[], Awaitable[DeviceThread]] | None = None
        """Gives the device, to be set before anything is to be loaded."""
        self.progress = (0, 0)
        """Bytes of the layers that are being loaded: how many are, of how many."""
        self._node = node
        self._offer = offer
        self._seating = seating
        self._is_stopped = False

    def stop(self) -> None:
        """Load no further tensor."""
        self._is_stopped = True

    async def take(self, seat: Seat) -> Kept:
        """Load a seat's layers and serve them.

        Raises: ConfigError, IntegrityError or OverloadedError for what cannot be loaded; NotWantedError once stopped.
        """
        assert self.get_device is not None
        device = await self.get_device()
        offered = self._seating.offered(seat.digest)
        budget, offer = CacheBudget(self._seating.cache_bytes(seat)), self._offer
        from shardp2p.runtime.bring_up import bring_up  # brings torch

        stored = offered.stored
        loaded = await device.run_abandonable(
            partial(
                bring_up,
                stored.directory,
                seat.layers,
                dtype=offer.dtype,
                device=offer.device,
                digests=stored.manifest.digests(),
                cache_bytes=budget.total_bytes,
                progress=self._note_progress,
                fast_layout=offer.fast_layout,
            )
        )
        speed = SpeedEstimate(loaded.speed)

        def observe(rows: int, layers: int, compute_s: float) -> None:
            speed.observe(rows, layers, compute_s, trio.current_time())

        holding = Holding(seat.digest, offer.dtype, offer.budget.cache_rows)
        held = self._node.hold(
            seat.model, loaded.block, device, holding, loaded.growth_bytes, budget=budget, observe=observe
        )
        log.info("layers_served", model=seat.model, layers=str(seat.layers))
        return Kept(seat, held, speed, loaded.block.context_tokens)

    def _note_progress(self, done_bytes: int, total_bytes: int) -> None:
        """Called in the device's thread, which nobody can cancel."""
        if self._is_stopped:
            raise NotWantedError
        self.progress = done_bytes, total_bytes
