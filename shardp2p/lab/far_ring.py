"""A ring of real stages whose peers are as far apart as a profile says; the driver is here."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from shardp2p.identity.keys import Identity
from shardp2p.lab.children import open_children
from shardp2p.lab.emulation.profile import Ways
from shardp2p.lab.local_swarm import even_splits, local_swarm
from shardp2p.node import Node, open_node
from shardp2p.scheduler.plan import Plan
from shardp2p.scheduler.route import route
from shardp2p.vocabulary import DType
from shardp2p.weights.source import Progress, no_progress
from shardp2p.weights.store import StoredModel


@asynccontextmanager
async def far_ring(
    model: StoredModel,
    ways: Ways,
    *,
    dtype: DType,
    threads: int,
    fast_layout: bool = False,
    data_dir: Path | None = None,
    progress: Progress = no_progress,
) -> AsyncIterator[tuple[Node, Plan]]:
    """The driver's node and the plan of a ring of as many stages as `ways` names, with even shares of the layers."""
    name = model.name if model.is_imported else str(model.directory)
    splits = even_splits(model.manifest.layers, len(ways.stages))
    # The driver dials every stage, and every stage the next one.
    pairs = [(ways.driver, stage) for stage in ways.stages] + list(pairwise(ways.stages))
    swarm = local_swarm(
        name, splits, dtype=dtype, threads=threads, fast_layout=fast_layout, data_dir=data_dir, progress=progress
    )
    async with (
        swarm as stages,
        open_children() as children,
        open_node(Identity.generate()) as node,
    ):
        by_name = dict(zip(ways.stages, stages, strict=True))
        delays = await children.start("the delays", [sys.executable, "-P", "-m", "shardp2p.lab.emulation.delays"])
        ports = [int(by_name[b].addresses[0].split("/")[4]) for _, b in pairs]
        order = [[port, ways.one_way_s[a, b], ways.one_way_s[b, a]] for port, (a, b) in zip(ports, pairs, strict=True)]
        await delays.write_line(json.dumps(order).encode())
        found = json.loads(await delays.read_line())
        addresses = [
            f"/ip4/127.0.0.1/tcp/{port}/p2p/{by_name[b].peer_id}" for port, (_, b) in zip(found, pairs, strict=True)
        ]
        members = await node.members(addresses[: len(stages)])
        plan = route(model.name, members)
        # The driver is connected by now, so a stage's addresses are for the one before it.
        nexts = [plan.stages[0].addresses, *((address,) for address in addresses[len(stages) :])]
        placed = (replace(stage, addresses=at) for stage, at in zip(plan.stages, nexts, strict=True))
        yield node, replace(plan, stages=tuple(placed))
