"""A stranger reaches no protocol of a private swarm's peer, whoever dials whom; a plain host of libp2p is one."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
from libp2p import new_host
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
from libp2p.custom_types import TProtocol
from libp2p.host.basic_host import BasicHost
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.network.exceptions import SwarmException
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import info_from_p2p_addr
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE_PROTOCOL
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX_PROTOCOL
from libp2p.stream_muxer.yamux.yamux import Yamux
from multiaddr import Multiaddr

from shardp2p.errors import PeerUnavailableError
from shardp2p.host import security
from shardp2p.host.host import Host, open_host
from shardp2p.host.security import MEMBER_NOISE, MemberNoise
from shardp2p.identity.membership import Membership, revocation_statement
from shardp2p.identity.revocation import sign_revocation
from shardp2p.identity.token import Member, read_member
from shardp2p.vocabulary import PeerId
from shardp2p.wire.protocols import KINDS
from shardp2p.wire.stream import Stream
from tests.support.members import DAY_S, OTHER_OWNER, OWNER, invite, membership, peer

LOOPBACK = "/ip4/127.0.0.1/tcp/0"
ECHO = "/test/echo/1"
PROTOCOLS = (
    *KINDS,
    ECHO,
    "/ipfs/id/1.0.0",
    "/ipfs/id/push/1.0.0",
    "/ipfs/ping/1.0.0",
    "/ipfs/kad/1.0.0",
    "/meshsub/1.0.0",
    "/meshsub/1.1.0",
    "/meshsub/1.2.0",
    "/floodsub/1.0.0",
    "/libp2p/circuit/relay/0.2.0/hop",
    "/libp2p/circuit/relay/0.2.0/stop",
    "/libp2p/dcutr",
    "/libp2p/autonat/1.0.0",
)
"""Ours, and what libp2p's own services speak."""


class Reached(list[str]):
    """The protocols on which a stream came in."""

    def handler(self, protocol: str):  # type: ignore[no-untyped-def]
        async def handle(stream: Stream) -> None:
            self.append(protocol)
            await stream.send_all(b"reached")

        return handle


@asynccontextmanager
async def member() -> AsyncIterator[tuple[Host, Reached]]:
    """A peer of the private swarm that serves every protocol, and what was reached of it."""
    reached = Reached()
    async with open_host(peer(1), [LOOPBACK], membership=membership(1, now_s=time.time())) as host:
        for protocol in PROTOCOLS:
            host.serve(protocol, reached.handler(protocol))
        yield host, reached
        assert reached == []
        assert host.connected_peers() == ()


@asynccontextmanager
async def plain_host() -> AsyncIterator[BasicHost]:
    """What libp2p itself makes: its own Noise and Yamux, listening, with its own services."""
    key_pair = create_new_key_pair(b"s" * 32)
    host = new_host(
        key_pair=key_pair,
        sec_opt={NOISE_PROTOCOL: NoiseTransport(key_pair, noise_privkey=create_noise_key_pair().private_key)},
        muxer_opt={TProtocol(YAMUX_PROTOCOL): Yamux},
        connection_config=ConnectionConfig(min_connections=0, max_connections_per_peer=1),
    )
    assert isinstance(host, BasicHost)
    host.get_network().retry_config = RetryConfig(max_retries=0)  # type: ignore[attr-defined]
    async with host.run(listen_addrs=[Multiaddr(LOOPBACK)]):
        yield host


async def reach(stranger: BasicHost, server: Host, protocol: str) -> bytes:
    """What a plain host is answered on a protocol."""
    await stranger.connect(info_from_p2p_addr(Multiaddr(server.addresses()[0])))
    stream = await stranger.new_stream(ID.from_base58(server.peer_id), [TProtocol(protocol)])
    return await stream.read(100)


async def test_plain_host_of_libp2p_reaches_no_protocol() -> None:
    async with member() as (server, _), plain_host() as stranger:
        for protocol in PROTOCOLS:
            with trio.fail_after(20), pytest.raises(SwarmException):
                await reach(stranger, server, protocol)
            stranger.get_network().unblock_peer(ID.from_base58(server.peer_id))  # type: ignore[attr-defined]
        assert stranger.get_connected_peers() == []


async def test_plain_host_of_libp2p_reaches_an_open_swarms_peer() -> None:
    """So the one above is refused for what it lacks."""
    async with open_host(peer(1), [LOOPBACK]) as server, plain_host() as stranger:
        server.serve(ECHO, Reached().handler(ECHO))
        assert await reach(stranger, server, ECHO) == b"reached"


async def test_member_that_dials_a_plain_host_of_libp2p_speaks_no_protocol_with_it() -> None:
    async with member() as (server, _), plain_host() as stranger:
        reached: list[object] = []
        for protocol in PROTOCOLS:
            stranger.set_stream_handler(TProtocol(protocol), reached.append)  # type: ignore[arg-type]
        address = str(stranger.get_addrs()[0])
        for protocol in PROTOCOLS:
            with trio.fail_after(20), pytest.raises(PeerUnavailableError, match="another security protocol"):
                await server.open_stream(stranger.get_id().to_base58(), protocol, [address])  # type: ignore[arg-type]
        assert reached == []
        assert stranger.get_connected_peers() == []


def of_another_swarm() -> Membership:
    """The place of peer 2 in a swarm of the same name that somebody else owns."""
    return membership(2, invite(time.time(), owner=OTHER_OWNER), time.time())


class Forged(Membership):
    """Claims to be in the swarm, by a grant that its owner never signed."""

    def __init__(self) -> None:
        now_s = time.time()
        super().__init__(invite(now_s, owner=OTHER_OWNER).claim(peer(2), now_s))
        grant = invite(now_s).sealed_grant
        # The owner's public key before the other's signature.
        self.proof = self.proof[:2] + grant[:32] + self.proof[34:]

    def admit(self, proof: bytes, peer: PeerId, now_s: float) -> Member:
        """Anybody: it is who meets it that must not."""
        return read_member(proof)


def expired() -> Membership:
    issued_at_s = time.time() - 2 * DAY_S
    return membership(2, invite(issued_at_s, DAY_S, key=7), issued_at_s)


def stolen() -> Membership:
    """The proof of another peer."""
    return membership(3, now_s=time.time())


STRANGERS: dict[str, tuple[Callable[[], Membership], str]] = {
    "another swarm's": (of_another_swarm, "the invite is one to another swarm"),
    "a forged grant": (Forged, "the proof of membership is wrong"),
    "an expired one": (expired, "the invite has expired"),
    "another peer's": (stolen, "the proof of membership is wrong"),
}


DIALLED = {"another swarm's": "it does not admit us: the invite is one to another swarm"}
"""Who is dialled judges first, and shows its own proof only to whom it admits."""


@pytest.mark.parametrize("kind", STRANGERS)
async def test_host_of_ours_with_a_wrong_token_reaches_no_protocol(kind: str) -> None:
    make, reason = STRANGERS[kind]
    async with member() as (server, _), open_host(peer(2), membership=make()) as stranger:
        await assert_reaches_nothing(stranger, server, server.addresses(), f"it does not admit us: {reason}")


@pytest.mark.parametrize("kind", STRANGERS)
async def test_member_that_dials_a_wrong_token_speaks_no_protocol_with_it(kind: str) -> None:
    reached = Reached()
    make, reason = STRANGERS[kind]
    async with member() as (server, _), open_host(peer(2), [LOOPBACK], membership=make()) as stranger:
        for protocol in PROTOCOLS:
            stranger.serve(protocol, reached.handler(protocol))
        await assert_reaches_nothing(
            server, stranger, stranger.addresses(), DIALLED.get(kind, f"we do not admit it: {reason}")
        )
    assert reached == []


async def test_host_of_ours_without_a_token_reaches_no_protocol() -> None:
    async with member() as (server, _), open_host(peer(2), [LOOPBACK]) as stranger:
        await assert_reaches_nothing(stranger, server, server.addresses(), "another security protocol")
        await assert_reaches_nothing(server, stranger, stranger.addresses(), "another security protocol")


class Unchecked(MemberNoise):
    """Speaks the right security protocol, skips the proof or spoils it, and goes on as if it were admitted."""

    spoilt = b""

    async def _within_time(self, exchange: object, secured: object) -> None:
        if self.spoilt:
            await secured.write(self.spoilt)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "spoilt",
    [
        b"",
        b"\x03\x00\x00\x00\x00",
        b"\x01\x00\x00\x00\x00",
        b"\x01\x00\x00\x04\x01",
        b"\x09\x00\x00\x00\x00",
        b"x" * 999,
    ],
    ids=["nothing", "admitted", "an empty proof", "a long proof", "an unknown frame", "anything"],
)
async def test_host_that_goes_on_without_a_proof_reaches_no_protocol(
    spoilt: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(security, "PROOF_S", 0.5)
    monkeypatch.setattr(Unchecked, "spoilt", spoilt)
    async with member() as (server, _):
        with monkeypatch.context() as patch:
            patch.setattr(security, "MemberNoise", Unchecked)
            async with open_host(peer(2), membership=membership(2, now_s=time.time())) as stranger:
                for protocol in PROTOCOLS[:2]:
                    with trio.fail_after(20), pytest.raises(PeerUnavailableError):
                        await stranger.open_stream(server.peer_id, protocol, server.addresses())
                assert stranger.connected_peers() == ()


async def test_revoked_peer_reaches_no_protocol() -> None:
    now_s = time.time()
    known = membership(1, now_s=now_s)
    known.receive(revocation_statement(sign_revocation(OWNER, "peer", peer(2).public_bytes, now_s)), now_s)
    reached = Reached()
    async with open_host(peer(1), [LOOPBACK], membership=known) as server:
        for protocol in PROTOCOLS:
            server.serve(protocol, reached.handler(protocol))
        async with open_host(peer(2), membership=membership(2, now_s=now_s)) as stranger:
            await assert_reaches_nothing(stranger, server, server.addresses(), "the swarm's owner revoked it")
        async with open_host(peer(3), membership=membership(3, now_s=now_s)) as friend:
            await friend.open_stream(server.peer_id, ECHO, server.addresses())
    assert reached == [ECHO]


async def assert_reaches_nothing(dialler: Host, other: Host, addresses: Sequence[str], reason: str) -> None:
    for protocol in PROTOCOLS:
        with trio.fail_after(20), pytest.raises(PeerUnavailableError, match=reason):
            await dialler.open_stream(other.peer_id, protocol, addresses)
    assert dialler.connected_peers() == ()


def test_security_protocol_of_a_private_swarm_is_not_libp2ps() -> None:
    assert MEMBER_NOISE != NOISE_PROTOCOL
