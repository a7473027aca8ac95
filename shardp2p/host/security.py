"""The security transport of a private swarm: Noise, then both sides prove their membership, then the multiplexer.

Whoever proves nothing reaches no protocol, on direct and on relayed connections alike, since nothing is negotiated
before. Exchange and limits: docs/protocols/membership.md. Why here: docs/decisions/0007-membership-in-the-upgrade.md.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, get_args

import structlog
import trio
from libp2p.abc import IRawConnection, ISecureConn, ISecureTransport
from libp2p.crypto.keys import KeyPair
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from libp2p.security.exceptions import HandshakeFailure
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE_PROTOCOL
from libp2p.security.noise.transport import Transport as NoiseTransport

from shardp2p.errors import IntegrityError, RemoteProtocolError
from shardp2p.identity.membership import Membership
from shardp2p.identity.token import MAX_MEMBER_BYTES, NEXT_STEP, Refusal, RefusedError
from shardp2p.vocabulary import PeerId
from shardp2p.wire.framing import HEADER_BYTES, Frame, FrameDecoder, encode_frame

MEMBER_NOISE: Final = "/shardp2p/member-noise/1"
"""Not Noise's own name: a plain libp2p host is turned away while the two agree on a security protocol."""
PROOF_S: Final = 5.0
"""For the whole exchange, which takes a round trip and a half."""

_PROOF: Final = 1
_REFUSED: Final = 2
_ADMITTED: Final = 3
_MAX_PAYLOAD_BYTES: Final = {_PROOF: MAX_MEMBER_BYTES, _REFUSED: 16, _ADMITTED: 16}
_REFUSALS: Final[tuple[Refusal, ...]] = get_args(Refusal)

log = structlog.get_logger()


class MembershipFailure(HandshakeFailure):
    """One side does not admit the other. The text says which, and what to do next."""


def security_transports(key_pair: KeyPair, membership: Membership | None) -> Mapping[TProtocol, ISecureTransport]:
    """What a host offers: plain Noise without a membership, else nothing but Noise with proofs."""
    if membership is None:
        return {NOISE_PROTOCOL: NoiseTransport(key_pair, noise_privkey=create_noise_key_pair().private_key)}
    return {TProtocol(MEMBER_NOISE): MemberNoise(key_pair, membership)}


class TurnedAway(MembershipFailure):
    """The other side does not admit us."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"it does not admit us: {NEXT_STEP[refusal]}")
        self.refusal: Refusal = refusal


class MemberNoise(NoiseTransport):
    """Noise in which each side shows its proof of membership, bound to the peer id that Noise has authenticated.

    `clock` gives Unix time.
    """

    def __init__(self, key_pair: KeyPair, membership: Membership, clock: Callable[[], float] = time.time) -> None:
        super().__init__(key_pair, noise_privkey=create_noise_key_pair().private_key)
        self._membership = membership
        self._clock = clock

    async def secure_inbound(self, conn: IRawConnection) -> ISecureConn:
        """A connection from a member. Raises: MembershipFailure, or what Noise raises; libp2p then closes `conn`."""
        secured = await super().secure_inbound(conn)
        await self._within_time(self._answer, secured)
        return secured

    async def secure_outbound(self, conn: IRawConnection, peer_id: ID) -> ISecureConn:
        """A connection to a member. Raises: MembershipFailure, or what Noise raises; the dialler then closes `conn`."""
        secured = await super().secure_outbound(conn, peer_id)
        await self._within_time(self._introduce, secured)
        return secured

    async def _within_time(self, exchange: Callable[[ISecureConn], Awaitable[None]], secured: ISecureConn) -> None:
        try:
            with trio.fail_after(PROOF_S):
                await exchange(secured)
        except trio.TooSlowError as error:
            raise MembershipFailure(f"it did not prove its membership within {PROOF_S:.0f} s") from error
        except RemoteProtocolError as error:
            raise MembershipFailure(f"it broke the rules of proving a membership: {error.message}") from error

    async def _answer(self, secured: ISecureConn) -> None:
        """The side that was dialled shows its proof only to a member."""
        await self._admit(secured, await _receive(secured, _PROOF))
        await _send(secured, _PROOF, self._membership.proof)
        await _receive(secured, _ADMITTED)

    async def _introduce(self, secured: ISecureConn) -> None:
        await _send(secured, _PROOF, self._membership.proof)
        await self._admit(secured, await _receive(secured, _PROOF))
        await _send(secured, _ADMITTED, b"")

    async def _admit(self, secured: ISecureConn, proof: bytes) -> None:
        """Admit who is at the other end, or tell it why not."""
        peer = PeerId(secured.get_remote_peer().to_base58())
        try:
            self._membership.admit(proof, peer, self._clock())
        except (RefusedError, IntegrityError, RemoteProtocolError) as error:
            refusal: Refusal = error.refusal if isinstance(error, RefusedError) else "invalid"
            log.debug("peer_refused", peer=peer, refusal=refusal)
            await _send(secured, _REFUSED, bytes((_REFUSALS.index(refusal),)))
            raise MembershipFailure(f"we do not admit it: {NEXT_STEP[refusal]}") from error


async def _send(secured: ISecureConn, kind: int, payload: bytes) -> None:
    await secured.write(encode_frame(kind, payload))


async def _receive(secured: ISecureConn, wanted: int) -> bytes:
    """The payload of the one frame that may come now.

    Raises: MembershipFailure when the other side refuses us instead; RemoteProtocolError for any other frame.
    """
    frame = await _receive_frame(secured)
    if frame.kind == _REFUSED:
        number = frame.payload[0] if frame.payload else len(_REFUSALS)
        refusal = _REFUSALS[number] if number < len(_REFUSALS) else "invalid"
        raise TurnedAway(refusal)
    if frame.kind != wanted:
        raise RemoteProtocolError(f"a frame of kind {frame.kind} came instead of one of kind {wanted}")
    return bytes(frame.payload)


async def _receive_frame(secured: ISecureConn) -> Frame:
    """One frame and not a byte more: what follows is the multiplexer's."""
    decoder = FrameDecoder(_MAX_PAYLOAD_BYTES)
    header = await _receive_exactly(secured, HEADER_BYTES)
    decoder.feed(header)
    frame = decoder.next_frame()  # refuses a length above the limit before any of it is read
    if frame is None:
        decoder.feed(await _receive_exactly(secured, int.from_bytes(header[1:], "big")))
        frame = decoder.next_frame()
    assert frame is not None
    return frame


async def _receive_exactly(secured: ISecureConn, count: int) -> bytes:
    data = b""
    while len(data) < count:
        # A read ends early where the connection does; the next one raises.
        data += await secured.read(count - len(data))
    return data
