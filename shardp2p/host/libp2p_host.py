"""The parts of libp2p that we use, made the way we need them: its swarm, with our security and our multiplexer."""

from __future__ import annotations

from typing import Final

from libp2p import new_host
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.custom_types import TProtocol
from libp2p.host.basic_host import BasicHost
from libp2p.network.config import ConnectionConfig
from libp2p.network.swarm import Swarm
from libp2p.rcmgr import ResourceManager
from libp2p.rcmgr.connection_limits import ConnectionLimits
from libp2p.rcmgr.manager import ResourceLimits
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX_PROTOCOL

from shardp2p.host.muxer import Muxer
from shardp2p.host.security import security_transports
from shardp2p.identity.keys import Identity
from shardp2p.identity.membership import Membership

MAX_CONNECTIONS: Final = 256
"""Each costs two tasks and some buffers; a ring needs a handful."""
MAX_CONNECTIONS_PER_PEER: Final = 8
"""Two peers that dial each other at once keep both connections: closing one of them could meet closing the other."""
MAX_INBOUND_STREAMS: Final = 65536


def make_libp2p_host(identity: Identity, membership: Membership | None) -> BasicHost:
    """A host without transports of its own; with a `membership` it speaks to members only."""
    key_pair = create_new_key_pair(identity.seed)
    host = new_host(
        key_pair=key_pair,
        sec_opt=security_transports(key_pair, membership),
        muxer_opt={TProtocol(YAMUX_PROTOCOL): Muxer},
        resource_manager=_make_resource_manager(),
        connection_config=ConnectionConfig(
            min_connections=0,
            low_watermark=0,
            high_watermark=MAX_CONNECTIONS,
            max_connections=MAX_CONNECTIONS,
            max_connections_per_peer=MAX_CONNECTIONS_PER_PEER,
        ),
    )
    assert isinstance(host, BasicHost)
    # They identify every new peer in trio system tasks, where an exception would end the program.
    swarm_of(host).notifees.clear()
    return host


def _make_resource_manager() -> ResourceManager:
    """Plain counts: libp2p's rate limits and breakers would turn away a peer that reconnects after a fault."""
    return ResourceManager(
        limits=ResourceLimits(max_connections=2 * MAX_CONNECTIONS, max_streams=MAX_INBOUND_STREAMS),
        connection_limits=ConnectionLimits(),
        enable_metrics=False,
        enable_memory_limits=False,
        enable_circuit_breaker=False,
        enable_graceful_degradation=False,
        enable_rate_limiting=False,
    )


def swarm_of(host: BasicHost) -> Swarm:
    """The swarm inside `host`."""
    network = host.get_network()
    assert isinstance(network, Swarm)
    return network
