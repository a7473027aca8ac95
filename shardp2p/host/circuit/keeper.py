"""Keeps places at relays: asks, renews, and hears at once when one is lost.

The stream on which a place was asked for stays open as long as the place is kept. Its end is the news that the relay
has given it up, and while it is open neither side takes the connection for unused.
"""

from __future__ import annotations

import time
from typing import Final

import structlog
import trio

from shardp2p.errors import ConfigError, PeerUnavailableError, RemoteProtocolError
from shardp2p.host.circuit.candidates import Candidate
from shardp2p.host.circuit.client import refusal
from shardp2p.host.circuit.exchange import RelayLinks, receive_answer
from shardp2p.host.circuit.keeping import Ask, Keeping, renewal_s
from shardp2p.host.circuit.messages import decode_hop, encode_hop
from shardp2p.host.circuit.values import HOP, HopAnswer, Reserve, Status
from shardp2p.host.muxer import Muxer
from shardp2p.host.stream import HostStream
from shardp2p.vocabulary import PeerId

ASK_S: Final = 8.0
"""For a place, dialling included; the next relay is asked long before."""
RENEW_S: Final = 4.0

log = structlog.get_logger()


class Keeper:
    """Runs a `Keeping`. `changed` is woken whenever the places that we have change."""

    def __init__(self, links: RelayLinks, keeping: Keeping) -> None:
        self.changed = trio.lowlevel.ParkingLot()
        self._links = links
        self._keeping = keeping
        self._asks: dict[PeerId, trio.CancelScope] = {}  # at most as many as the keeping has relays
        self._stirred = trio.Event()
        self._held: tuple[Candidate, ...] = ()

    def stir(self) -> None:
        """The keeping was told something: have it decide again."""
        self._stirred.set()

    async def run(self) -> None:
        """Keep places for as long as it runs; leaving gives them up."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_arrivals)
            while True:
                self._decide(nursery)
                if self._keeping.held != self._held:
                    self._held = self._keeping.held
                    log.info("relays_held", relays=[candidate.peer for candidate in self._held])
                    self.changed.unpark_all()
                with trio.move_on_at(self._keeping.next_at(trio.current_time())):
                    await self._stirred.wait()
                self._stirred = trio.Event()

    async def _watch_arrivals(self) -> None:
        """Have a relay that comes back after a long time asked at once, and not when its pause ends."""
        seen: dict[PeerId, Muxer | None] = {}  # of relays that rest, so as bounded as these
        while True:
            await self._links.wait_arrival()
            newest = {peer: self._links.newest(peer) for peer in self._keeping.troubles}
            for peer, muxer in newest.items():
                if muxer is not None and muxer is not seen.get(peer):
                    self._keeping.came_back(peer, trio.current_time())
                    self.stir()
            seen = newest

    def _decide(self, nursery: trio.Nursery) -> None:
        for command in self._keeping.step(trio.current_time()):
            if isinstance(command, Ask):
                scope = self._asks[command.candidate.peer] = trio.CancelScope()
                nursery.start_soon(self._keep_place, command.candidate, scope)
            else:
                log.info("relay_released", relay=command.peer, reason=command.reason)
                self._asks.pop(command.peer).cancel()

    async def _keep_place(self, candidate: Candidate, scope: trio.CancelScope) -> None:
        """Ask for a place and renew it, until it is lost or `scope` is cancelled."""
        with scope:
            reason = await self._until_lost(candidate)
            if self._asks.get(candidate.peer) is scope:
                del self._asks[candidate.peer]
                if candidate in self._held:
                    log.info("relay_lost", relay=candidate.peer)
                log.debug("relay_failed", relay=candidate.peer, reason=reason)
                self._keeping.failed(candidate.peer, reason, trio.current_time())
                self.stir()

    async def _until_lost(self, candidate: Candidate) -> str:
        """Why the place did not come about or was lost."""
        stream: HostStream | None = None
        try:
            with trio.fail_after(ASK_S):
                stream = await self._links.open_stream(candidate.peer, HOP, candidate.addresses, from_listen_port=True)
                lifetime_s = await _reserve(stream)
            while True:
                self._keeping.reserved(candidate.peer, trio.current_time())
                self.stir()
                is_silent = False
                with trio.move_on_after(renewal_s(lifetime_s)):
                    if reason := await _end_of(stream):
                        return reason
                    is_silent = True
                with trio.fail_after(RENEW_S):
                    if is_silent:
                        stream = await self._over_another_line(candidate, stream)
                    lifetime_s = await _reserve(stream)
        except trio.TooSlowError:
            return "the relay does not answer"
        except (PeerUnavailableError, RemoteProtocolError, ConfigError) as error:
            return error.message
        finally:
            if stream is not None:
                await stream.reset()

    async def _over_another_line(self, candidate: Candidate, silent: HostStream) -> HostStream:
        """A stream to the same relay over a new connection, for when a router has forgotten the present one."""
        stream = await self._links.open_stream(candidate.peer, HOP, candidate.addresses, from_listen_port=True)
        await silent.reset()
        log.info("relay_line_replaced", relay=candidate.peer)
        return stream


async def _reserve(stream: HostStream) -> float:
    """Ask for a place; how long the relay says that it keeps it, in seconds.

    Raises: PeerUnavailableError when it refuses; RemoteProtocolError.
    """
    await stream.send_all(encode_hop(Reserve()))
    answer = decode_hop(await receive_answer(stream))
    if not isinstance(answer, HopAnswer):
        raise RemoteProtocolError("the relay asked instead of answering", stream.peer)
    if answer.status is not Status.OK:
        raise PeerUnavailableError(refusal(answer.status), stream.peer)
    return answer.expires_at_s - time.time()


async def _end_of(stream: HostStream) -> str | None:
    """Why a stream ended on which nothing should come; None when its connection fell silent before."""
    reason: str | None = None

    async def wait_end() -> None:
        nonlocal reason
        try:
            data = await stream.receive_some(1)
            reason = "the relay talks when it was not asked" if data else "the relay gave up our reservation"
        except PeerUnavailableError as error:
            reason = error.message
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_end)
        link = stream.connection.link
        await link.wait_trouble()
        if link.failure is None:
            nursery.cancel_scope.cancel()
    return reason
