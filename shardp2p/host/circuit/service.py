"""Circuits for a host: it dials over relays, keeps places at some when it must, and relays for others when it may."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import trio

from shardp2p.config import RelayLimits
from shardp2p.errors import PeerUnavailableError
from shardp2p.host.circuit.candidates import Candidate
from shardp2p.host.circuit.client import CircuitClient
from shardp2p.host.circuit.exchange import RelayLinks
from shardp2p.host.circuit.keeper import Keeper
from shardp2p.host.circuit.keeping import Keeping
from shardp2p.host.circuit.relay import Relay, Relaying
from shardp2p.host.circuit.values import HOP, STOP
from shardp2p.host.host import Host
from shardp2p.vocabulary import PeerId
from shardp2p.wire.stream import Stream


class HostCircuits:
    """Made by `open_circuits`. Nothing in it waits, but for `wait_changed`."""

    def __init__(self, host: Host) -> None:
        links = RelayLinks(host)
        self._host = host
        self._keeping = Keeping(host.peer_id)
        self._keeper = Keeper(links, self._keeping)
        self._client = CircuitClient(host, links, self._keeping, self._keeper.stir)
        self._relay: Relay | None = None

    @property
    def relaying(self) -> Relaying | None:
        """What we lend to others now; None when we do not relay."""
        return self._relay.state if self._relay else None

    def relay(self, limits: RelayLimits | None) -> None:
        """Relay for others within `limits` from now on, or no longer; circuits that run under other limits end."""
        if self._relay is not None:
            self._relay.end()
        self._relay = Relay(self._host, limits) if limits else None
        if limits:
            self._host.serve(HOP, self._serve_hop)

    def set_candidates(self, candidates: Iterable[Candidate]) -> None:
        """These peers can be dialled from anywhere and relay."""
        self._keeping.set_candidates(candidates)
        self._keeper.stir()

    def want(self, is_wanted: bool) -> None:
        """Whether we need others to reach us over relays: then places are kept at two of the candidates."""
        self._keeping.want(is_wanted)
        self._keeper.stir()

    def distrust(self, relay: PeerId) -> None:
        """Nobody gets through to us over `relay` though we have a place there."""
        self._keeping.distrust(relay, trio.current_time())
        self._keeper.stir()

    def addresses(self) -> tuple[str, ...]:
        """The multiaddrs, with our peer id, at which others can dial us over the relays at which we have places."""
        return self._keeping.addresses

    def held(self) -> tuple[Candidate, ...]:
        """The relays at which we have places, the longest held first."""
        return self._keeping.held

    def troubles(self) -> dict[PeerId, str]:
        """Why relays that we tried are left alone for now."""
        return self._keeping.troubles

    async def wait_changed(self) -> None:
        """Wait until `held`, and so `addresses`, changes."""
        await self._keeper.changed.park()

    async def _serve_hop(self, stream: Stream) -> None:
        if self._relay is None:
            raise PeerUnavailableError("we do not relay any more", stream.peer)
        await self._relay.serve(stream)


@asynccontextmanager
async def open_circuits(host: Host, *, limits: RelayLimits | None = None) -> AsyncIterator[HostCircuits]:
    """Let `host` dial over relays and be dialled over them; with `limits` it relays for others.

    Leaving gives up every place and ends every circuit that we relay; connections that run over circuits live on until
    the host ends.
    """
    circuits = HostCircuits(host)
    circuits.relay(limits)
    host.serve(STOP, circuits._client.serve_stop)
    host.circuits = circuits._client
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(circuits._keeper.run)
            yield circuits
            nursery.cancel_scope.cancel()
    finally:
        host.circuits = None
        circuits.relay(None)
