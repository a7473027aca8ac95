"""Dial a peer at given addresses, straight ones first, and say of each why it failed.

libp2p's own dialling is not used: it tries one address per peer, forgets all of them when one leads elsewhere, and
refuses for a minute to try again.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Final, Literal, Protocol

import trio
from libp2p.abc import INetConn
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.protocol_muxer.exceptions import MultiselectClientError
from libp2p.security.noise.exceptions import PeerIDMismatchesPubkey

from shardp2p.errors import ConfigError, PeerUnavailableError
from shardp2p.host.addresses import Address, CircuitAddress, Endpoint, TcpAddress, parse_address
from shardp2p.host.announcing import Standing, dialable_from, is_private
from shardp2p.host.circuit.circuit_bytes import CircuitBytes
from shardp2p.host.failures import HANDSHAKE_FAILURES
from shardp2p.host.muxer import Muxer
from shardp2p.host.path import DIRECT, Path, relayed, upgrading_path
from shardp2p.host.security import MembershipFailure, TurnedAway
from shardp2p.host.tcp import TAKEN, BufferedTcpStream, dial_from, source_for
from shardp2p.identity.token import Refusal, TurnedAwayError
from shardp2p.vocabulary import PeerId

CONNECT_S: Final = 5.0
CONNECT_NEAR_S: Final = 1.5
"""To a private address, which answers in milliseconds if it is one of ours."""
HANDSHAKE_S: Final = 10.0
"""Bounds per address, so that one that swallows packets does not use up the caller's time for the others."""
SHOWN: Final = 4
"""Addresses that an error quotes."""
NEXT_S: Final = 1.0
"""How long an address is waited for before the next one is tried beside it: one that swallows packets is common."""
HEAD_START_S: Final = 0.25
"""How long straight addresses have before relays are tried beside them: as in RFC 8305."""

REFUSED: Final = "refused, nothing listens there"

Ways = Literal["any", "straight", "relayed"]


class AddressError(Exception):
    """The plain reason why one address failed; `refusal` where the swarm does not admit us."""

    refusal: Refusal | None = None


class NobodyListensError(PeerUnavailableError):
    """Each address that was tried refuses connections: no peer runs there any more."""


class Circuits(Protocol):
    """What connects us to peers over relays."""

    async def connect(self, address: CircuitAddress, peer: PeerId) -> RawConnection:
        """The bytes of a circuit to `peer`, not yet secured. Raises: PeerUnavailableError that says why not."""
        ...


async def dial(
    swarm: Swarm,
    peer: PeerId,
    addresses: Sequence[str],
    circuits: Circuits | None = None,
    sources: Sequence[Endpoint] = (),
    standing: Standing | None = None,
    ways: Ways = "any",
) -> INetConn:
    """A new connection to `peer` at the first of `addresses` where it answers; a relay is asked a moment later.

    It leaves from one of `sources`, the endpoints that we listen on, where that is possible. Who knows where it stands
    leaves out what cannot work from there, and tries the rest in the order of announcing.py, of both `ways` or one.
    Raises: PeerUnavailableError with each address and why it failed; ConfigError for a malformed address.
    """
    parsed = _to_try(peer, addresses, standing)
    if ways != "any" and not (parsed := [at for at in parsed if _way_of(at) == ways]):
        raise PeerUnavailableError(f"cannot reach peer {peer}: none of its addresses is {ways}")
    straight = [(at, partial(_dial_address, swarm, peer, at, sources)) for at in parsed if isinstance(at, TcpAddress)]
    over_relays = [
        (at, partial(_dial_circuit, swarm, peer, at, circuits)) for at in parsed if isinstance(at, CircuitAddress)
    ]
    reasons: dict[Address, AddressError] = {}
    found: list[INetConn] = []
    is_out_of_straight = trio.Event()

    async def try_straight(scope: trio.CancelScope) -> None:
        await _try_each(straight, found, reasons)
        is_out_of_straight.set()
        if found:
            scope.cancel()

    async def try_relays(scope: trio.CancelScope) -> None:
        with trio.move_on_after(HEAD_START_S):
            await is_out_of_straight.wait()
        await _try_each(over_relays, found, reasons)
        if found:
            scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(try_straight, nursery.cancel_scope)
        nursery.start_soon(try_relays, nursery.cancel_scope)
    if found:
        return found[0]
    tried = "; ".join(f"{address}: {reasons[address]}" for address in parsed)
    message = f"cannot reach peer {peer}: {tried}"
    if refusal := next((reason.refusal for reason in reasons.values() if reason.refusal), None):
        raise TurnedAwayError(message, refusal)
    is_refused = all(str(reasons[address]) == REFUSED for address in parsed)
    raise (NobodyListensError if is_refused else PeerUnavailableError)(message)


async def _try_each(
    ways: Sequence[tuple[Address, Callable[[], Awaitable[INetConn]]]],
    found: list[INetConn],
    reasons: dict[Address, AddressError],
) -> None:
    """Try one address after the other, beside those that take long, until one leads to a connection."""

    async def try_one(address: Address, try_it: Callable[[], Awaitable[INetConn]], is_done: trio.Event) -> None:
        try:
            found.append(await try_it())
            nursery.cancel_scope.cancel()
        except AddressError as error:
            reasons[address] = error
        is_done.set()

    async with trio.open_nursery() as nursery:
        for address, try_it in ways:
            is_done = trio.Event()
            nursery.start_soon(try_one, address, try_it, is_done)
            with trio.move_on_after(NEXT_S):
                await is_done.wait()


def _way_of(address: Address) -> Ways:
    return "relayed" if isinstance(address, CircuitAddress) else "straight"


def _to_try(peer: PeerId, addresses: Sequence[str], standing: Standing | None) -> list[Address]:
    """The addresses that can work from where we stand. Raises: PeerUnavailableError without any; ConfigError."""
    parsed = [_address_of(peer, text) for text in addresses]
    if not parsed:
        raise PeerUnavailableError(f"not connected to peer {peer}, and no address of it is known")
    if standing is not None and not (parsed := list(dialable_from(standing, parsed))):
        raise PeerUnavailableError(
            f"cannot reach peer {peer}: it is in another network and tells only addresses inside that, "
            f"{', '.join(addresses[:SHOWN])}; it needs a relay"
        )
    return parsed


def _address_of(peer: PeerId, text: str) -> Address:
    address = parse_address(text)
    if address.peer not in (None, peer):
        raise ConfigError(f"the address {text} belongs to another peer than {peer}")
    return address


async def _dial_circuit(swarm: Swarm, peer: PeerId, address: CircuitAddress, circuits: Circuits | None) -> INetConn:
    if circuits is None:
        raise AddressError("this host does not use relays")
    try:
        raw = await circuits.connect(address, peer)
    except PeerUnavailableError as error:
        raise AddressError(error.message) from error
    connection = await upgrade(swarm, raw, peer, relayed(address.relay_peer))
    assert isinstance(connection.muxed_conn, Muxer)
    connection.muxed_conn.line = raw.stream.line if isinstance(raw.stream, CircuitBytes) else None
    return connection


async def _dial_address(swarm: Swarm, peer: PeerId, address: TcpAddress, sources: Sequence[Endpoint]) -> INetConn:
    stream = await _connect(address, sources)
    local_port = stream.socket.getsockname()[1]
    connection = await upgrade(swarm, RawConnection(BufferedTcpStream(stream), initiator=True), peer, DIRECT)
    assert isinstance(connection.muxed_conn, Muxer)
    connection.muxed_conn.dialled_from = local_port
    return connection


async def upgrade(swarm: Swarm, raw: RawConnection, peer: PeerId, path: Path) -> INetConn:
    """The connection over bytes that we dialled to `peer` by `path`; on failure they are closed.

    Raises: AddressError with the reason.
    """
    token = upgrading_path.set(path)
    try:
        with trio.fail_after(HANDSHAKE_S):
            return await swarm.upgrade_outbound_raw_conn(raw, ID.from_base58(peer))
    except HANDSHAKE_FAILURES as error:
        await _close_at_once(raw)
        failed = AddressError(_handshake_reason(error))
        failed.refusal = next((cause.refusal for cause in _causes(error) if isinstance(cause, TurnedAway)), None)
        raise failed from error
    except BaseException:
        await _close_at_once(raw)
        raise
    finally:
        upgrading_path.reset(token)


async def _close_at_once(raw: RawConnection) -> None:
    if isinstance(raw.stream, BufferedTcpStream):
        await trio.aclose_forcefully(raw.stream.stream)
    else:
        await raw.close()


async def _connect(address: TcpAddress, sources: Sequence[Endpoint]) -> trio.SocketStream:
    limit_s = CONNECT_NEAR_S if is_private(address) else CONNECT_S
    try:
        with trio.fail_after(limit_s):
            return await _connect_from(address, sources) or await trio.open_tcp_stream(address.host, address.port)
    except trio.TooSlowError as error:
        raise AddressError(f"no answer within {limit_s:g} s") from error
    except OSError as error:
        raise AddressError(_connect_reason(error)) from error


async def _connect_from(address: TcpAddress, sources: Sequence[Endpoint]) -> trio.SocketStream | None:
    """A connection from one of `sources`; None when there is none that could be used."""
    if not sources:
        return None
    infos = await trio.socket.getaddrinfo(address.host, address.port, type=trio.socket.SOCK_STREAM)
    for family, *_, remote in infos:
        source = source_for(family, sources)
        if source is not None:
            try:
                return await dial_from(source, (str(remote[0]), int(remote[1])))
            except OSError as error:
                if error.errno not in TAKEN:
                    raise
    return None


_CONNECT_REASONS: Final = {
    errno.ECONNREFUSED: REFUSED,
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
        return (
            "it speaks another security protocol: members of a private swarm and other peers do not connect; if it is "
            "in a swarm, give --join, else leave that out, and take a key that is in none"
        )
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
