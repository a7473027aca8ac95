"""The keeper of a serving peer: carries out what its life machine says, and tells the swarm.

Which layers: seating/ asks the scheduler. When: swarm/life.py. They are loaded by loading.py, held and let go of by
kept.py, and told of by account.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import structlog
import trio

from shardp2p.errors import ConfigError, IntegrityError, LocalProtocolError, OverloadedError
from shardp2p.host.beat import next_beat
from shardp2p.keeper.account import Account
from shardp2p.keeper.kept import KeptSeats
from shardp2p.keeper.loading import Loader, NotWantedError
from shardp2p.keeper.offer import Offer
from shardp2p.member import Member
from shardp2p.seating import Seating
from shardp2p.swarm.life import Choose, Command, Drain, Leave, Life, Load, Seats

if TYPE_CHECKING:
    from shardp2p.runtime.device import DeviceThread

LOOK_S: Final = 1.0
"""How often what we publish of ourselves is brought up to date: free rows, speeds, links."""
EXPLAIN_S: Final = 4.0
"""How long a peer that joins waits before it says why nobody answers; each look dials the peer list once."""

log = structlog.get_logger()


class Keeper:
    """One serving peer's. `run` is its lifetime."""

    def __init__(self, member: Member, offer: Offer, *, is_owner: bool = False) -> None:
        """The swarm's owner may begin alone; anybody else waits until a peer of it answers.

        Raises: LocalProtocolError for a client, who may hold no layers for others.
        """
        if not member.may_hold(member.peer_id):
            raise LocalProtocolError(f"this peer is a client of {member.name}, and a client holds no layers for others")
        self._member = member
        self._life = Life(trio.current_time(), is_founder=is_owner and not member.bootstrap)
        self._seating = Seating(member.peer_id, offer.models, offer.budget, offer.pinned)
        self._loader = Loader(member.node, offer, self._seating)
        self._kept = KeptSeats(self._loader.take, member.node.release)
        self._account = Account(member, offer, self._seating)
        self._wake = trio.Event()
        self._logged = ""
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
    def trouble(self) -> str:
        """What is in the way of serving, in words; empty while all goes well."""
        return self._life.trouble

    @property
    def has_no_place(self) -> bool:
        """Whether nothing that is offered fits anywhere."""
        return self._life.has_no_place

    def drain(self) -> None:
        """Leave as soon as what is served is done; a second call leaves at once."""
        self._life.drain(trio.current_time())
        self._wake.set()

    def status(self) -> dict[str, Any]:
        """All that a user may want to know of this peer now."""
        uptime_s = monotonic() - self._started
        return self._account.status(self._life, self._kept.all(), uptime_s, trio.current_time())

    # Running.

    async def run(self, get_device: Callable[[], Awaitable[DeviceThread]]) -> None:
        """Live until told to leave; the device is waited for once something is to be loaded."""
        self._loader.get_device = get_device
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._join)
            try:
                await self._live(nursery)
            finally:
                self._loader.stop()
                with trio.CancelScope(shield=True):  # a load that is under way may hold us up for longer than we have
                    await self._member.gossip.leave()
            nursery.cancel_scope.cancel()

    async def _live(self, nursery: trio.Nursery) -> None:
        while self._life.state != "left":
            self._life.tick(trio.current_time())
            self._life.progress(*self._loader.progress)
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
                try:
                    reason = await self._member.explain_silence()
                except ConfigError as error:
                    reason = error.message
                self._life.not_joined(reason)
                self._wake.set()

    async def _choose(self, question: Choose) -> None:
        """Answer the life machine. Among many peers that takes a while, in which the event loop goes on."""
        held, live = self._kept.seats, self._member.live()
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
        is_urgent = not self._seating.is_whole(seats, self._member.live())
        try:
            await self._kept.move(seats, is_urgent=is_urgent)
        except (ConfigError, IntegrityError, OverloadedError) as error:
            self._life.failed(error.message, trio.current_time())
        except NotWantedError:
            return
        else:
            self._life.loaded(trio.current_time())
            self.is_ready.set()
        self._wake.set()

    async def _drain(self) -> None:
        await self._kept.release_all()
        self._life.drained()
        self._wake.set()

    def _say(self) -> None:
        """Tell the swarm what we hold and claim, unless we have left."""
        if self._life.state != "left":
            self._member.say(self._account.coverage(self._life, self._kept.all(), trio.current_time()))
