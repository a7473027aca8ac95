"""Whole nodes over memory streams, with parts of the fake model: every role of a peer, in one trio program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import trio

from shardp2p.coordinator.request import GenerationRequest
from shardp2p.coordinator.stream import GenerationStream
from shardp2p.host.host import Host
from shardp2p.node import HeldModel, Node
from shardp2p.runtime.block import Block
from shardp2p.runtime.device import DeviceThread
from shardp2p.scheduler.plan import Plan, Stage
from shardp2p.stage.holding import CacheBudget, Holding
from shardp2p.vocabulary import LayerRange, ModelId, PeerId, Token
from tests.support.fake_block import FakeBlock, InlineDevice
from tests.support.memory_network import WINDOW_BYTES, MemoryNetwork, MemorySwarm

MODEL = ModelId("fake")
DIGEST = "d1" * 32
CACHE_ROWS = 2_000


class SimNodes:
    """Nodes by name. Each computes on a device of its own, one call at a time."""

    def __init__(self, nursery: trio.Nursery, *, compute_s: float = 0.01, window_bytes: int = WINDOW_BYTES) -> None:
        self.nursery = nursery
        self.swarm = MemorySwarm(nursery, window_bytes=window_bytes)
        self.nodes: dict[str, Node] = {}
        self.devices: dict[str, InlineDevice] = {}
        self.blocks: list[FakeBlock] = []
        self._compute_s = compute_s

    def network(self, name: str) -> MemoryNetwork:
        return self.swarm.network(name)

    def node(self, name: str) -> Node:
        """The node of that name, made at the first call."""
        if name not in self.nodes:
            self.nodes[name] = Node(cast(Host, self.swarm.network(name)))
            self.devices[name] = InlineDevice(self._compute_s)
        return self.nodes[name]

    def hold(
        self, name: str, layers: str, *, cache_rows: int = CACHE_ROWS, budget: CacheBudget | None = None
    ) -> HeldModel:
        """Let a node serve `layers`."""
        node = self.node(name)
        block, device = FakeBlock(LayerRange.parse(layers)), self.devices[name]
        self.blocks.append(block)
        holding = Holding(DIGEST, "float32", cache_rows)
        return node.hold(MODEL, cast(Block, block), cast(DeviceThread, device), holding, 0, budget=budget)

    def take_computed_rows(self) -> list[int]:
        """How many rows each block has computed since the last call, in the order of holding."""
        rows = [block.computed_rows for block in self.blocks]
        for block in self.blocks:
            block.computed_rows = 0
        return rows

    async def assert_settled(self, within_s: float = 30.0) -> None:
        """After a while nothing is left of any session: no row, no stream, no task, no driven generation."""
        await trio.sleep(within_s)
        for name, node in self.nodes.items():
            if not self.swarm.network(name).is_dead:
                assert [held.served.sessions for held in node.held] == [0] * len(node.held)
                assert all(held.served.free_cache_rows == held.served.cache_rows for held in node.held)
                assert node.driven == 0
        assert self.swarm.open_streams == 0
        assert [task.name for task in self.nursery.child_tasks] == []


def plan_of(*stages: tuple[str, str]) -> Plan:
    """The ring of these peers and layers."""
    ring = tuple(Stage(PeerId(peer), LayerRange.parse(layers)) for peer, layers in stages)
    return Plan(MODEL, DIGEST, "float32", 1_000, ring)


async def read_all(stream: GenerationStream) -> tuple[Token, ...]:
    """Every token of a generation."""
    tokens: list[Token] = []
    async for batch in stream:
        tokens.extend(batch)
    return tuple(tokens)


def prompt(length: int = 12, seed: int = 3) -> tuple[Token, ...]:
    """Some token ids."""
    return tuple((seed * 17 + i * i * 7) % 60 for i in range(length))


def request(max_tokens: int = 24, tokens: Sequence[Token] = prompt(), **options: object) -> GenerationRequest:
    """A request for `max_tokens` after `tokens`."""
    return GenerationRequest(tuple(tokens), max_tokens, **options)  # type: ignore[arg-type]
