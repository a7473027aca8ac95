"""The keeper of a serving peer: carries out what its life machine says, and tells the swarm.

Which layers: seating.py asks the scheduler. When: swarm/life.py. Here they are loaded, served, let go of and told of.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import structlog
import trio

from shardp2p.errors import ConfigError, IntegrityError, LocalProtocolError, OverloadedError
from shardp2p.host.beat import next_beat
from shardp2p.member import Member
from shardp2p.node import HeldModel
from shardp2p.runtime.budget import Budget
from shardp2p.seating import Offered, Seating
from shardp2p.stage.holding import CacheBudget, Holding
from shardp2p.swarm.life import Choose, Command, Drain, Leave, Life, Load, Seat, Seats
from shardp2p.swarm.links import rough
from shardp2p.swarm.publisher import Coverage
from shardp2p.swarm.speed import SpeedEstimate
from shardp2p.vocabulary import DType, LayerRange, LayerSpeed
from shardp2p.wire.records import HeldLayers, NodeState

if TYPE_CHECKING:
    from shardp2p.runtime.device import DeviceThread

LOOK_S: Final = 1.0
"""How often what we publish of ourselves is brought up to date: free rows, speeds, links."""
EXPLAIN_S: Final = 4.0
"""How long a peer that joins waits before it says why nobody answers; each look dials the peer list once."""
RELEASE_S: Final = 30.0
"""How long sessions on layers that the peer gives up may go on, where others wait for the layers that it takes."""
FINISH_S: Final = 300.0
"""The same where nobody waits: requests that run notice nothing of a move, unless they take longer than that."""
VERSION: Final = version("shardp2p")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Offer:
    """What a peer offers to the swarm. `pinned` are the layers that its user chose; None leaves them to the swarm."""

    models: tuple[Offered, ...]
    budget: Budget
    dtype: DType
    device: str
    threads: int = 0
    region: str = ""
    pinned: LayerRange | None = None


@dataclass(slots=True)
class _Kept:
    """A seat that is taken: what serves it, and how fast it is."""

    seat: Seat
    held: HeldModel
    speed: SpeedEstimate
    context_tokens: int


class _NotWanted(Exception):
    """The peer ends while layers are loaded."""


class Keeper:
    """One serving peer's. `run` is its lifetime."""

    def __init__(self, member: Member, offer: Offer, *, is_owner: bool = False) -> None:
        """The swarm's owner may begin alone; anybody else waits until a peer of it answers.

        Raises: LocalProtocolError for a client, who may hold no layers for others.
        """
        if not member.may_hold(member.peer_id):
            raise LocalProtocolError(f"this peer is a client of {member.name}, and a client holds no layers for others")
        self._member = member
        self._offer = offer
        self._life = Life(trio.current_time(), is_founder=is_owner and not member.bootstrap)
        self._seating = Seating(member.peer_id, offer.models, offer.budget, offer.pinned)
        self._kept: dict[Seat, _Kept] = {}
        self._get_device: Callable[[], Awaitable[DeviceThread]] | None = None
        self._wake = trio.Event()
        self._logged = ""
        self._progress = (0, 0)
        self._is_ending = False
        self._started = monotonic()
        self.is_ready = trio.Event()
        """Set once what was chosen serves for the first time."""

    @property
    def state(self) -> str:
        """Where in its life the peer is."""
        return self._life.state

    @property
    def waits_for(self) -> str:
        """What the peer waits for, in words; empty while it serves."""
        return self._life.waits_for

    @property
    def held(self) -> tuple[HeldModel, ...]:
        """What is served."""
        return tuple(kept.held for kept in self._kept.values())

    def drain(self) -> None:
        """Leave as soon as what is served is done; a second call leaves at once."""
        self._life.drain(trio.current_time())
        self._wake.set()

    def status(self) -> dict[str, Any]:
        """All that a user may want to know of this peer now."""
        member, budget, now = self._member, self._offer.budget, trio.current_time()
        used = sum(self._seating.need_bytes(kept.seat) for kept in self._kept.values())
        return {
            "peer_id": member.peer_id,
            "swarm": member.swarm,
            "swarm_name": member.name,
            "state": self.state,
            "waits_for": self.waits_for,
            "uptime_s": round(monotonic() - self._started, 1),
            "version": VERSION,
            "region": self._offer.region,
            "reachability": member.reachable.verdict,
            "reach": member.reachable.status(),
            "paths": member.paths.status(),
            "addresses": list(member.node.addresses()),
            "memory": {
                "offered_bytes": budget.memory_bytes,
                "headroom_bytes": budget.headroom_bytes,
                "used_bytes": used,
            },
            "held": [self._describe(kept, now) for kept in self._kept.values()],
            "sessions": member.node.open_sessions,
            "driven": member.node.driven,
            "neighbours": list(member.gossip.neighbours),
            "live_peers": len(member.live()),
            "links": [
                {
                    "peer": link.peer,
                    "rtt_ms": round(1e3 * link.rtt_s, 3),
                    "spread_ms": round(1e3 * link.spread_s, 3),
                    "bandwidth_mb_s": round(link.bandwidth_bytes_s / 1e6, 2),
                }
                for link in member.links.snapshot(now)
            ],
        }

    def _describe(self, kept: _Kept, now: float) -> dict[str, Any]:
        record = self._record_of(kept, now)
        return {
            "model": record.model,
            "digest": record.model_digest,
            "layers": [record.layers.start, record.layers.stop],
            "model_layers": record.model_layers,
            "state": record.state,
            "dtype": record.dtype,
            "layer_bytes": record.layer_bytes,
            "cache_rows": record.cache_rows,
            "free_cache_rows": record.free_cache_rows,
            "decode_layer_ms": round(1e3 * record.decode_layer_s, 4),
            "prefill_layer_ms": round(1e3 * record.prefill_layer_s, 4),
        }

    # Running.

    async def run(self, get_device: Callable[[], Awaitable[DeviceThread]]) -> None:
        """Live until told to leave; the device is waited for once something is to be loaded."""
        self._get_device = get_device
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._join)
            try:
                await self._live(nursery)
            finally:
                self._is_ending = True
                with trio.CancelScope(shield=True):  # a load that is under way may hold us up for longer than we have
                    await self._member.gossip.leave()
            nursery.cancel_scope.cancel()

    async def _live(self, nursery: trio.Nursery) -> None:
        while self._life.state != "left":
            self._life.tick(trio.current_time())
            self._life.progress(*self._progress)
            while (command := self._life.next_command()) is not None:
                self._do(command, nursery)
            self._log()
            self._say()
            self._wake = trio.Event()
            with trio.move_on_at(min(self._life.due_at, next_beat(trio.current_time(), LOOK_S))):
                await self._wake.wait()

    def _log(self) -> None:
        """Log where in its life the peer is, when that changes."""
        if self._life.state != self._logged:
            self._logged = self._life.state
            log.info("life", state=self._life.state, waits_for=self._life.waits_for)

    def _do(self, command: Command, nursery: trio.Nursery) -> None:
        match command:
            case Choose():
                nursery.start_soon(self._choose, command)
            case Load(seats):
                nursery.start_soon(self._load, seats)
            case Drain():
                nursery.start_soon(self._drain)
            case Leave():
                pass

    async def _join(self) -> None:
        """Tell the life machine when the swarm answers, and why it does not."""
        while self._life.state == "joining":
            if self._member.gossip.neighbours:
                self._life.connected(trio.current_time())
                self._wake.set()
                return
            with trio.move_on_after(EXPLAIN_S) as waited:
                await self._member.wait_neighbour()
            if waited.cancelled_caught:
                self._life.not_joined(await self._member.explain_silence())
                self._wake.set()

    async def _choose(self, question: Choose) -> None:
        """Answer the life machine. Among many peers that takes a while, in which the event loop goes on."""
        held, live = tuple(sorted(self._kept)), self._member.live()
        seats, reason = await trio.to_thread.run_sync(
            self._seating.answer,
            question,
            self._life.seats,
            held,
            live,
            self._member.topology(()),
            trio.current_time(),
            abandon_on_cancel=True,
        )
        self._life.chosen(seats, reason, trio.current_time())
        self._wake.set()

    async def _load(self, seats: Seats) -> None:
        """Serve exactly `seats`, and say so, or why not."""
        patience_s = FINISH_S if self._seating.is_whole(seats, self._member.live()) else RELEASE_S
        try:
            for seat in [seat for seat in self._kept if seat not in seats]:
                with trio.move_on_after(patience_s):
                    await self._release(seat)
            for seat in seats:
                if seat not in self._kept:
                    await self._take(seat)
        except (ConfigError, IntegrityError, OverloadedError) as error:
            self._life.failed(error.message, trio.current_time())
        except _NotWanted:
            return
        else:
            self._life.loaded(trio.current_time())
            self.is_ready.set()
        self._wake.set()

    async def _take(self, seat: Seat) -> None:
        """Load a seat's layers and serve them."""
        assert self._get_device is not None
        device = await self._get_device()
        offered = self._seating.offered(seat.digest)
        budget, offer = CacheBudget(self._seating.cache_bytes(seat)), self._offer
        from shardp2p.runtime.bring_up import bring_up  # brings torch

        stored = offered.stored
        loaded = await device.run_abandonable(
            partial(
                bring_up,
                stored.directory,
                seat.layers,
                dtype=offer.dtype,
                device=offer.device,
                digests=stored.manifest.digests(),
                cache_bytes=budget.total_bytes,
                progress=self._note_progress,
            )
        )
        speed = SpeedEstimate(loaded.speed)

        def observe(rows: int, layers: int, compute_s: float) -> None:
            speed.observe(rows, layers, compute_s, trio.current_time())

        holding = Holding(seat.digest, offer.dtype, offer.budget.cache_rows)
        held = self._member.node.hold(
            seat.model, loaded.block, device, holding, loaded.growth_bytes, budget=budget, observe=observe
        )
        self._kept[seat] = _Kept(seat, held, speed, loaded.block.context_tokens)
        log.info("layers_served", model=seat.model, layers=str(seat.layers))

    async def _release(self, seat: Seat) -> None:
        kept = self._kept.pop(seat)
        await self._member.node.release(kept.held)

    async def _drain(self) -> None:
        async with trio.open_nursery() as nursery:
            for kept in self._kept.values():
                nursery.start_soon(self._member.node.release, kept.held)
        self._life.drained()
        self._wake.set()

    def _note_progress(self, done_bytes: int, total_bytes: int) -> None:
        """Called in the device's thread, which nobody can cancel: of a peer that ends it loads no further tensor."""
        if self._is_ending:
            raise _NotWanted
        self._progress = done_bytes, total_bytes

    # What the swarm hears.

    def _say(self) -> None:
        life, member, now = self._life, self._member, trio.current_time()
        if life.state == "left":
            return
        held = {seat: self._record_of(kept, now) for seat, kept in self._kept.items()}
        for seat in life.seats:
            if seat not in held:
                held[seat] = self._claim(seat)
        used = sum(self._seating.need_bytes(seat) for seat in held)
        budget = self._offer.budget
        member.say(
            Coverage(
                state=_published(life),
                addresses=member.node.addresses(),
                reachability=member.reachable.verdict,
                region=self._offer.region,
                version=VERSION,
                memory_bytes=budget.memory_bytes,
                free_memory_bytes=max(0, budget.free_bytes - used),
                held=tuple(held[seat] for seat in sorted(held)),
                links=member.links.told(now),
            )
        )

    def _record_of(self, kept: _Kept, now: float) -> HeldLayers:
        served = kept.held.served
        state: NodeState = "draining" if served.is_draining else "serving"
        return self._held(
            kept.seat, state, kept.context_tokens, served.cache_rows, served.free_cache_rows, kept.speed.at(now)
        )

    def _claim(self, seat: Seat) -> HeldLayers:
        rows = self._offer.budget.cache_rows
        context_tokens = self._seating.offered(seat.digest).stored.manifest.context_tokens
        return self._held(seat, "loading", context_tokens, rows, rows, LayerSpeed(0.0, 0.0))

    def _held(
        self, seat: Seat, state: NodeState, context_tokens: int, rows: int, free_rows: int, speed: LayerSpeed
    ) -> HeldLayers:
        offered = self._seating.offered(seat.digest)
        return HeldLayers(
            model=seat.model,
            model_digest=seat.digest,
            model_layers=offered.shape.layers,
            layers=seat.layers,
            state=state,
            dtype=self._offer.dtype,
            context_tokens=context_tokens,
            layer_bytes=offered.footprint.weight_bytes(seat.layers),
            cache_rows=rows,
            free_cache_rows=free_rows,
            decode_layer_s=rough(speed.decode_layer_s),
            prefill_layer_s=rough(speed.prefill_layer_s),
        )


def _published(life: Life) -> NodeState:
    match life.state:
        case "left" | "draining":
            return "draining"
        case state:
            return state
