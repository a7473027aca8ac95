"""Strangers that break the handshake, at each of its steps and on either side: nobody else notices."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest
import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.security.noise.pb.noise_pb2 import NoiseHandshakePayload
from noise.connection import Keypair, NoiseConnection

from shardp2p.errors import PeerUnavailableError
from shardp2p.host.host import MAX_HANDSHAKES, Host, open_host
from shardp2p.identity.keys import Identity
from shardp2p.wire.stream import Stream

ECHO = "/test/echo/1"
LOOPBACK = "/ip4/127.0.0.1/tcp/0"
GREETING = b"\x13/multistream/1.0.0\n\x07/noise\n"
KEY = create_new_key_pair(bytes(range(32))).public_key.serialize()


def payload(key: bytes = KEY, signature: bytes = bytes(64)) -> bytes:
    return NoiseHandshakePayload(identity_key=key, identity_sig=signature).SerializeToString()


def key_of_type(number: int, data: bytes) -> bytes:
    return bytes((8, number, 18, len(data))) + data


PAYLOADS = {
    "nothing": b"",
    "no protobuf": b"\xff\xff\xff",
    "a signature of another key": payload(),
    "a short signature": payload(signature=b"x"),
    "no signature": payload(signature=b""),
    "a key of an unknown type": payload(key_of_type(9, bytes(32))),
    "a short key": payload(key_of_type(1, b"x")),
    "a broken RSA key": payload(key_of_type(0, bytes(40))),
    "a broken secp256k1 key": payload(key_of_type(2, bytes(33))),
    "a broken ECDSA key": payload(key_of_type(3, bytes(64))),
}
RAW_MESSAGES = {
    "an empty message": b"",
    "a short message": b"x",
    "the point at infinity": bytes(32),
    "a message of noise": bytes(range(128)),
    "a long message of noise": bytes(65535),
}


def framed(message: bytes) -> bytes:
    return len(message).to_bytes(2, "big") + message


async def receive_exactly(stream: trio.SocketStream, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = await stream.receive_some(count - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


async def receive_framed(stream: trio.SocketStream) -> bytes:
    return await receive_exactly(stream, int.from_bytes(await receive_exactly(stream, 2), "big"))


def noise(*, is_initiator: bool) -> NoiseConnection:
    connection = NoiseConnection.from_name(b"Noise_XX_25519_ChaChaPoly_SHA256")
    if is_initiator:
        connection.set_as_initiator()
    else:
        connection.set_as_responder()
    connection.set_keypair_from_private_bytes(Keypair.STATIC, bytes(range(1, 33)))
    connection.start_handshake()
    return connection


async def echo(stream: Stream) -> None:
    while data := await stream.receive_some(1000):
        await stream.send_all(data)


async def assert_serves(server: Host) -> None:
    """A peer that is new to `server` gets a stream and an answer."""
    async with open_host(Identity.generate()) as client:
        stream = await client.open_stream(server.peer_id, ECHO, server.addresses())
        await stream.send_all(b"hello")
        assert await stream.receive_some(100) == b"hello"


@asynccontextmanager
async def serving_host() -> AsyncIterator[tuple[Host, int]]:
    """A host and its port; it must serve well in the end."""
    async with open_host(Identity.generate(), [LOOPBACK]) as server:
        server.serve(ECHO, echo)
        yield server, int(server.addresses()[0].split("/")[4])
        await assert_serves(server)


async def greeted(port: int) -> trio.SocketStream:
    """A connection on which both sides want Noise."""
    stranger = await trio.open_tcp_stream("127.0.0.1", port)
    await stranger.send_all(GREETING)
    await receive_exactly(stranger, len(GREETING))
    return stranger


async def wait_hung_up(stranger: trio.SocketStream) -> None:
    with trio.fail_after(5), suppress(trio.BrokenResourceError):
        while await stranger.receive_some(1000):
            pass
    await stranger.aclose()


@pytest.mark.parametrize("first", [*RAW_MESSAGES, "a good one"])
async def test_a_stranger_whose_noise_cannot_be_decrypted_does_not_harm_the_host(first: str) -> None:
    """Message 1 is no secret, so anybody comes as far as message 3."""
    async with serving_host() as (_, port):
        for third in RAW_MESSAGES.values():
            stranger = await greeted(port)
            message = RAW_MESSAGES.get(first, noise(is_initiator=True).write_message())
            await stranger.send_all(framed(bytes(message)) + framed(third))
            with suppress(trio.BrokenResourceError):  # hung up already
                await stranger.send_eof()
            await wait_hung_up(stranger)


@pytest.mark.parametrize("what", PAYLOADS)
async def test_a_stranger_that_cannot_prove_who_it_is_does_not_harm_the_host(what: str) -> None:
    async with serving_host() as (_, port):
        stranger = await greeted(port)
        connection = noise(is_initiator=True)
        await stranger.send_all(framed(bytes(connection.write_message())))
        connection.read_message(await receive_framed(stranger))
        await stranger.send_all(framed(bytes(connection.write_message(PAYLOADS[what]))))
        await wait_hung_up(stranger)


async def assert_dial_fails(answer: Callable[[bytes], bytes]) -> None:
    """Dialling who answers so says that it is no peer, and the dialling host still works."""

    async def serve(stream: trio.SocketStream) -> None:
        await stream.send_all(GREETING)
        await receive_exactly(stream, len(GREETING))
        await stream.send_all(framed(answer(await receive_framed(stream))))

    async with serving_host() as (host, _), trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        address = f"/ip4/127.0.0.1/tcp/{listener.socket.getsockname()[1]}"
        with pytest.raises(PeerUnavailableError, match=f"{address}: what answers there is no libp2p peer"):
            await host.open_stream(Identity.generate().peer_id, ECHO, [address])
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("what", RAW_MESSAGES)
async def test_an_answer_that_cannot_be_decrypted_is_no_peer(what: str) -> None:
    await assert_dial_fails(lambda _: RAW_MESSAGES[what])


@pytest.mark.parametrize("what", PAYLOADS)
async def test_an_answer_that_proves_nothing_is_no_peer(what: str) -> None:
    def answer(first: bytes) -> bytes:
        connection = noise(is_initiator=False)
        connection.read_message(first)
        return bytes(connection.write_message(PAYLOADS[what]))

    await assert_dial_fails(answer)


async def test_strangers_that_stay_silent_do_not_keep_others_out() -> None:
    async with serving_host() as (server, port):
        silent = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(2 * MAX_HANDSHAKES)]
        await assert_serves(server)
        for stranger in silent[:MAX_HANDSHAKES]:  # they made room
            await wait_hung_up(stranger)
        for stranger in silent:
            await stranger.aclose()


async def test_whoever_hangs_up_in_the_handshake_may_be_busy() -> None:
    async with open_host(Identity.generate()) as host, trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, trio.aclose_forcefully, [listener])
        address = f"/ip4/127.0.0.1/tcp/{listener.socket.getsockname()[1]}"
        with pytest.raises(PeerUnavailableError, match=f"{address}: .*it is too busy and hung up"):
            await host.open_stream(Identity.generate().peer_id, ECHO, [address])
        nursery.cancel_scope.cancel()
