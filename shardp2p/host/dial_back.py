"""Dial a peer at an address from a fresh port, only to learn whether it answers there."""

from __future__ import annotations

import errno
from typing import Final

import trio
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID

from shardp2p.host.failures import HANDSHAKE_FAILURES
from shardp2p.host.tcp import BufferedTcpStream
from shardp2p.vocabulary import PeerId
from shardp2p.wire.dialling_back import DialOutcome

CONNECT_S: Final = 4.0
"""Longer than three tries to connect of a kernel, the last of which a lossy path may need."""
PROOF_S: Final = 4.0
"""For the handshake at a port that took the connection; a router that keeps it for itself says nothing."""


async def dial_back(swarm: Swarm, peer: PeerId, host: str, port: int) -> DialOutcome:
    """How dialling `peer` at an IP address goes. The connection is closed as soon as the peer has proved its id.

    No connection comes of it: the multiplexer is never negotiated, so no stream can meet its end.
    """
    try:
        with trio.fail_after(CONNECT_S):
            stream = await trio.open_tcp_stream(host, port)
    except trio.TooSlowError:
        return "timeout"
    except OSError as error:
        return "refused" if _is_refusal(error) else "timeout"
    try:
        with trio.fail_after(PROOF_S):
            raw = RawConnection(BufferedTcpStream(stream), initiator=True)
            await swarm.upgrader.upgrade_security(raw, True, ID.from_base58(peer))
    except HANDSHAKE_FAILURES:
        return "other"
    finally:
        await trio.aclose_forcefully(stream)
    return "open"


def _is_refusal(error: BaseException) -> bool:
    """Whether something answered that nothing listens there; trio wraps what a single try raised."""
    causes = [error, error.__cause__, *getattr(error.__cause__, "exceptions", ())]
    return any(isinstance(cause, OSError) and cause.errno == errno.ECONNREFUSED for cause in causes)
