"""Probes over /shardp2p/swarm/1: `Prober` measures our ways to others, `ProbeAnswers` lets others measure theirs to us.

What to measure, when, and what it means is in links.py; what others may ask of us in allowance.py.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import structlog
import trio

from shardp2p.errors import (
    ConfigError,
    IntegrityError,
    OverloadedError,
    PeerUnavailableError,
    RemoteProtocolError,
    ShardError,
)
from shardp2p.host.beat import next_beat
from shardp2p.swarm.allowance import BURST_BYTES, BURST_PINGS, PROBE_BYTES, ProbeAllowance
from shardp2p.swarm.links import Links, bandwidth_bytes_s
from shardp2p.vocabulary import PeerId
from shardp2p.wire.channel import MessageChannel, open_channel
from shardp2p.wire.codec_swarm import MAX_PADDING_BYTES, NONCE_BYTES
from shardp2p.wire.messages import Ping, Pong
from shardp2p.wire.protocols import SWARM
from shardp2p.wire.stream import Network

PINGS: Final = 5
PING_GAP_S: Final = 0.05
"""Samples of one round, and the pause between them: a queue that one meets has drained for the next."""
OPEN_S: Final = 10.0
PONG_S: Final = 10.0
BURST_S: Final = 20.0
"""A link that takes longer for a burst carries less than 13 KB a second: of no use to a ring."""
SLOW_BURST_S: Final = 1.0
"""A first burst that takes this long is no matter of congestion windows, and is measurement enough."""
LOOK_S: Final = 2.0
"""Between two looks at who is alive."""
CHOOSE_S: Final = 30.0
"""How often those to be probed are chosen anew where the same are alive."""
ROUNDS_AT_ONCE: Final = 4
"""A peer that joins a large swarm does not dial all its targets in the same moment."""
SILENCE_S: Final = 180.0
"""A prober that sends nothing for so long is let go: three times the longest pause of an honest one."""
MAX_STREAMS_PER_PROBER: Final = 2
"""One, and the one that a lost connection left behind."""

log = structlog.get_logger()

Alive = Callable[[], Mapping[PeerId, Sequence[str]]]
"""The peers that are thought alive, with the addresses at which each can be dialled."""


class Prober:
    """Keeps `links` up to date. `is_busy` says whether requests are being served: no bandwidth is measured then."""

    def __init__(
        self,
        network: Network,
        links: Links,
        *,
        alive: Alive,
        needed: Callable[[], Iterable[PeerId]] = tuple,
        is_busy: Callable[[], bool] = lambda: False,
        blame: Callable[[PeerId, ShardError], None] = lambda peer, error: None,
    ) -> None:
        self._network = network
        self._links = links
        self._alive = alive
        self._needed = needed
        self._is_busy = is_busy
        self._blame = blame
        self._rounds = trio.CapacityLimiter(ROUNDS_AT_ONCE)
        self._bursting = trio.Lock()
        self._probed: dict[PeerId, trio.CancelScope] = {}
        self._chosen: tuple[PeerId, ...] = ()
        self._reasons: object = None

    async def run(self) -> None:
        """Probe until cancelled: one task and one stream for each target of `links`, at most links.MAX_PROBED."""
        async with trio.open_nursery() as nursery:
            while True:
                targets = self._targets()
                for peer in self._probed.keys() - set(targets):
                    self._probed.pop(peer).cancel()
                for peer in targets:
                    if peer not in self._probed:
                        self._probed[peer] = scope = trio.CancelScope()
                        nursery.start_soon(self._keep_probing, peer, scope)
                await trio.sleep_until(next_beat(trio.current_time(), LOOK_S))

    def _targets(self) -> tuple[PeerId, ...]:
        """Whom to probe; chosen anew when others are alive or needed, and every so often since distances change."""
        reasons = frozenset(self._alive()), tuple(self._needed()), trio.current_time() // CHOOSE_S
        if reasons != self._reasons:
            self._reasons = reasons
            self._chosen = self._links.targets(reasons[0], trio.current_time(), needed=reasons[1])
        return self._chosen

    async def _keep_probing(self, peer: PeerId, scope: trio.CancelScope) -> None:
        with scope:
            while True:
                await trio.sleep_until(self._links.next_round_at(peer))
                try:
                    await self._probe(peer)
                except (PeerUnavailableError, trio.TooSlowError) as error:
                    log.debug("probe_failed", peer=peer, reason=str(error) or "no answer in time")
                except (ConfigError, IntegrityError, OverloadedError, RemoteProtocolError) as error:
                    log.info("probe_refused", peer=peer, reason=error.message)
                    self._blame(peer, error)
                self._links.fail(peer, trio.current_time())

    async def _probe(self, peer: PeerId) -> None:
        """Open a stream and measure over it as often as is due, until it fails."""
        async with self._rounds:
            with trio.fail_after(OPEN_S):
                stream = await self._network.open_stream(peer, SWARM, tuple(self._alive().get(peer, ())))
        async with open_channel(stream, SWARM) as channel:
            while True:
                async with self._rounds:
                    await self._measure(channel)
                await trio.sleep_until(self._links.next_round_at(peer))

    async def _measure(self, channel: MessageChannel) -> None:
        rtts_s = []
        room_bytes = 0
        for number in range(PINGS):
            if number:
                await trio.sleep(PING_GAP_S)
            started = trio.current_time()
            with trio.fail_after(PONG_S):
                room_bytes = await _ping(channel)
            rtts_s.append(trio.current_time() - started)
        now = trio.current_time()
        self._links.observe_round(channel.peer, rtts_s, now)
        if not self._links.is_bandwidth_due(channel.peer, now):
            return
        if room_bytes < PROBE_BYTES or self._is_busy():
            self._links.postpone_bandwidth(channel.peer, now)
            return
        # One at a time, or two bursts would share our way out and each look half as wide.
        async with self._bursting:
            if not self._is_busy():
                try:
                    bytes_s = await _measure_bandwidth(channel, min(rtts_s))
                except trio.TooSlowError:
                    self._links.observe_bandwidth(channel.peer, BURST_BYTES / BURST_S, trio.current_time())
                    raise
                self._links.observe_bandwidth(channel.peer, bytes_s, trio.current_time())


class ProbeAnswers:
    """Answers the Pings of others. `is_busy` says whether requests are being served."""

    def __init__(self, is_busy: Callable[[], bool] = lambda: False) -> None:
        self._is_busy = is_busy
        self._allowance: ProbeAllowance | None = None
        self._streams: dict[PeerId, int] = {}

    async def serve(self, channel: MessageChannel, first: Ping) -> None:
        """Answer `first` and every Ping after it, until the prober goes away or has been silent for SILENCE_S.

        Raises: RemoteProtocolError for a prober that asks for more than it may, or for anything else.
        """
        prober = channel.peer
        if self._streams.get(prober, 0) >= MAX_STREAMS_PER_PROBER:
            raise RemoteProtocolError(f"{prober} probes over more than {MAX_STREAMS_PER_PROBER} streams", prober)
        self._streams[prober] = self._streams.get(prober, 0) + 1
        try:
            await self._answer(channel, first)
        finally:
            self._streams[prober] -= 1
            if not self._streams[prober]:
                del self._streams[prober]

    async def _answer(self, channel: MessageChannel, ping: Ping) -> None:
        if self._allowance is None:
            self._allowance = ProbeAllowance(trio.current_time())
        while True:
            now = trio.current_time()
            room_bytes = self._allowance.answer(channel.peer, len(ping.padding), now, is_busy=self._is_busy())
            try:
                with trio.fail_after(SILENCE_S):
                    await channel.send(Pong(ping.nonce, room_bytes))
                    message = await channel.receive()
            except (PeerUnavailableError, trio.TooSlowError):
                # A prober leaves without a word: nothing depends on it.
                return
            if not isinstance(message, Ping):
                raise RemoteProtocolError(f"{channel.peer} sent {type(message).__name__} among its pings", channel.peer)
            ping = message


async def _ping(channel: MessageChannel) -> int:
    """One round trip; the room for padding that the peer gives."""
    ping = Ping(secrets.token_bytes(NONCE_BYTES))
    await channel.send(ping)
    return await _pong(channel, ping)


async def _pong(channel: MessageChannel, ping: Ping) -> int:
    message = await channel.receive()
    if not isinstance(message, Pong) or message.nonce != ping.nonce:
        raise RemoteProtocolError(f"{channel.peer} answered a ping with something else", channel.peer)
    return message.room_bytes


async def _measure_bandwidth(channel: MessageChannel, rtt_s: float) -> float:
    """What our way to the peer carries, in bytes per second."""
    elapsed_s = await _burst(channel)
    if elapsed_s - rtt_s < SLOW_BURST_S:
        elapsed_s = await _burst(channel)
    return bandwidth_bytes_s(BURST_BYTES, elapsed_s, rtt_s)


async def _burst(channel: MessageChannel) -> float:
    """Send BURST_BYTES of padding; the seconds until the last of it was answered."""
    pings = [Ping(secrets.token_bytes(NONCE_BYTES), bytes(MAX_PADDING_BYTES)) for _ in range(BURST_PINGS)]
    started = trio.current_time()
    with trio.fail_after(BURST_S):
        for ping in pings:
            await channel.send(ping)
        # The answers are a few bytes each and wait in the stream's window meanwhile.
        for ping in pings:
            await _pong(channel, ping)
    return trio.current_time() - started
