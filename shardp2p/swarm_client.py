"""A client of a swarm: has each request answered by the best ring that is live, and by another one where that fails.

`SwarmClient.generate` is the way in. Which ring: scheduler/request_route.py. Whether to try another:
scheduler/attempts.py. The client needs the model's tokenizer and manifest, and none of its weights.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Literal

import structlog
import trio

from shardp2p.coordinator.commands import Limits
from shardp2p.coordinator.request import SPARE_ROWS, GenerationRequest, Result, check_length
from shardp2p.coordinator.stream import GenerationStream
from shardp2p.errors import IntegrityError, OverloadedError, PeerUnavailableError, RemoteProtocolError, ShardError
from shardp2p.member import Member
from shardp2p.scheduler.attempts import Attempts, Fault
from shardp2p.scheduler.holders import Holder, holders_of, missing_ranges, named
from shardp2p.scheduler.plan import Plan
from shardp2p.scheduler.request_route import RequestNeeds, Route, route_request
from shardp2p.scheduler.topology import Machine, ModelShape
from shardp2p.swarm.strikes import BREACH, FORGERY, NUISANCE
from shardp2p.vocabulary import DType, ModelId, PeerId, Token
from shardp2p.weights.manifest import Manifest
from shardp2p.wire.driving import DraftKind
from shardp2p.wire.records import CoverageRecord

COMING_S: Final = 10.0
"""How long a request waits for layers that are on their way."""
SETTLE_S: Final = 2.0
"""How long after the start layers may be missing only because we have not heard of everybody yet."""
AVOIDED_S: Final = 60.0
"""How long a peer that failed a request is used for others only where nobody else has its layers."""
MAX_AVOIDED: Final = 1024
"""Peers that are kept in mind for it; of more, those that failed longest ago are forgotten."""
MAX_NAMED: Final = 3
"""Peers that a line about waiting names."""

Blame = Callable[[ShardError], Awaitable[None]]
"""Hears why an answer that had begun failed. May raise: the error that its reader is to see instead."""

Say = Callable[[str], None]
"""Hears in words what a request waits for."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Terms:
    """On what terms a request is served.

    `driver`: "first", the peer of the first layers, so that no lap has a hop to us and back; "local", ourselves, so
    that only the stages see the tokens. `allowed` None: every peer that is not `blocked`.
    """

    driver: Literal["first", "local"] = "first"
    draft: DraftKind = "none"
    limits: Limits = field(default_factory=Limits)
    allowed: frozenset[PeerId] | None = None
    blocked: frozenset[PeerId] = frozenset()


class SwarmAnswer:
    """The tokens of an answer, in the batches in which they are committed: iterate over it.

    The iteration raises what a generation raises. Once tokens have come no other ring is tried: to ask again does so,
    since the client keeps in mind whose fault it was.
    """

    def __init__(
        self,
        route: Route,
        stream: GenerationStream,
        first: tuple[Token, ...],
        blame: Callable[[ShardError], Awaitable[None]],
    ) -> None:
        self.route = route
        self._stream = stream
        self._first = first
        self._blame = blame

    @property
    def plan(self) -> Plan:
        """The ring that answers."""
        return self.route.plan

    @property
    def result(self) -> Result:
        """How it went; complete once the context of `generate` is left."""
        return self._stream.result

    @property
    def tok_s(self) -> float:
        """Tokens per second after the first batch, as they were read."""
        return self._stream.tok_s

    def __aiter__(self) -> SwarmAnswer:
        return self

    async def __anext__(self) -> tuple[Token, ...]:
        if self._first:
            first, self._first = self._first, ()
            return first
        try:
            return await anext(self._stream)
        except ShardError as error:
            await self._blame(error)
            raise


class SwarmClient:
    """Asks a swarm for the model `name`, which the swarm knows by its manifest's digest.

    First layers that the member's own node holds are run there, and the generation is driven there then.
    """

    def __init__(self, member: Member, name: ModelId, manifest: Manifest, *, say: Say = lambda what: None) -> None:
        self.say = say
        self._member = member
        self._shape = ModelShape(
            name, manifest.digest, manifest.layers, manifest.size_bytes // manifest.layers, 2 * manifest.hidden_size
        )
        self._context_tokens = manifest.context_tokens
        self._settled_at: float | None = None
        self._failed: dict[PeerId, tuple[float, str]] = {}  # until when, and why

    async def find_route(self, request: GenerationRequest, terms: Terms) -> Route:
        """The ring that would answer now.

        Raises: PeerUnavailableError that names the layers which are missing; OverloadedError when only room is.
        """
        await self._wait_sight()
        return await self._wait_route(request, terms, Attempts(self._member.peer_id), trio.current_time() + COMING_S)

    async def find_dtype(self) -> DType:
        """The type in which most layers are served now, for layers of our own. Raises: PeerUnavailableError."""
        await self._wait_sight()
        layers: dict[DType, int] = {}
        with trio.move_on_after(COMING_S):
            while not layers:
                seen = self._member.gossip.changes
                for holder in self._holders(Terms())[0]:
                    layers[holder.dtype] = layers.get(holder.dtype, 0) + len(holder.layers)
                if not layers:
                    self.say(f"waiting for a peer that serves {self._shape.model}")
                    await self._member.gossip.wait_change(seen)
        if not layers:
            raise PeerUnavailableError(f"nobody in the swarm {self._member.name} holds layers of {self._shape.model}")
        return max(sorted(layers), key=lambda dtype: layers[dtype])

    @asynccontextmanager
    async def generate(self, request: GenerationRequest, terms: Terms | None = None) -> AsyncIterator[SwarmAnswer]:
        """The answer, as long as the context; entered once its first tokens are there. Leaving early cancels it.

        A ring that fails before that is replaced by another one, without the peer whose fault it was.
        Raises: ConfigError for a request that cannot be served; OverloadedError at once when no ring has room;
        PeerUnavailableError with the layers that are missing, or with what each ring that was tried failed by.
        """
        check_length(request, self._shape.model, self._context_tokens)
        terms = terms or Terms()
        self.say("looking for peers")
        await self._wait_sight()
        attempts, until = Attempts(self._member.peer_id), trio.current_time() + COMING_S
        while True:
            route = await self._wait_route(request, terms, attempts, until)
            self.say("waiting for the first token")
            async with AsyncExitStack() as stack:
                try:
                    stream = await stack.enter_async_context(
                        self._member.node.generate(
                            route.plan, request, driver=terms.driver, draft=terms.draft, limits=terms.limits
                        )
                    )
                    first = await _first_of(stream, route.driver)
                except ShardError as error:
                    await self._check_admitted(route, error)
                    self._note(attempts.failed(route.plan, error, route.driver), error)
                else:
                    yield SwarmAnswer(route, stream, first, partial(self._blame, route))
                    return

    # Finding a ring.

    async def _wait_sight(self) -> None:
        """Wait until we know of others, unless all layers are our own."""
        if missing_ranges(self._shape.layers, [holder.layers for holder in self._own_holders()]):
            await self._member.wait_sight()
        if self._settled_at is None:
            self._settled_at = trio.current_time() + SETTLE_S

    async def _wait_route(self, request: GenerationRequest, terms: Terms, attempts: Attempts, until: float) -> Route:
        """The ring for the next try; layers that are on their way are waited for."""
        while True:
            seen = self._member.gossip.changes
            try:
                return self._route(request, terms, attempts.avoid)
            except OverloadedError as error:
                raise attempts.gave_up(error) from None
            except PeerUnavailableError as error:
                coming = self._coming(terms, attempts.avoid)
                patience = until if coming or self._settled_at is None else min(until, self._settled_at)
                if trio.current_time() >= patience:
                    raise attempts.gave_up(error) from None
                self.say(coming or f"looking for peers that hold {self._shape.model}")
            with trio.move_on_at(patience):
                await self._member.gossip.wait_change(seen)

    def _route(self, request: GenerationRequest, terms: Terms, avoid: Mapping[PeerId, str]) -> Route:
        """The ring that is best now. Those who failed other requests lately are asked where nobody else can be; once a
        ring of this request has failed, so are those whom nobody near us has met: they may exist in a claim alone.
        """
        holders, refused = self._holders(terms)
        refused = {**refused, **avoid}
        own = self._member.peer_id
        needs = RequestNeeds(
            cache_rows=_cache_rows(request, terms),
            allowed=terms.allowed,
            blocked=terms.blocked,
            driver=own if terms.driver == "local" or self._own_layers() else None,
            local_layers=self._own_layers(),
        )
        machines = {holder.peer_id: Machine(holder.peer_id, 0, holder.layer_s) for holder in holders}
        topology = self._member.topology(machines.values())
        failed = self._lately_failed()
        for last_resort in [{**self._unmet(holders), **failed}, failed] if avoid else [failed]:
            if last_resort.keys() - refused.keys():
                with suppress(PeerUnavailableError, OverloadedError):
                    needs = replace(needs, avoid={**last_resort, **refused})
                    return route_request(self._shape, needs, holders, topology)
        return route_request(self._shape, replace(needs, avoid=refused), holders, topology)

    def _unmet(self, holders: Iterable[Holder]) -> dict[PeerId, str]:
        met = self._member.gossip.met()
        return {holder.peer_id: "was met by nobody near" for holder in holders if holder.peer_id not in met}

    def _holders(self, terms: Terms) -> tuple[tuple[Holder, ...], dict[PeerId, str]]:
        """Who says that it holds layers of the model, ourselves included, and whom not to believe."""
        records, now, digest = self._member.live(), trio.current_time(), self._shape.digest
        refused: dict[PeerId, str] = {}
        for record in records:
            if self._member.gossip.strikes.is_banned(record.peer_id, now):
                refused[record.peer_id] = "broke the rules again and again, and is left alone for a while"
            elif not self._is_possible(record):
                refused[record.peer_id] = f"says of {self._shape.model} what its manifest does not"
        fitting = [record for record in records if self._is_possible(record)]
        return (*holders_of(digest, fitting), *self._own_holders()), refused

    def _is_possible(self, record: CoverageRecord) -> bool:
        """Whether what a peer says of the model can be true."""
        return all(
            (held.model_layers, held.context_tokens) == (self._shape.layers, self._context_tokens)
            for held in record.held
            if held.model_digest == self._shape.digest
        )

    def _own_holders(self) -> tuple[Holder, ...]:
        own = self._member.node.held
        return tuple(
            Holder(
                self._member.peer_id,
                held.served.layers,
                cache_rows=held.served.cache_rows,
                free_cache_rows=held.served.free_cache_rows,
                context_tokens=held.context_tokens,
                dtype=held.served.holding.dtype,
            )
            for held in own
            if held.served.holding.model_digest == self._shape.digest
        )

    def _own_layers(self) -> int:
        """How many of the first layers we run ourselves."""
        return max((holder.layers.stop for holder in self._own_holders() if holder.layers.start == 0), default=0)

    def _coming(self, terms: Terms, avoid: Mapping[PeerId, str]) -> str:
        """Which layers are on their way, in words, where the model would be whole with them; else empty."""
        holders, refused = self._holders(terms)
        usable = [
            holder
            for holder in holders
            if holder.is_coming
            and holder.peer_id not in refused
            and holder.peer_id not in avoid
            and holder.peer_id not in terms.blocked
            and (terms.allowed is None or holder.peer_id in terms.allowed or holder.peer_id == self._member.peer_id)
        ]
        if missing_ranges(self._shape.layers, [holder.layers for holder in usable]):
            return ""
        missing = missing_ranges(self._shape.layers, [holder.layers for holder in usable if holder.state == "serving"])
        on = sorted({holder.peer_id for holder in usable if holder.state != "serving"})
        more = f" and {len(on) - MAX_NAMED} more" if len(on) > MAX_NAMED else ""
        return f"layers {named(missing)} are loading on {', '.join(on[:MAX_NAMED])}{more}, waiting" if missing else ""

    # What failed.

    async def _blame(self, route: Route, error: ShardError) -> None:
        """A ring failed whose answer had begun."""
        await self._check_admitted(route, error)
        with suppress(ShardError):  # nobody of the ring is to blame
            self._note(Attempts(self._member.peer_id).failed(route.plan, error, route.driver), error)

    async def _check_admitted(self, route: Route, error: ShardError) -> None:
        """Whom we lost may have shut us out. Raises: ConfigError that says so."""
        own = self._member.peer_id
        lost = next((stage for stage in route.plan.stages if own != stage.peer_id == error.peer), None)
        if isinstance(error, PeerUnavailableError) and lost is not None and route.driver in (own, lost.peer_id):
            await self._member.admission.check(lost.peer_id, lost.addresses)

    def _note(self, fault: Fault, error: ShardError) -> None:
        """Keep in mind whose fault it was; a peer is struck for what we saw ourselves."""
        now = trio.current_time()
        log.info("ring_failed", peer=fault.peer, reason=fault.reason, is_seen=fault.is_seen)
        if isinstance(error, OverloadedError):
            return
        self._failed.pop(fault.peer, None)
        self._failed[fault.peer] = now + AVOIDED_S, fault.reason
        while len(self._failed) > MAX_AVOIDED:
            del self._failed[next(iter(self._failed))]
        if fault.is_seen:
            self._member.gossip.strikes.strike(fault.peer, _weight(error), now)

    def _lately_failed(self) -> dict[PeerId, str]:
        now = trio.current_time()
        self._failed = {peer: kept for peer, kept in self._failed.items() if kept[0] > now}
        return {peer: f"failed a request a moment ago: {reason}" for peer, (_, reason) in self._failed.items()}


async def _first_of(stream: GenerationStream, driver: PeerId) -> tuple[Token, ...]:
    """The first batch of an answer, which has at least one token."""
    async for batch in stream:
        return batch
    raise RemoteProtocolError("it ended the answer without a token", driver)


def _cache_rows(request: GenerationRequest, terms: Terms) -> int:
    """The rows that every stage will be asked for (coordinator.request.fit_limits)."""
    drafts = terms.limits.max_chunks * terms.limits.chunk_tokens if terms.draft != "none" else 0
    return len(request.prompt_tokens) + request.max_tokens + drafts + SPARE_ROWS


def _weight(error: ShardError) -> float:
    if isinstance(error, IntegrityError):
        return FORGERY
    return BREACH if isinstance(error, RemoteProtocolError) else NUISANCE
