"""An emulated ring that runs: a process for each stage, one that delays what they say, and the driver here."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import combinations
from typing import Any

import trio

from shardp2p.identity.keys import Identity
from shardp2p.lab.children import Child, open_children
from shardp2p.lab.emulation.arms import CACHE_ROWS
from shardp2p.lab.emulation.profile import Profile
from shardp2p.lab.emulation.stage_process import model_of
from shardp2p.node import Node, open_node
from shardp2p.scheduler.plan import Plan, Stage
from shardp2p.vocabulary import LayerRange, PeerId


@asynccontextmanager
async def emulated_ring(profile: Profile, accept: float, seed: int) -> AsyncIterator[tuple[Node, Plan]]:
    """The driver's node and the plan of a ring whose peers are as far apart as the profile says."""
    async with open_children() as children, open_node(Identity.generate()) as node:
        stages: list[Child] = []
        for index in range(len(profile.stages)):
            command = [sys.executable, "-P", "-m", "shardp2p.lab.emulation.stage_process"]
            command += [profile.name, str(index), str(accept), str(seed)]
            stages.append(await children.start(f"stage {profile.stages[index]}", command))
        said = [json.loads(await stage.read_line()) for stage in stages]
        delays = await children.start("the delays", [sys.executable, "-P", "-m", "shardp2p.lab.emulation.delays"])
        addresses = await _addresses(profile, delays, said)

        async def connect(index: int) -> None:
            others = [found for (dialler, _), found in addresses.items() if dialler == profile.stages[index]]
            await stages[index].write_line(json.dumps(others).encode())
            await stages[index].read_line()

        async with trio.open_nursery() as nursery:
            for index in range(len(stages)):
                nursery.start_soon(connect, index)
        for (dialler, _), (peer, at) in addresses.items():
            if dialler == profile.driver:
                await node.connect(peer, [at])
        model, digest = model_of(profile, accept, seed)
        plan = Plan(
            model,
            digest,
            "bfloat16",
            CACHE_ROWS,
            tuple(Stage(PeerId(one["peer_id"]), LayerRange(index, index + 1)) for index, one in enumerate(said)),
        )
        yield node, plan


async def _addresses(
    profile: Profile, delays: Child, said: Sequence[dict[str, Any]]
) -> dict[tuple[str, str], tuple[PeerId, str]]:
    """For each pair of peers, the earlier one of which dials: the later one, and where it is found."""
    pairs = list(combinations(profile.peers, 2))
    numbers = {name: index for index, name in enumerate(profile.stages)}
    order = [[said[numbers[b]]["port"], profile.one_way_s[a, b], profile.one_way_s[b, a]] for a, b in pairs]
    await delays.write_line(json.dumps(order).encode())
    ports = json.loads(await delays.read_line())
    found = {}
    for (a, b), port in zip(pairs, ports, strict=True):
        peer = PeerId(said[numbers[b]]["peer_id"])
        found[a, b] = peer, f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer}"
    return found
