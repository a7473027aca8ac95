"""Stages and a coordinator in one trio program: real services, worker and driver, memory streams, a fake model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import cast

import trio

from shardp2p.coordinator.commands import Limits, Proposer
from shardp2p.coordinator.driver import open_generation
from shardp2p.coordinator.inbound import VerdictInbox
from shardp2p.coordinator.request import GenerationRequest, Result
from shardp2p.errors import RemoteProtocolError
from shardp2p.runtime.block import Block
from shardp2p.runtime.device import DeviceThread
from shardp2p.scheduler.plan import Plan, Stage
from shardp2p.stage.holding import HeldBlock, Holding
from shardp2p.stage.packer import open_on_device
from shardp2p.stage.service import StageService
from shardp2p.vocabulary import LayerRange, ModelId, PeerId, Token
from shardp2p.wire.channel import open_channel
from shardp2p.wire.credit import CreditReceiver
from shardp2p.wire.messages import Hello
from shardp2p.wire.protocols import CONTROL, RING
from shardp2p.wire.stream import Network, Stream
from tests.support.fake_block import MODEL_LAYERS, FakeBlock, InlineDevice
from tests.support.memory_network import WINDOW_BYTES, MemoryNetwork, MemoryStream, MemorySwarm

COORDINATOR = PeerId("coordinator")
DIGEST = "d1" * 32
CACHE_ROWS = 2_000
ROW_BYTES = 8
SETTLE_S = 30.0
"""Longer than any farewell, grace or wait of the protocols."""

HANGS_S = 5_000.0
"""What has not ended by then never will."""

ServeRing = Callable[[Hello, CreditReceiver, PeerId], Awaitable[None]]


def stage_id(number: int) -> PeerId:
    """The peer id of stage 1, 2, …"""
    return PeerId(f"stage-{number}")


class SimRing:
    """A swarm with `count` stages and a coordinator; every task of theirs runs in `nursery`."""

    def __init__(
        self,
        nursery: trio.Nursery,
        count: int,
        *,
        compute_s: float = 0.01,
        delay_s: float = 0.0,
        cache_rows: int = CACHE_ROWS,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        self.nursery = nursery
        self.swarm = MemorySwarm(nursery, window_bytes=window_bytes)
        self.cache_rows = cache_rows
        self.compute_s = compute_s
        cuts = [MODEL_LAYERS * i // count for i in range(count + 1)]
        self.ranges = [LayerRange(a, b) for a, b in pairwise(cuts)]
        self.held: dict[PeerId, HeldBlock] = {}
        self.services: dict[PeerId, StageService] = {}
        peers = [COORDINATOR, *(stage_id(n) for n in range(1, count + 1))]
        for at, one in enumerate(peers):
            for other in peers[:at]:
                self.swarm.delay(one, other, delay_s)
        for number in range(1, count + 1):
            self.start_stage(number)
        self.verdicts = VerdictInbox()
        self.network: MemoryNetwork = self.swarm.network(COORDINATOR)
        serve_hello(self.network, self.verdicts.serve_ring)

    @property
    def plan(self) -> Plan:
        stages = tuple(Stage(stage_id(n), layers) for n, layers in enumerate(self.ranges, 1))
        return Plan(ModelId("fake"), DIGEST, "float32", 1_000, stages)

    def start_stage(self, number: int, wrap: Callable[[Network], Network] = lambda network: network) -> StageService:
        """Stage `number` as a fresh process, on its network as `wrap` makes it."""
        network = wrap(self.swarm.network(stage_id(number)))
        layers = self.ranges[number - 1]
        compute = open_on_device(cast(Block, FakeBlock(layers)), cast(DeviceThread, InlineDevice(self.compute_s)))
        held = HeldBlock(layers, Holding(DIGEST, "float32", self.cache_rows), (ROW_BYTES,) * len(layers), compute)
        service = StageService(network)
        service.hold(held)
        self.held[stage_id(number)] = held
        self.services[stage_id(number)] = service
        network.serve(CONTROL, service.serve_control)
        serve_hello(network, service.serve_ring)
        return service

    async def generate(
        self,
        request: GenerationRequest,
        *,
        proposer: Proposer | None = None,
        limits: Limits | None = None,
        network: Network | None = None,
        plan: Plan | None = None,
    ) -> tuple[tuple[Token, ...], Result]:
        """The tokens of one generation and how it went."""
        tokens: list[Token] = []
        with trio.fail_after(HANGS_S):
            async with open_generation(
                network or self.network, self.verdicts, plan or self.plan, request, proposer=proposer, limits=limits
            ) as stream:
                async for batch in stream:
                    tokens.extend(batch)
        return tuple(tokens), stream.result

    async def assert_settled(self) -> None:
        """After a while nothing is left of any session: no row, no stream, no task."""
        await trio.sleep(SETTLE_S)
        alive = {p: h for p, h in self.held.items() if not self.swarm.network(p).is_dead}
        assert {p: h.free_cache_rows for p, h in alive.items()} == dict.fromkeys(alive, self.cache_rows)
        assert self.swarm.open_streams == 0
        assert [task.name for task in self.nursery.child_tasks] == []


def serve_hello(network: Network, serve: ServeRing) -> None:
    """Serve ring streams as node.py does."""

    async def handler(stream: Stream) -> None:
        async with open_channel(stream, RING) as channel:
            receiver = CreditReceiver(channel)
            hello = await receiver.receive()
            if not isinstance(hello, Hello):
                raise RemoteProtocolError(f"a ring stream began with {type(hello).__name__}")
            await serve(hello, receiver, channel.peer)

    network.serve(RING, handler)


class Tripwire:
    """Counts what any peer sends on any stream, and acts once, just before the send of that number."""

    def __init__(self) -> None:
        self.count = 0
        self._at = -1
        self._action: Callable[[], None] | None = None

    def set(self, at: int, action: Callable[[], None]) -> None:
        self.count, self._at, self._action = 0, at, action

    def step(self) -> None:
        if self.count == self._at and self._action is not None:
            self._action()
        self.count += 1


@contextmanager
def tripwire() -> Iterator[Tripwire]:
    """A tripwire in every memory stream, for the time of the context."""
    wire = Tripwire()
    send_all = MemoryStream.send_all

    async def counted(self: MemoryStream, data: bytes | bytearray | memoryview) -> None:
        wire.step()
        await send_all(self, data)

    MemoryStream.send_all = counted  # type: ignore[method-assign]
    try:
        yield wire
    finally:
        MemoryStream.send_all = send_all  # type: ignore[method-assign]


def prompt(length: int = 12, seed: int = 3) -> tuple[Token, ...]:
    """Some token ids."""
    return tuple((seed * 17 + i * i * 7) % 60 for i in range(length))


def request(max_tokens: int = 24, **options: object) -> GenerationRequest:
    """A request for `max_tokens` after `prompt()`."""
    options.setdefault("prompt_tokens", prompt())
    return GenerationRequest(max_tokens=max_tokens, **options)  # type: ignore[arg-type]
