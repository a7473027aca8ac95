"""What a peer costs that serves and has nothing to do, in a swarm on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import psutil
import trio

from shardp2p.lab.forking import prepare_forking
from shardp2p.lab.swarm_children import PeerOptions, SwarmChildren, joined_swarm
from shardp2p.weights.source import Progress, no_progress

MEMORY: Final = ("600MiB", "600MiB", "400MiB", "500MiB", "400MiB", "350MiB", "300MiB", "450MiB")
"""What peers offer, by turns: with the usual model each holds a part, and some hold the same."""
CACHE_ROWS: Final = 1024


@dataclass(frozen=True, slots=True)
class Spent:
    """What a process has spent since it began: processor time, and how often it went to sleep."""

    core_s: float
    wakes: int


@dataclass(frozen=True, slots=True)
class IdleCost:
    """Of each peer: the share of a core in percent, how often a second it woke up, and its gossip streams."""

    core_percent: tuple[float, ...]
    wakes_s: tuple[float, ...]
    neighbours: tuple[int, ...]

    def report(self) -> dict[str, Any]:
        """What a table or a script shows."""
        return {
            "core_percent_mean": round(sum(self.core_percent) / len(self.core_percent), 2),
            "core_percent_max": round(max(self.core_percent), 2),
            "core_percent": [round(share, 2) for share in self.core_percent],
            "wakes_s": [round(wakes, 1) for wakes in self.wakes_s],
            "neighbours": list(self.neighbours),
        }


async def measure_idle(
    options: PeerOptions, *, peers: int, settle_s: float, measured_s: float, progress: Progress = no_progress
) -> IdleCost:
    """What `peers` peers cost, from `settle_s` after all of them serve, for `measured_s`.

    It is the processes' own time, so what else this machine does matters little. Raises: what a peer fails with.
    """
    await trio.to_thread.run_sync(prepare_forking)
    progress("starting peers", 0, 0)
    async with joined_swarm([MEMORY[number % len(MEMORY)] for number in range(peers)], options) as swarm:
        await _wait(settle_s, "settling", progress)
        before, started = _spent(swarm), trio.current_time()
        await _wait(measured_s, "measuring", progress)
        passed_s = trio.current_time() - started
        after = _spent(swarm)
        statuses = [await peer.status() for peer in swarm.peers]
    return cost_of(before, after, passed_s, tuple(len(status["neighbours"]) for status in statuses))


def cost_of(before: Sequence[Spent], after: Sequence[Spent], passed_s: float, neighbours: tuple[int, ...]) -> IdleCost:
    """What each peer spent between two looks that lie `passed_s` seconds apart."""
    pairs = list(zip(before, after, strict=True))
    return IdleCost(
        tuple(100 * (new.core_s - old.core_s) / passed_s for old, new in pairs),
        tuple((new.wakes - old.wakes) / passed_s for old, new in pairs),
        neighbours,
    )


def _spent(swarm: SwarmChildren) -> Sequence[Spent]:
    processes = [psutil.Process(peer.pid) for peer in swarm.peers]
    return [Spent(sum(one.cpu_times()[:2]), one.num_ctx_switches().voluntary) for one in processes]


async def _wait(seconds: float, what: str, progress: Progress) -> None:
    for passed in range(int(seconds)):
        progress(what, passed, int(seconds))
        await trio.sleep(1.0)
    await trio.sleep(seconds % 1.0)
