"""How soon every peer of a swarm of real processes knows who died, left, or came back."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from random import Random
from typing import Any, Final

import trio

from shardp2p.lab.forking import prepare_forking
from shardp2p.lab.swarm_children import JoinedPeer, PeerOptions, SwarmChildren, joined_swarm
from shardp2p.swarm.sealed_records import payload_of
from shardp2p.weights.source import Progress, no_progress
from shardp2p.wire.records import CoverageRecord, decode_record

MEMORY: Final = "600MiB"
LOOK_S: Final = 0.1
"""How exactly it is measured."""
CALM_S: Final = 10.0
"""Between what happens to one peer and to the next."""
AT_MOST_S: Final = 120.0
"""What takes longer counts as never."""

HasHeard = Callable[[CoverageRecord | None], bool]
"""Whether a view that has this record of a peer, or none, knows what happened to it."""


@dataclass(frozen=True, slots=True)
class Departures:
    """Seconds until the last of the others knew: once for each round. A process that starts counts from its start,
    one that leaves from the interrupt, so what it does itself before is included.
    """

    killed_s: tuple[float, ...]
    started_again_s: tuple[float, ...]
    left_s: tuple[float, ...]
    restarted_at_once_s: tuple[float, ...]

    def report(self) -> dict[str, Any]:
        """What a table or a script shows."""
        return {field.name: [round(took_s, 1) for took_s in getattr(self, field.name)] for field in fields(self)}


async def measure_departures(
    options: PeerOptions, *, peers: int, rounds: int, seed: int = 0, progress: Progress = no_progress
) -> Departures:
    """Let `peers` peers form a swarm; in each round one is killed and started again, one leaves and comes back, and
    one is killed and started again at once.

    Raises: what a peer fails with; TooSlowError for what a peer does not hear.
    """
    rng, took_s = Random(seed), []
    await trio.to_thread.run_sync(prepare_forking)
    progress("starting peers", 0, 0)
    async with joined_swarm([MEMORY] * peers, options) as swarm:
        for number in range(rounds):
            progress("rounds", number, rounds)
            took_s.append([await step(swarm, rng) for step in (_kill, _come_back, _leave, _restart)])
    return Departures(*zip(*took_s, strict=True))


async def _kill(swarm: SwarmChildren, rng: Random) -> float:
    peer = await _chosen(swarm, rng)
    since = trio.current_time()
    await peer.kill()
    return await _wait_heard(swarm, peer, lambda record: record is None) - since


async def _come_back(swarm: SwarmChildren, rng: Random) -> float:
    """Whoever is gone starts again."""
    (peer,) = [peer for peer in swarm.peers if not peer.is_running]
    since = trio.current_time()
    await peer.start_again()
    return await _wait_heard(swarm, peer, lambda record: record is not None) - since


async def _leave(swarm: SwarmChildren, rng: Random) -> float:
    peer = await _chosen(swarm, rng)
    since = trio.current_time()
    peer.interrupt()
    took_s = await _wait_heard(swarm, peer, lambda record: record is None) - since
    await peer.wait_end()
    await _come_back(swarm, rng)
    return took_s


async def _restart(swarm: SwarmChildren, rng: Random) -> float:
    peer = await _chosen(swarm, rng)
    began_s = max(record.started_at_s for record in await _records_of(peer) if record.peer_id == peer.peer_id)
    await peer.kill()
    since = trio.current_time()
    await peer.start_again()
    return await _wait_heard(swarm, peer, partial(_is_later, began_s)) - since


def _is_later(began_s: float, record: CoverageRecord | None) -> bool:
    return record is not None and record.started_at_s > began_s


async def _chosen(swarm: SwarmChildren, rng: Random) -> JoinedPeer:
    """One of a swarm in which all serve and nothing has happened for a while; not the first, whom the token names."""
    for peer in swarm.peers:
        await peer.wait_status("serving")
    await trio.sleep(CALM_S)
    return rng.choice(swarm.peers[1:])


async def _wait_heard(swarm: SwarmChildren, of: JoinedPeer, has_heard: HasHeard) -> float:
    """When the last of the other peers was seen to have heard."""
    others = [peer for peer in swarm.peers if peer is not of and peer.is_running]

    async def wait(peer: JoinedPeer) -> None:
        while True:
            records = {record.peer_id: record for record in await _records_of(peer)}
            if has_heard(records.get(of.peer_id)):
                return
            await trio.sleep(LOOK_S)

    with trio.fail_after(AT_MOST_S):
        async with trio.open_nursery() as nursery:
            for peer in others:
                nursery.start_soon(wait, peer)
    return trio.current_time()


async def _records_of(peer: JoinedPeer) -> Sequence[CoverageRecord]:
    view = await peer.records()
    return [decode_record(payload_of(base64.b64decode(text))) for text in view["records"]]
