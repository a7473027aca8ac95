"""Gossip over a network: keeps streams to a few neighbours and pumps the pure `gossip.Gossip` between them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Final

import structlog
import trio

from shardp2p.errors import OverloadedError, RemoteProtocolError, ShardError, blaming, first_of
from shardp2p.host.beat import next_beat
from shardp2p.identity.keys import Identity
from shardp2p.swarm.conversation import Conversation, greet
from shardp2p.swarm.gossip import Gossip
from shardp2p.swarm.neighbours import Connected, Neighbours
from shardp2p.swarm.publisher import Coverage, Publisher
from shardp2p.swarm.pump import TICK_S, Pump
from shardp2p.swarm.roll import Admits, Roll
from shardp2p.swarm.shared_values import Validator
from shardp2p.swarm.strikes import BREACH, Strikes
from shardp2p.swarm.twins import TwinSeen
from shardp2p.swarm.view_events import GossipEvent, Struck, ValueAdded, Vanished
from shardp2p.vocabulary import PeerId, SwarmId
from shardp2p.wire.channel import MessageChannel, open_channel
from shardp2p.wire.messages import PeerAddress
from shardp2p.wire.news import ValueNews
from shardp2p.wire.protocols import GOSSIP
from shardp2p.wire.records import CoverageRecord
from shardp2p.wire.stream import Network, Stream

DIAL_S: Final = 20.0
MAX_INBOUND: Final = 64
"""Streams that others opened, the surplus to be sent on included: a swarm that starts at once has one entrance."""
LEAVING_S: Final = 1.0
"""How long leaving waits until the neighbours have heard it."""

log = structlog.get_logger()


class GossipService:
    """One peer's gossip. `run` is its lifetime; the rest may be used before and while it runs."""

    def __init__(
        self,
        network: Network,
        identity: Identity,
        swarm: SwarmId,
        *,
        bootstrap: Sequence[PeerAddress] = (),
        validators: Mapping[int, Validator] | None = None,
        strikes: Strikes | None = None,
        rng: Random | None = None,
        entropy: Callable[[int], bytes] = secrets.token_bytes,
        unix_clock: Callable[[], float] = time.time,
        is_listener: bool = False,
        admission: Admits | None = None,
        proof: bytes = b"",
    ) -> None:
        """A listener hears and passes on everything, and says nothing of itself.

        In a private swarm `admission` says whose records count, and `proof` shows others that ours do.
        """
        rng = rng or Random(secrets.randbits(64))
        self._network = network
        self._swarm = swarm
        self._unix_clock = unix_clock
        self._gossip = Gossip(
            Publisher(identity, swarm, rng, entropy, is_silent=is_listener, membership=proof),
            swarm,
            validators=validators,
            strikes=strikes,
            roll=Roll(admission, unix_clock),
        )
        self._neighbours = Neighbours(identity.peer_id, bootstrap, rng)
        self._conversations: dict[PeerId, Conversation] = {}
        self._dialling: dict[PeerId, Connected] = {}
        self._pump = Pump(self._gossip, self._apply)
        self._inbound = 0
        self._changes = 0
        self._changed = trio.Event()
        self._hurried = trio.Event()
        self._is_running = False
        self.twin_seen = trio.Event()
        """Set when another process has our identity; `has_older_twin` says that it is for us to end then."""
        self.has_older_twin = False

    # What others see.

    @property
    def own(self) -> CoverageRecord | None:
        """Our newest record; None before `run`."""
        return self._gossip.own.record

    def own_sealed(self) -> bytes:
        """Our newest record as it was sealed; empty before `run`, and for a listener."""
        return self._gossip.own.sealed

    @property
    def strikes(self) -> Strikes:
        """Who broke the rules; any service may add to it."""
        return self._gossip.strikes

    @property
    def neighbours(self) -> tuple[PeerId, ...]:
        """With whom a gossip stream stands."""
        return tuple(self._conversations)

    def met(self) -> frozenset[PeerId]:
        """With whom we gossip, and whom they or we have measured."""
        near = {self._network.peer_id, *self._conversations}
        return frozenset(near.union(link.peer for one in self.live() if one.peer_id in near for link in one.links))

    @property
    def changes(self) -> int:
        """How often the view or the shared values changed: for `wait_change`."""
        return self._changes

    def live(self) -> tuple[CoverageRecord, ...]:
        """The newest record of every live peer, by peer id, our own included."""
        own = () if self.own is None or self.own.is_departure else (self.own,)
        return tuple(sorted((*self._gossip.view.live(), *own), key=lambda record: record.peer_id))

    def live_sealed(self) -> tuple[bytes, ...]:
        """The same records as their peers sealed them, in no order."""
        own = () if self.own is None or self.own.is_departure else (self.own_sealed(),)
        return (*self._gossip.view.live_sealed(), *own)

    def values(self, kind: int) -> tuple[bytes, ...]:
        """The sealed values of that kind, as `shared_values.REVOCATIONS`."""
        return self._gossip.values.of_kind(kind)

    async def wait_change(self, seen: int) -> int:
        """The number of changes, once it is not `seen` any more."""
        while self._changes == seen:
            await self._changed.wait()
        return self._changes

    def publish(self, coverage: Coverage) -> None:
        """From now on say this of ourselves. Everybody knows it within seconds if it moves requests."""
        if self._gossip.own.update(coverage):
            self._hurry()

    def share(self, kind: int, sealed: bytes) -> None:
        """Give everybody a value of that kind. Raises what the kind's validator raises."""
        self._apply(self._gossip.share(ValueNews(kind, sealed), trio.current_time()))

    def shut_out(self, peer: PeerId) -> None:
        """Believe and tell nothing of `peer` any more, and end its stream: it was revoked."""
        self._apply(self._gossip.shut_out(peer, trio.current_time()))
        self._end(peer)

    def recheck(self) -> None:
        """Believe and tell nothing any more of whoever is not admitted now, whether connected to us or not."""
        self._apply(self._gossip.recheck())

    def let_in(self, peer: PeerId) -> None:
        """Believe `peer` again, which was shut out and has a later invite."""
        self._gossip.let_in(peer)

    def add_peers(self, peers: Iterable[PeerAddress]) -> None:
        """Peers that were found some other way, to be tried when nobody else tells of them."""
        self._neighbours.add(peers)

    # Running.

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Gossip until cancelled, and then say that we leave (bounded)."""
        self._network.serve(GOSSIP, self._serve)
        self._is_running = True
        self._tick()
        task_status.started()
        async with trio.open_nursery() as nursery:
            try:
                while True:
                    self._tick()
                    self._dial(nursery)
                    self._send_on()
                    self._hurried = trio.Event()
                    with trio.move_on_at(next_beat(trio.current_time(), TICK_S)) as pause:
                        await self._hurried.wait()
                    if pause.cancelled_caught:
                        self._wake_at_tick()
            finally:
                with trio.CancelScope(shield=True):
                    await self.leave()

    async def leave(self) -> None:
        """Tell the neighbours that we leave, and end every stream. Bounded; `run` does it too when it is cancelled."""
        self._is_running = False
        self._gossip.own.leave()
        self._tick()
        for conversation in self._conversations.values():
            conversation.part("leaving")
        with trio.move_on_after(LEAVING_S):
            while self._conversations:
                await self._changed.wait()
        for conversation in list(self._conversations.values()):
            conversation.scope.cancel()

    def _tick(self) -> None:
        self._apply(self._gossip.tick(trio.current_time(), self._unix_clock()))

    def _wake_at_tick(self) -> None:
        """Have everything sent that is due before the next tick."""
        until = trio.current_time() + TICK_S
        for peer, conversation in self._conversations.items():
            if self._gossip.due_at(peer) < until:
                conversation.tick()

    def _hurry(self) -> None:
        self._hurried.set()

    def _apply(self, events: Iterable[GossipEvent]) -> None:
        """Log and act on what happened, and wake whoever has something to send."""
        is_change = False
        for event in events:
            match event:
                case Struck(peer, reason, is_banned):
                    log.info("peer_struck", peer=peer, reason=reason, is_banned=is_banned)
                    if is_banned:
                        self._end(peer)
                case TwinSeen(is_older):
                    log.warning("identity_used_twice", peer=self._network.peer_id, is_other_older=is_older)
                    self.has_older_twin = is_older
                    self.twin_seen.set()
                case ValueAdded(kind):
                    log.info("value_added", kind=kind)
                    is_change = True
                case Vanished(record, why):
                    log.info("peer_vanished", peer=record.peer_id, reason=why)
                    if why == "silent":
                        self._neighbours.lost(record)
                    is_change = True
                case _:
                    log.debug("peer_seen", peer=event.record.peer_id, state=event.record.state)
                    is_change = True
        if is_change:
            self._note_change()
        now = trio.current_time()
        for peer, conversation in self._conversations.items():
            if self._gossip.due_at(peer) <= now + TICK_S:
                conversation.wake.set()

    def _note_change(self) -> None:
        self._changes += 1
        self._changed.set()
        self._changed = trio.Event()

    def _end(self, peer: PeerId) -> None:
        conversation = self._conversations.get(peer)
        if conversation is not None:
            conversation.scope.cancel()

    # Neighbours.

    def _connected(self) -> dict[PeerId, Connected]:
        standing = {peer: conversation.state for peer, conversation in self._conversations.items()}
        return {**self._dialling, **standing}

    def _is_banned(self, peer: PeerId) -> bool:
        return self._gossip.strikes.is_banned(peer, trio.current_time())

    def _dial(self, nursery: trio.Nursery) -> None:
        if not self._is_running:
            return
        now = trio.current_time()
        live = self._gossip.view.live()
        for address in self._neighbours.to_dial(live, self._connected(), self._is_banned, now):
            self._dialling[address.peer_id] = Connected(True, now)
            nursery.start_soon(self._call, address)

    def _send_on(self) -> None:
        """Let the surplus look for another neighbour: they have heard the view by now."""
        now = trio.current_time()
        for peer in self._neighbours.surplus(self._connected(), len(self._gossip.view), now):
            if (conversation := self._conversations.get(peer)) is not None:
                conversation.part("no room")

    async def _call(self, address: PeerAddress) -> None:
        """Open a stream to a peer and gossip on it until it ends."""
        peer = address.peer_id
        try:
            try:
                with trio.fail_after(DIAL_S):
                    stream = await self._network.open_stream(peer, GOSSIP, address.addresses)
            except trio.TooSlowError:
                log.debug("gossip_dial_failed", peer=peer, error=f"no answer within {DIAL_S:.0f} s")
                self._neighbours.failed(peer, trio.current_time())
                return
            await self._converse(stream, is_chosen=True)
            self._neighbours.failed(peer, trio.current_time())
        except ShardError as error:
            log.debug("gossip_failed", peer=peer, error=error.message)
            self._neighbours.failed(peer, trio.current_time())
        finally:
            self._dialling.pop(peer, None)
            self._hurry()

    async def _serve(self, stream: Stream) -> None:
        """An inbound stream."""
        if not self._is_running or self._is_banned(stream.peer):
            raise OverloadedError(f"no gossip with {stream.peer} now", stream.peer)
        if self._inbound >= MAX_INBOUND:
            raise OverloadedError(f"{MAX_INBOUND} peers gossip with us already", stream.peer)
        self._inbound += 1
        try:
            await self._converse(stream, is_chosen=False)
        finally:
            self._inbound -= 1

    # One stream.

    async def _converse(self, stream: Stream, *, is_chosen: bool) -> None:
        peer = stream.peer
        async with open_channel(stream, GOSSIP) as channel:
            try:
                with blaming(peer):
                    await greet(channel, self._swarm)
                    if (conversation := self._admit(peer, is_chosen)) is not None:
                        await self._exchange(channel, conversation)
            except RemoteProtocolError as error:
                self._apply_strike(peer, error)
                raise

    def _admit(self, peer: PeerId, is_chosen: bool) -> Conversation | None:
        """The conversation that this stream becomes, or None where the other one with this peer shall stay.

        Of two that dial each other at once, both keep the stream that the smaller peer id opened.
        """
        before = self._conversations.get(peer)
        if not self._is_running:
            return None
        if before is not None:
            is_preferred = is_chosen == (self._network.peer_id < peer)
            if before.state.is_chosen != is_chosen and not is_preferred:
                return None
            before.scope.cancel()
        now = trio.current_time()
        conversation = Conversation(peer, is_chosen, now)
        self._gossip.connect(peer, now)
        self._conversations[peer] = conversation
        self._neighbours.succeeded(peer)
        return conversation

    async def _exchange(self, channel: MessageChannel, conversation: Conversation) -> None:
        """Send and receive news until one side says farewell or the stream fails."""
        scope = conversation.scope
        # Shielded, so that a cancelled `run` can still tell the neighbours that it leaves; it ends the scope then.
        scope.shield = True
        try:
            with scope:
                await self._pump.run(channel, conversation)
        except* ShardError as group:
            raise first_of(group) from None
        finally:
            if self._conversations.get(conversation.peer) is conversation:
                del self._conversations[conversation.peer]
                self._gossip.disconnect(conversation.peer)
                self._changed.set()
                self._changed = trio.Event()
                self._hurry()

    def _apply_strike(self, peer: PeerId, error: RemoteProtocolError) -> None:
        is_banned = self._gossip.strikes.strike(peer, BREACH, trio.current_time())
        self._apply((Struck(peer, error.message, is_banned),))
