"""The seats that a peer holds: letting go of some and taking others, with patience for what runs on them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

import trio

from shardp2p.node import HeldModel
from shardp2p.swarm.life import Seat, Seats
from shardp2p.swarm.speed import SpeedEstimate

RELEASE_S: Final = 30.0
"""How long sessions on layers that the peer gives up may go on, where others wait for the layers that it takes."""
FINISH_S: Final = 300.0
"""The same where nobody waits: requests that run notice nothing of a move, unless they take longer than that."""


@dataclass(slots=True)
class Kept:
    """A seat that is taken: what serves it, and how fast it is."""

    seat: Seat
    held: HeldModel
    speed: SpeedEstimate
    context_tokens: int


class KeptSeats:
    """What one peer holds now. One task at a time moves."""

    def __init__(
        self, take: Callable[[Seat], Awaitable[Kept]], release: Callable[[HeldModel], Awaitable[None]]
    ) -> None:
        """`take` loads a seat's layers and serves them; `release` returns when no session runs on them any more, and
        ends those that run when it is cancelled.
        """
        self._take = take
        self._release = release
        self._kept: dict[Seat, Kept] = {}

    @property
    def seats(self) -> Seats:
        """Which these are, in order."""
        return tuple(sorted(self._kept))

    def all(self) -> Iterable[Kept]:
        """All that is held."""
        return self._kept.values()

    async def move(self, seats: Seats, *, is_urgent: bool) -> None:
        """Hold exactly `seats`; sessions on others get longer to end where it is not urgent. Raises: as `take`.

        When it fails or is cancelled, what was given up stays so and what was taken too.
        """
        for seat in [seat for seat in self._kept if seat not in seats]:
            kept = self._kept.pop(seat)
            with trio.move_on_after(RELEASE_S if is_urgent else FINISH_S):
                await self._release(kept.held)
        for seat in seats:
            if seat not in self._kept:
                self._kept[seat] = await self._take(seat)

    async def release_all(self) -> None:
        """Let go of everything, however long its sessions take; it is told of until the end."""
        async with trio.open_nursery() as nursery:
            for kept in self._kept.values():
                nursery.start_soon(self._release, kept.held)
