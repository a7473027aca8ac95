"""Gets straight paths, in the background, to peers that came over a relay.

It asks others where we are seen, and punches holes when they are due.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

import trio

from shardp2p.host.host import Host
from shardp2p.host.punch.mapping import Mapping, MappingKind
from shardp2p.host.punch.observing import Observing, OnSeen
from shardp2p.host.punch.puncher import Puncher
from shardp2p.host.punch.schedule import Circumstances, Schedule
from shardp2p.vocabulary import PeerId

LOOK_S: Final = 0.25
"""How often to look for peers that came over a relay, while there are any."""

OBSERVE_S: Final = 5.0
"""How often at least to look whom to ask where we are seen."""

Described = tuple[tuple[str, ...], MappingKind]
"""What a peer's record says: its addresses, and what it knows of its router."""


def _nothing_known(_: PeerId) -> Described:
    return (), "unknown"


class PunchKeeper:
    """Runs until it is cancelled. `describe` says what is known of a peer, `is_wanted` whether a hole is worth it."""

    def __init__(
        self,
        host: Host,
        puncher: Puncher,
        mapping: Mapping,
        *,
        describe: Callable[[PeerId], Described] = _nothing_known,
        is_wanted: Callable[[PeerId], bool] = lambda _: True,
        on_seen: OnSeen = lambda observer, local_port, seen: None,
        chance: random.Random | None = None,
    ) -> None:
        self._host = host
        self._puncher = puncher
        self._mapping = mapping
        self._describe = describe
        self._is_wanted = is_wanted
        self._observing = Observing(host, mapping, on_seen)
        self._schedule = Schedule((chance or random.Random()).random)
        self._punching: set[PeerId] = set()

    async def run(self) -> None:
        """Ask and punch."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._observe)
            while True:
                while not self._host.has_indirect:
                    await self._host.wait_arrival()
                for peer in self._host.connected_peers():
                    if peer not in self._punching and self._is_due(peer):
                        self._punching.add(peer)
                        nursery.start_soon(self._punch, peer)
                await trio.sleep(LOOK_S)

    def why_not(self, peer: PeerId) -> str | None:
        """Why no hole is being punched to `peer` now, in words; None while one is, or is due."""
        return self._schedule.why_not(peer, self._circumstances(peer), trio.current_time())

    async def _observe(self) -> None:
        while True:
            await self._observing.refresh()
            with trio.move_on_after(OBSERVE_S):
                await self._host.wait_arrival()
                await trio.sleep(LOOK_S)  # several often come together

    def _is_due(self, peer: PeerId) -> bool:
        if not self._puncher.starts(peer) or not self._is_wanted(peer):
            return False
        return self._schedule.is_due(peer, self._circumstances(peer), trio.current_time())

    async def _punch(self, peer: PeerId) -> None:
        circumstances = self._circumstances(peer)
        try:
            result = await self._puncher.punch(peer)
            settle = self._schedule.succeed if result.path is not None else self._schedule.fail
            settle(peer, circumstances, trio.current_time())
        finally:
            self._punching.discard(peer)

    def _circumstances(self, peer: PeerId) -> Circumstances:
        now = trio.current_time()
        addresses, kind = self._describe(peer)
        ours = tuple(sorted(self._mapping.current(now)))
        return Circumstances(ours, self._mapping.kind(now), tuple(sorted(addresses)), kind)
