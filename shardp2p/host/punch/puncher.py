"""Punches holes to peers that are reached over relays, and answers those who do: DCUtR, docs/protocols/punch.md."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog
import trio

from shardp2p.errors import OverloadedError, PeerUnavailableError, RemoteProtocolError
from shardp2p.host.addresses import Endpoint, TcpAddress, parse_address
from shardp2p.host.host import Host
from shardp2p.host.muxer import Muxer
from shardp2p.host.path import Path
from shardp2p.host.punch.attempt import Attempt
from shardp2p.host.punch.dialable import dialable, offerable
from shardp2p.host.punch.mapping import Mapping
from shardp2p.host.punch.messages import DCUTR, MAX_ADDRESSES
from shardp2p.host.punch.pace import Pace
from shardp2p.host.punch.run import AttemptRun
from shardp2p.host.stream import HostStream
from shardp2p.vocabulary import PeerId
from shardp2p.wire.stream import Stream

MAX_ATTEMPTS: Final = 16
"""At the same time, with different peers: each may have some ten sockets under way."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class PunchResult:
    """`path` is the straight path that there is now; without one, `reason` says in words why not."""

    path: Path | None
    reason: str = ""


@dataclass(slots=True)
class _Running:
    is_starter: bool
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    done: trio.Event = field(default_factory=trio.Event)
    result: PunchResult | None = None
    """None when a newer attempt took its place."""


class Puncher:
    """Serves DCUtR on `host` from now on. `mapping` says where others see us; whoever dials relays feeds it."""

    def __init__(self, host: Host, mapping: Mapping, chance: random.Random | None = None) -> None:
        self._host = host
        self._mapping = mapping
        self._chance = chance or random.Random()
        self._running: dict[PeerId, _Running] = {}
        self._pace = Pace()
        host.serve(DCUTR, self._serve)

    def starts(self, peer: PeerId) -> bool:
        """Whether it is for us to start: the peer dialled us over a relay, and there is no straight path."""
        return self._straight(peer) is None and any(not muxer.is_initiator for muxer in self._relayed(peer))

    async def punch(self, peer: PeerId) -> PunchResult:
        """A straight path to `peer`, over whose relayed connection both agree when to dial.

        Callers at the same time share one attempt, also one that the peer started. Takes some round trips when it
        works and about 20 s when it does not. Cancelling it ends the attempt.
        """
        result: PunchResult | None = None
        while result is None:
            straight = self._straight(peer)
            if straight is not None:
                return PunchResult(straight)
            running = self._running.get(peer)
            if running is not None:
                await running.done.wait()
                result = running.result
            elif (obstacle := self._obstacle(peer)) is not None:
                return PunchResult(None, obstacle)
            else:
                result = await self._run(peer)
        return result

    def _obstacle(self, peer: PeerId) -> str | None:
        """Why we cannot start, in words."""
        if not self._relayed(peer):
            return "there is no relayed connection to the peer over which to agree on a moment"
        if not self.starts(peer):
            return "the peer starts, since we dialled it over the relay"
        if len(self._running) >= MAX_ATTEMPTS:
            return f"{MAX_ATTEMPTS} other attempts are under way"
        return None

    async def _serve(self, stream: Stream) -> None:
        assert isinstance(stream, HostStream)
        peer = stream.peer
        if stream.connection.path.is_direct:
            raise RemoteProtocolError("it wants to punch a hole although it has reached us", peer)
        if self._straight(peer) is not None:
            return
        running = self._running.get(peer)
        if running is not None and running.is_starter and self._host.peer_id < peer:
            raise OverloadedError("both sides started to punch a hole, and ours goes on", peer)
        if running is None and len(self._running) >= MAX_ATTEMPTS:
            raise OverloadedError(f"{MAX_ATTEMPTS} attempts to punch holes are under way", peer)
        if not self._pace.take(peer, trio.current_time()):
            raise OverloadedError("it wants to punch a hole too often", peer)
        # A newer stream is the next round; and of two that start at once the lesser id goes on.
        await self._run(peer, stream)

    async def _run(self, peer: PeerId, talk: HostStream | None = None) -> PunchResult | None:
        """What came of an attempt, None when a newer one took its place. `talk` is one that the peer started."""
        attempt = Attempt(is_starter=talk is None, own=self._own, choose=self._choose, chance=self._chance.random)
        run = AttemptRun(self._host, peer, attempt, lambda: self._open_talk(peer), talk)
        before = self._running.get(peer)
        running = self._running[peer] = _Running(attempt.is_starter)
        began_at = trio.current_time()
        try:
            with running.scope:
                if before is not None:
                    before.scope.cancel()
                    await before.done.wait()
                outcome = await run.run()
                running.result = PunchResult(None, outcome) if isinstance(outcome, str) else PunchResult(outcome)
                took_s = trio.current_time() - began_at
                log.info(
                    "hole_punched" if running.result.path else "hole_not_punched",
                    peer=peer,
                    took_s=round(took_s, 2),
                    rounds=attempt.round or 1,
                    reason=running.result.reason,
                )
        finally:
            if self._running.get(peer) is running:
                del self._running[peer]
            running.done.set()
        return running.result

    async def _open_talk(self, peer: PeerId) -> HostStream:
        relayed = sorted(self._relayed(peer), key=lambda muxer: muxer.is_initiator)
        if not relayed:
            raise PeerUnavailableError("the relayed connection to the peer is gone", peer)
        return await self._host.open_stream_over(relayed[0], DCUTR)

    def _relayed(self, peer: PeerId) -> tuple[Muxer, ...]:
        return tuple(muxer for muxer in self._host.connections(peer) if not muxer.path.is_direct)

    def _straight(self, peer: PeerId) -> Path | None:
        return next((path for path in self._host.paths(peer) if path.is_direct), None)

    def _own(self) -> tuple[Endpoint, ...]:
        """What we tell: where we are seen, then what we announce."""
        seen = self._mapping.advertised(trio.current_time())
        announced = offerable(_plain(self._host.addresses()), seen)
        return tuple(dict.fromkeys((*seen, *announced)))[:MAX_ADDRESSES]

    def _choose(self, offered: Sequence[Endpoint]) -> tuple[Endpoint, ...]:
        seen = self._mapping.current(trio.current_time())
        return dialable(offered, seen, _plain(self._host.listen_addresses()))


def _plain(addresses: tuple[str, ...]) -> tuple[Endpoint, ...]:
    """The IP addresses and ports among multiaddrs."""
    parsed = [parse_address(text) for text in addresses]
    return tuple(
        (address.host, address.port)
        for address in parsed
        if isinstance(address, TcpAddress) and address.protocol in ("ip4", "ip6")
    )
