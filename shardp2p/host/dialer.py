"""Dial a peer at given addresses, one after the other, and say of each why it failed.

libp2p's own dialling is not used: it tries one address per peer, forgets all of them when one leads elsewhere, and
refuses for a minute to try again.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from typing import Final

import trio
from libp2p.abc import INetConn
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.protocol_muxer.exceptions import MultiselectClientError
from libp2p.security.noise.exceptions import PeerIDMismatchesPubkey

from shardp2p.errors import ConfigError, PeerUnavailableError
from shardp2p.host.addresses import TcpAddress, parse_address
from shardp2p.host.failures import HANDSHAKE_FAILURES
from shardp2p.host.security import MembershipFailure
from shardp2p.host.tcp import BufferedTcpStream
from shardp2p.vocabulary import PeerId

CONNECT_S: Final = 5.0
HANDSHAKE_S: Final = 10.0
"""Bounds per address, so that one that swallows packets does not use up the caller's time for the others."""


class _AddressError(Exception):
    """The plain reason why one address failed."""


async def dial(swarm: Swarm, peer: PeerId, addresses: Sequence[str]) -> INetConn:
    """A new connection to `peer` at the first of `addresses` where it answers.

    Raises: PeerUnavailableError with each address and why it failed; ConfigError for a malformed address.
    """
    parsed = [_address_of(peer, text) for text in addresses]
    if not parsed:
        raise PeerUnavailableError(f"not connected to peer {peer}, and no address of it is known")
    reasons: list[str] = []
    for address in parsed:
        try:
            return await _dial_address(swarm, peer, address)
        except _AddressError as error:
            reasons.append(f"{address}: {error}")
    raise PeerUnavailableError(f"cannot reach peer {peer}: {'; '.join(reasons)}")


def _address_of(peer: PeerId, text: str) -> TcpAddress:
    address = parse_address(text)
    if address.peer not in (None, peer):
        raise ConfigError(f"the address {text} belongs to another peer than {peer}")
    return address


async def _dial_address(swarm: Swarm, peer: PeerId, address: TcpAddress) -> INetConn:
    stream = await _connect(address)
    try:
        with trio.fail_after(HANDSHAKE_S):
            raw = RawConnection(BufferedTcpStream(stream), initiator=True)
            return await swarm.upgrade_outbound_raw_conn(raw, ID.from_base58(peer))
    except HANDSHAKE_FAILURES as error:
        await trio.aclose_forcefully(stream)
        raise _AddressError(_handshake_reason(error)) from error
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise


async def _connect(address: TcpAddress) -> trio.SocketStream:
    try:
        with trio.fail_after(CONNECT_S):
            return await trio.open_tcp_stream(address.host, address.port)
    except trio.TooSlowError as error:
        raise _AddressError(f"no answer within {CONNECT_S:.0f} s") from error
    except OSError as error:
        raise _AddressError(_connect_reason(error)) from error


_CONNECT_REASONS: Final = {
    errno.ECONNREFUSED: "refused, nothing listens there",
    errno.EHOSTUNREACH: "no route",
    errno.ENETUNREACH: "no route",
    errno.EADDRNOTAVAIL: "no route",
    errno.ETIMEDOUT: "no answer",
    errno.ECONNRESET: "the other side hung up",
}


def _connect_reason(error: OSError) -> str:
    for cause in _causes(error):
        if isinstance(cause, trio.socket.gaierror):
            return "the name is unknown"
        if isinstance(cause, OSError) and cause.errno is not None:
            return _CONNECT_REASONS.get(cause.errno, cause.strerror or str(cause))
    return str(error)


def _handshake_reason(error: BaseException) -> str:
    causes = list(_causes(error))
    refusal = next((cause for cause in causes if isinstance(cause, MembershipFailure)), None)
    if refusal is not None:
        return str(refusal)
    if any(isinstance(cause, MultiselectClientError) and "not supported" in str(cause) for cause in causes):
        return "it speaks another security protocol; a peer of a private swarm and any other peer do not connect"
    if any(isinstance(cause, PeerIDMismatchesPubkey) for cause in causes):
        return "another peer answers there"
    if any(isinstance(cause, trio.TooSlowError) for cause in causes):
        return f"no libp2p handshake within {HANDSHAKE_S:.0f} s"
    return "what answers there is no libp2p peer, or it is too busy and hung up"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """`error` and everything that led to it."""
    yield error
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            yield from _causes(member)
    if error.__cause__ is not None:
        yield from _causes(error.__cause__)
