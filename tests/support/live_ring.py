"""A ring of real nodes over real libp2p connections in this process, for models that load in a moment."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from shardp2p.coordinator.commands import Limits, Proposer
from shardp2p.coordinator.request import GenerationRequest, Result
from shardp2p.identity.keys import Identity
from shardp2p.node import Node, open_node
from shardp2p.runtime.device import DeviceThread
from shardp2p.runtime.graph import Graphs
from shardp2p.runtime.load import load_block
from shardp2p.scheduler.plan import Plan
from shardp2p.scheduler.route import route
from shardp2p.stage.holding import Holding
from shardp2p.vocabulary import DType, LayerRange, ModelId, Token

MODEL = ModelId("under-test")
DIGEST = "ab" * 32


@asynccontextmanager
async def live_ring(
    directory: Path,
    ranges: Sequence[LayerRange],
    *,
    dtype: DType = "float32",
    cache_rows: int = 4096,
    replays: Graphs | None = None,
) -> AsyncIterator[tuple[Node, Plan]]:
    """One node for each range, and a client node with the plan over them. `replays`: what captures few rows."""
    async with AsyncExitStack() as stack:
        device = stack.enter_context(DeviceThread())
        addresses: list[str] = []
        for layers in ranges:
            node = await stack.enter_async_context(open_node(Identity.generate(), ["/ip4/127.0.0.1/tcp/0"]))
            block = await device.run(lambda layers=layers: load_block(directory, layers, dtype=dtype))
            if replays is not None:
                block.replay_few_rows(replays)
            node.hold(MODEL, block, device, Holding(DIGEST, dtype, cache_rows), 0)
            addresses.extend(node.addresses())
        client = await stack.enter_async_context(open_node(Identity.generate()))
        yield client, route(MODEL, await client.members(addresses))


async def run(
    client: Node,
    plan: Plan,
    request: GenerationRequest,
    proposer: Proposer | None = None,
    limits: Limits | None = None,
    **options: Any,
) -> tuple[tuple[Token, ...], Result]:
    """The tokens of one generation and how it went."""
    tokens: list[Token] = []
    async with client.generate(plan, request, proposer=proposer, limits=limits, **options) as stream:
        async for batch in stream:
            tokens.extend(batch)
    return tuple(tokens), stream.result


def splits(layers: int, count: int) -> tuple[LayerRange, ...]:
    """`layers` layers in `count` ranges as even as can be."""
    cuts = [layers * i // count for i in range(count + 1)]
    return tuple(LayerRange(a, b) for a, b in pairwise(cuts))
