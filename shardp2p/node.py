"""The composition root: a host, the roles that it serves, and one nursery.

`open_node` is a peer of any role. `Node.hold` makes it a stage; `Node.members` and `Node.generate` make it a client.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Literal

import psutil
import trio

from shardp2p.coordinator.commands import Limits, Proposer
from shardp2p.coordinator.driver import open_generation
from shardp2p.coordinator.inbound import VerdictInbox
from shardp2p.coordinator.prefix import PrefixKeys
from shardp2p.coordinator.remote import open_remote_generation
from shardp2p.coordinator.remote_service import GenerateService
from shardp2p.coordinator.request import GenerationRequest
from shardp2p.coordinator.stream import GenerationStream
from shardp2p.coordinator.waiting import Line
from shardp2p.errors import ConfigError, LocalProtocolError, PeerUnavailableError, RemoteProtocolError
from shardp2p.host.addresses import parse_address
from shardp2p.host.circuit.service import open_circuits
from shardp2p.host.host import Host, open_host
from shardp2p.host.stream import HostStream
from shardp2p.identity.keys import Identity
from shardp2p.runtime.answer_memory import AnswerMemory
from shardp2p.runtime.proposing import DraftWish, Proposers
from shardp2p.scheduler.plan import Plan
from shardp2p.scheduler.route import Member
from shardp2p.stage.holding import CacheBudget, HeldBlock, Holding
from shardp2p.stage.service import StageService
from shardp2p.swarm.dial_backs import DialBackAnswers
from shardp2p.swarm.probes import ProbeAnswers
from shardp2p.swarm.ring_edges import RingEdges
from shardp2p.vocabulary import ModelId, PeerId
from shardp2p.wire.channel import open_channel
from shardp2p.wire.credit import CreditReceiver
from shardp2p.wire.dialling_back import AskDialBack
from shardp2p.wire.driving import DraftKind, Generate
from shardp2p.wire.messages import AskRecord, Describe, Hello, MemberInfo, Message, OwnRecord, Ping
from shardp2p.wire.protocols import CONTROL, GENERATE, RING, SWARM
from shardp2p.wire.seen import AskSeen, Seen
from shardp2p.wire.stream import Stream

if TYPE_CHECKING:
    from shardp2p.runtime.block import Block
    from shardp2p.runtime.device import DeviceThread

DESCRIBE_S = 10.0
"""How long a peer may take to say what it is, dialling included."""

FIRST_MESSAGE_S = 10.0
"""How long a stream that a peer opened may stay without its first message."""


@dataclass(frozen=True, slots=True, eq=False)
class HeldModel:
    """A block that a node serves: which model it is part of, what it takes, and its service."""

    model: ModelId
    model_layers: int
    context_tokens: int
    layer_bytes: int
    device: str
    load_growth_bytes: int
    served: HeldBlock


class Node:
    """A running peer. Made by `open_node`."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.ring_edges = RingEdges(host)
        """The peers next to us in rings."""
        self._verdicts = VerdictInbox()
        self._line = Line()
        self._stage = StageService(self.ring_edges)
        self._held: list[HeldModel] = []
        self._probe_answers = ProbeAnswers(is_busy=self.is_busy)
        self._dial_backs = DialBackAnswers(host)
        host.serve(SWARM, self._serve_swarm)
        host.serve(RING, self._serve_ring)
        self.proposers = Proposers(AnswerMemory())
        """Who drafts for what we drive."""
        self._prefix_keys = PrefixKeys(secrets.token_bytes(32))
        self._driving = GenerateService(
            self.ring_edges, self._verdicts, self._proposer_for_client, self._line, self._prefix_keys
        )
        self.sealed_record: Callable[[], bytes] = bytes
        """Our newest coverage record; empty outside a swarm."""

    @property
    def peer_id(self) -> PeerId:
        """Our own id."""
        return self._host.peer_id

    def addresses(self) -> tuple[str, ...]:
        """The multiaddrs, with our peer id, at which we can be dialled."""
        return self._host.addresses()

    @property
    def held(self) -> tuple[HeldModel, ...]:
        """What we serve, or are letting go of, in the order of holding."""
        return tuple(self._held)

    def keep_nothing(self) -> None:
        """From now on no answer and no row of a session stays here when it ends."""
        self.proposers.forget()
        self._stage.keeps_rows = False

    @property
    def driven(self) -> int:
        """How many generations we drive for clients now."""
        return self._driving.driven

    def hold(
        self,
        model: ModelId,
        block: Block,
        device: DeviceThread,
        holding: Holding,
        load_growth_bytes: int,
        *,
        budget: CacheBudget | None = None,
        observe: Callable[[int, int, float], None] | None = None,
    ) -> HeldModel:
        """Serve a block's layers from now on, beside what is held already.

        Blocks on one device share its `budget` for caches; without one, the block has `holding.cache_rows` of its own.
        `observe` hears of each forward's live rows, layers and seconds.
        """
        from shardp2p.stage.packer import open_on_device  # brings torch

        compute = open_on_device(block, device, observe)
        served = HeldBlock(block.layers, holding, block.layer_row_bytes, compute, budget)
        held = HeldModel(
            model, block.model_layers, block.context_tokens, block.layer_bytes, str(block.device), load_growth_bytes,
            served,
        )  # fmt: skip
        self.serve(held)
        return held

    def serve(self, held: HeldModel) -> None:
        """As hold, for layers that compute in a way of their own."""
        self._held.append(held)
        self._stage.hold(held.served)
        self._host.serve(CONTROL, self._stage.serve_control)
        self._host.serve(GENERATE, self._driving.serve)

    async def connect(self, peer: PeerId, addresses: Sequence[str]) -> None:
        """A connection to `peer`, for whatever goes there or comes from there. Raises: PeerUnavailableError."""
        await self._host.connect(peer, addresses)

    async def release(self, held: HeldModel) -> None:
        """Let go of what `hold` gave: no new sessions; returns when those that run have ended.

        Cancelling it, as `trio.move_on_after` does, ends them at once, with a reason to their coordinators.
        """
        try:
            await self._stage.release(held.served)
        finally:
            self._held = [other for other in self._held if other is not held]

    @property
    def open_sessions(self) -> int:
        """How many sessions run over our layers now."""
        return self._stage.open_sessions

    def is_busy(self) -> bool:
        """Whether requests run over our layers: then nobody measures bandwidth from or to us."""
        return self.open_sessions > 0

    def describe(self) -> MemberInfo:
        """Our account of ourselves, as it is now; of several blocks, the one that was held first."""
        rss_bytes = psutil.Process().memory_info().rss
        serving = [held for held in self._held if not held.served.is_draining]
        if not serving:
            return MemberInfo(self.peer_id, version("shardp2p"), os.getpid(), rss_bytes)
        held, served = serving[0], serving[0].served
        return MemberInfo(
            peer_id=self.peer_id,
            version=version("shardp2p"),
            pid=os.getpid(),
            rss_bytes=rss_bytes,
            model=held.model,
            model_digest=served.holding.model_digest,
            model_layers=held.model_layers,
            layers=served.layers,
            dtype=served.holding.dtype,
            context_tokens=held.context_tokens,
            layer_bytes=held.layer_bytes,
            load_growth_bytes=held.load_growth_bytes,
            free_cache_rows=served.free_cache_rows,
            device=held.device,
        )

    async def members(self, addresses: Sequence[str]) -> tuple[Member, ...]:
        """The accounts of the peers at `addresses` (multiaddrs that end in /p2p/ID), asked all at once.

        Raises: ConfigError for an address without a peer id; PeerUnavailableError for the first that does not answer.
        """
        by_peer: dict[PeerId, list[str]] = {}
        for address in addresses:
            peer = parse_address(address).peer
            if peer is None:
                raise ConfigError(f"{address} names no peer; it must end in /p2p/PEER-ID, as `shardp2p up` prints it")
            by_peer.setdefault(peer, []).append(address)
        found: dict[PeerId, Member] = {}

        async def ask(peer: PeerId, at: tuple[str, ...]) -> None:
            found[peer] = Member(await self._ask(peer, at), at)

        async with trio.open_nursery() as nursery:
            for peer, at in by_peer.items():
                nursery.start_soon(ask, peer, tuple(at))
        return tuple(found[peer] for peer in by_peer)

    def generate(
        self,
        plan: Plan,
        request: GenerationRequest,
        *,
        driver: Literal["first", "local"] = "local",
        draft: DraftKind = "none",
        proposer: Proposer | None = None,
        limits: Limits | None = None,
    ) -> AbstractAsyncContextManager[GenerationStream]:
        """A generation over the ring of `plan`; see coordinator.driver.open_generation.

        `driver` says where it is driven: "first" by the peer of the first stage, so that a lap has no hop to us and
        back; "local" here, so that nobody but the stages sees the tokens. `draft` is who proposes; where it is driven
        here, a `proposer` of one's own may.
        """
        if driver == "local" or plan.stages[0].peer_id == self.peer_id:
            own = proposer or self._propose(draft, plan, request)
            key = self._prefix_keys.of(self.peer_id)

            def open_one(within: GenerationRequest) -> AbstractAsyncContextManager[GenerationStream]:
                return open_generation(
                    self.ring_edges, self._verdicts, plan, within, proposer=own, limits=limits, prefix_key=key
                )  # fmt: skip

            return self._line.open(request, open_one)
        if proposer is not None:
            raise LocalProtocolError("a proposer of one's own proposes only where the generation is driven here")
        return open_remote_generation(self._host, plan, request, draft=draft, limits=limits)

    def _propose(self, draft: DraftKind, plan: Plan, request: GenerationRequest) -> Proposer | None:
        wish = DraftWish(draft, plan.model_digest, self.peer_id, request.sampling, request.vocab_size)
        return self.proposers.make(wish)

    def _proposer_for_client(self, message: Generate, client: PeerId) -> Proposer | None:
        wish = DraftWish(message.draft, message.model_digest, client, message.sampling, message.vocab_size)
        return self.proposers.make(wish)

    async def _ask(self, peer: PeerId, addresses: tuple[str, ...]) -> MemberInfo:
        try:
            with trio.fail_after(DESCRIBE_S):
                stream = await self._host.open_stream(peer, SWARM, addresses)
                async with open_channel(stream, SWARM) as channel:
                    await channel.send(Describe())
                    answer = await channel.receive()
        except trio.TooSlowError as error:
            raise PeerUnavailableError(
                f"peer {peer} does not say within {DESCRIBE_S:.0f} s what it is; it may hang: start it again", peer
            ) from error
        if not isinstance(answer, MemberInfo) or answer.peer_id != peer:
            raise RemoteProtocolError(f"peer {peer} did not say what it is, but {type(answer).__name__}")
        return answer

    async def ask_record(self, peer: PeerId, addresses: Sequence[str] = ()) -> bytes:
        """The sealed coverage record of `peer`, from itself. Raises: what dialling raises; PeerUnavailableError."""
        stream = await self._host.open_stream(peer, SWARM, addresses)
        async with open_channel(stream, SWARM) as channel:
            await channel.send(AskRecord())
            answer = await channel.receive()
        if not isinstance(answer, OwnRecord):
            raise RemoteProtocolError(f"peer {peer} answered with {type(answer).__name__}", peer)
        if not answer.sealed:
            raise PeerUnavailableError(f"peer {peer} has nothing to say of itself yet", peer)
        return answer.sealed

    async def _serve_swarm(self, stream: Stream) -> None:
        async with open_channel(stream, SWARM) as channel:
            first = await _first_of(channel.receive)
            if isinstance(first, Ping):
                await self._probe_answers.serve(channel, first)
            elif isinstance(first, Describe):
                await channel.send(self.describe())
            elif isinstance(first, AskRecord):
                await channel.send(OwnRecord(self.sealed_record()))
            elif isinstance(first, AskSeen):
                address = stream.remote_address if isinstance(stream, HostStream) else None
                await channel.send(Seen(*(address or ("", 0))))
            elif isinstance(first, AskDialBack):
                address = stream.remote_address if isinstance(stream, HostStream) else None
                await self._dial_backs.serve(channel, address, first)
            else:
                raise RemoteProtocolError(f"{channel.peer} asked for nothing we know")

    async def _serve_ring(self, stream: Stream) -> None:
        """A ring stream brings verdicts to a generation of ours, or chunks to our stage."""
        async with open_channel(stream, RING) as channel:
            receiver = CreditReceiver(channel)
            hello = await _first_of(receiver.receive)
            if not isinstance(hello, Hello):
                raise RemoteProtocolError(f"a ring stream began with {type(hello).__name__}")
            self.ring_edges.note(channel.peer)
            if self._verdicts.knows(hello) or not self._held:
                await self._verdicts.serve_ring(hello, receiver, channel.peer)
            else:
                await self._stage.serve_ring(hello, receiver, channel.peer)


@asynccontextmanager
async def open_node(identity: Identity, listen: Sequence[str] = ()) -> AsyncIterator[Node]:
    """A peer that listens on the multiaddrs `listen`; without any it only dials."""
    async with open_host(identity, listen) as host, open_circuits(host):
        yield Node(host)


async def _first_of(receive: Callable[[], Awaitable[Message]]) -> Message:
    """The first message of a stream. Raises: RemoteProtocolError when it does not come."""
    try:
        with trio.fail_after(FIRST_MESSAGE_S):
            return await receive()
    except trio.TooSlowError:
        raise RemoteProtocolError(f"a stream without a message for {FIRST_MESSAGE_S:.0f} s") from None
