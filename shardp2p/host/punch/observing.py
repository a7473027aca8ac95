"""Asks peers that we dialled from which address they see us; what punching goes by are the ports that we listen on.

The messages are those of /shardp2p/swarm/1: docs/protocols/swarm.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog
import trio

from shardp2p.errors import PeerUnavailableError, RemoteProtocolError
from shardp2p.host.addresses import Endpoint
from shardp2p.host.host import Host
from shardp2p.host.muxer import Muxer
from shardp2p.host.punch.mapping import Mapping
from shardp2p.vocabulary import PeerId
from shardp2p.wire.channel import open_channel
from shardp2p.wire.protocols import SWARM
from shardp2p.wire.seen import AskSeen, Seen

ASK_S: Final = 5.0
"""For an answer, which takes a few round trips."""
AGAIN_S: Final = 30.0
"""How often to ask the same peer: a router that gave us another port is noticed well before holes are needed."""

log = structlog.get_logger()


def can_observe(connection: Muxer) -> bool:
    """Whether the peer at the other end sees where we come from: we dialled it, and no relay is between."""
    return connection.path.is_direct and connection.is_initiator and connection.local_port is not None


async def ask_seen(host: Host, connection: Muxer) -> Endpoint:
    """From where the peer sees this connection come.

    Raises: PeerUnavailableError; RemoteProtocolError when it says something else.
    """
    stream = await host.open_stream_over(connection, SWARM)
    async with open_channel(stream, SWARM) as channel:
        await channel.send(AskSeen())
        answer = await channel.receive()
    if not isinstance(answer, Seen) or not answer.host:
        raise RemoteProtocolError("the peer does not say from where it sees us", stream.peer)
    return answer.host, answer.port


OnSeen = Callable[[Endpoint, int, Endpoint], None]
"""Hears who saw us, which port of ours it was, and where it was seen."""


class Observing:
    """Keeps `mapping` current by asking whom `host` has dialled."""

    def __init__(self, host: Host, mapping: Mapping, on_seen: OnSeen = lambda observer, local_port, seen: None) -> None:
        self._host = host
        self._mapping = mapping
        self._on_seen = on_seen
        self._asked: dict[Muxer, float] = {}
        self._observers: dict[Muxer, Endpoint] = {}

    async def refresh(self) -> None:
        """Ask those that are due, each within ASK_S, and forget what those saw whose connections ended."""
        now, ports = trio.current_time(), {port for _, port in self._host.listen_endpoints()}
        for connection in [one for one in self._asked if one.is_closed]:
            del self._asked[connection]
            if connection in self._observers:
                self._mapping.forget(self._observers.pop(connection))
        async with trio.open_nursery() as nursery:
            for peer in self._host.connected_peers():
                for connection in self._host.connections(peer):
                    # Where other ports than those we listen on are seen does not change while the connection lives.
                    is_known = connection in self._asked and connection.local_port not in ports
                    is_recent = now - self._asked.get(connection, -AGAIN_S) < AGAIN_S
                    if can_observe(connection) and not (is_known or is_recent):
                        self._asked[connection] = now
                        nursery.start_soon(self._ask, connection, peer)

    async def _ask(self, connection: Muxer, peer: PeerId) -> None:
        observer = connection.get_remote_address()
        if observer is None or connection.local_port is None:
            return
        try:
            with trio.fail_after(ASK_S):
                seen = await ask_seen(self._host, connection)
        except (PeerUnavailableError, RemoteProtocolError, trio.TooSlowError) as error:
            log.debug("not_observed", peer=peer, error=str(error))
            return
        self._on_seen(observer, connection.local_port, seen)
        if connection.local_port in {port for _, port in self._host.listen_endpoints()}:
            self._observers[connection] = observer
            self._mapping.observe(connection.local_port, observer, seen, trio.current_time())
