"""Our Yamux: its frames, its rules, and that it talks to libp2p's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.peer.id import ID
from libp2p.stream_muxer.exceptions import MuxedConnUnavailable, MuxedStreamEOF, MuxedStreamReset
from libp2p.stream_muxer.yamux.yamux import Yamux

from shardp2p.errors import ConfigError, RemoteProtocolError
from shardp2p.host import frames
from shardp2p.host.addresses import parse_address, parse_peer_id
from shardp2p.host.frames import FrameReader, encode_control, encode_data
from shardp2p.host.muxer import GOODBYE, IDLE_S, Muxer
from shardp2p.identity.keys import Identity

End = trio.StapledStream[trio.testing.MemorySendStream, trio.testing.MemoryReceiveStream]
PEER = ID(b"\x00\x24" + bytes(36))


class Pipe:
    """A secured connection in memory; enough of libp2p's ISecureConn for a muxer."""

    def __init__(self, end: End, is_initiator: bool) -> None:
        self._end = end
        self.is_initiator = is_initiator
        self.is_stopped = False

    async def write(self, data: bytes) -> None:
        if self.is_stopped:
            return
        try:
            await self._end.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionClosedError("closed") from error

    async def read(self, n: int | None = None) -> bytes:
        try:
            data = await self._end.receive_some(65536 if n is None else n)
        except trio.ClosedResourceError as error:
            raise ConnectionClosedError("closed") from error
        if not data:
            raise ConnectionClosedError("closed")
        return bytes(data)

    async def close(self) -> None:
        await self._end.aclose()


@asynccontextmanager
async def muxed_pair(other: type[Muxer] | type[Yamux] = Muxer) -> AsyncIterator[tuple[Muxer, Muxer | Yamux]]:
    near_end, far_end = trio.testing.memory_stream_pair()
    near = Muxer(Pipe(near_end, True), PEER)  # type: ignore[arg-type]
    far = other(Pipe(far_end, False), PEER)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(near.start)
        nursery.start_soon(far.start)
        await near.event_started.wait()
        await far.event_started.wait()
        yield near, far
        await near.close()
        await far.close()


@asynccontextmanager
async def raw_peer() -> AsyncIterator[tuple[Muxer, End]]:
    """A muxer and the bytes of its peer, which the test writes itself."""
    near_end, far_end = trio.testing.memory_stream_pair()
    near = Muxer(Pipe(near_end, True), PEER)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(near.start)
        await near.event_started.wait()
        yield near, far_end
        await near.close()


@settings(deadline=None, derandomize=True)
@given(st.binary(max_size=300), st.integers(min_value=1, max_value=40))
def test_frames_survive_any_cutting(payload: bytes, step: int) -> None:
    data = encode_data(7, memoryview(payload)) + encode_control(frames.PING, frames.SYN, 0, 9)
    reader = FrameReader()
    found = [frame for start in range(0, len(data), step) for frame in reader.feed(data[start : start + step])]
    assert found == [(frames.DATA, 0, 7, len(payload), payload), (frames.PING, frames.SYN, 0, 9, b"")]


@settings(deadline=None, derandomize=True)
@given(st.binary(max_size=200))
def test_any_bytes_give_frames_or_a_protocol_error(data: bytes) -> None:
    with suppress(RemoteProtocolError):
        FrameReader().feed(data)


def test_window_update_has_the_bytes_of_the_specification() -> None:
    assert encode_control(frames.WINDOW_UPDATE, frames.SYN, 1, 256) == bytes.fromhex("000100010000000100000100")


async def test_libp2ps_own_yamux_talks_to_ours_in_both_directions() -> None:
    data = bytes(range(256)) * 4000
    async with muxed_pair(Yamux) as (ours, theirs):
        for opener, accepter in ((ours, theirs), (theirs, ours)):
            one = await opener.open_stream()
            two = await accepter.accept_stream()
            received = bytearray()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(one.write, data)
                while len(received) < len(data):
                    received += await two.read(65536)
            assert bytes(received) == data
            await one.close()
            with pytest.raises(MuxedStreamEOF):
                await two.read(1)
            await two.close()
        assert not ours._streams


async def test_large_and_small_writes_are_read_in_order_in_steps_of_any_size() -> None:
    async with muxed_pair() as (near, far):
        one = await near.open_stream()
        two = await far.accept_stream()
        sizes = (3, 40_000, 1, 1, 20_000, 5, 65_000, 16_384, 2)
        sent = b"".join(bytes([at + 1]) * size for at, size in enumerate(sizes))
        for steps in ((1, 7, 100_000), (50_000,), (16_384, 3), (None,)):
            for at, size in enumerate(sizes):
                await one.write(bytes([at + 1]) * size)
            await trio.testing.wait_all_tasks_blocked()
            read = bytearray()
            for turn in range(len(sent)):
                if len(read) == len(sent):
                    break
                step = steps[turn % len(steps)]
                piece = await two.read(step)
                assert 0 < len(piece) <= (step or len(sent))
                read += piece
            assert read == sent


async def test_data_before_a_reset_or_a_lost_connection_can_still_be_read() -> None:
    async with muxed_pair() as (near, far):
        one = await near.open_stream()
        two = await far.accept_stream()
        await one.write(b"last words")
        await near.close()
        await trio.testing.wait_all_tasks_blocked()
        assert await two.read(100) == b"last words"
        with pytest.raises(MuxedStreamReset, match="the peer closed the connection"):
            await two.read(100)
        with pytest.raises(MuxedConnUnavailable):
            await far.open_stream()


async def test_reset_after_the_connection_failed_does_not_hide_why_it_did() -> None:
    async with muxed_pair() as (near, far):
        stream = await near.open_stream()
        await far.accept_stream()
        await far.close()
        await trio.testing.wait_all_tasks_blocked()
        await stream.reset()
        with pytest.raises(MuxedStreamReset, match="the peer closed the connection"):
            await stream.read(4)


async def test_peer_that_keeps_sending_to_a_closed_stream_is_told_to_stop() -> None:
    async with muxed_pair() as (near, far):
        one = await near.open_stream()
        two = await far.accept_stream()
        await two.close()
        with pytest.raises(MuxedStreamReset):
            await one.write(bytes(64 * 1024 * 1024))
        await trio.testing.wait_all_tasks_blocked()
        assert not near._streams
        assert not far._streams  # type: ignore[union-attr]


async def test_stream_that_the_peer_never_closes_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    async with muxed_pair() as (near, far):
        one = await near.open_stream()
        await far.accept_stream()
        await one.close()
        assert near._streams
        await trio.sleep(7)
        assert not near._streams
        assert not far._streams  # type: ignore[union-attr]


async def test_silent_peer_fails_the_connection(autojump_clock: trio.testing.MockClock) -> None:
    async with raw_peer() as (near, _):
        stream = await near.open_stream()
        with trio.fail_after(6), pytest.raises(MuxedStreamReset, match="the peer has been silent for"):
            await stream.read(1)


@pytest.mark.parametrize("quiet_s", [0.0, 0.4, 1.5, 5.0, 30.3])
@pytest.mark.parametrize("is_movable", [False, True])
async def test_a_peer_that_stops_is_gone_within_five_seconds_and_another_path_is_looked_for_before(
    autojump_clock: trio.testing.MockClock, is_movable: bool, quiet_s: float
) -> None:
    async with muxed_pair() as (near, far):
        assert isinstance(far, Muxer)
        if is_movable:
            near.link.be_named()
            far.link.be_named()
        stream = await near.open_stream()
        answering = await far.accept_stream()
        await answering.write(b"x")
        assert await stream.read(1) == b"x"
        await trio.sleep(quiet_s)
        far.secured_conn.is_stopped = True  # type: ignore[attr-defined]
        stopped = trio.current_time()
        if is_movable:
            await near.link.wait_trouble()
            with trio.fail_after(4):
                while near.link.lost is None:
                    await trio.sleep(0.05)
        with trio.move_on_at(stopped + 5) as scope, pytest.raises(MuxedStreamReset, match="has been silent for"):
            await stream.read(1)
        assert not scope.cancelled_caught


async def test_peer_that_only_answers_pings_stays(autojump_clock: trio.testing.MockClock) -> None:
    async with muxed_pair() as (near, far):
        await trio.sleep(60)
        assert not near.is_closed
        assert not far.is_closed


@pytest.mark.parametrize(
    "attack",
    [
        b"\x01" + bytes(11),
        b"\x00\x09" + bytes(10),
        encode_control(frames.DATA, 0, 2, 2**31),
        encode_control(frames.WINDOW_UPDATE, frames.SYN, 1),
        encode_control(frames.WINDOW_UPDATE, frames.SYN, 0),
        encode_control(frames.WINDOW_UPDATE, frames.SYN, 2) * 2,
        encode_control(frames.WINDOW_UPDATE, frames.SYN, 2) + encode_data(2, memoryview(bytes(300_000))),
        encode_control(frames.WINDOW_UPDATE, frames.SYN | frames.FIN, 2) + encode_data(2, memoryview(b"x")),
    ],
    ids=["version", "type", "huge", "wrong side", "stream 0", "twice", "over the window", "after its end"],
)
async def test_broken_rules_end_the_connection_with_the_reason(attack: bytes) -> None:
    async with raw_peer() as (near, peer):
        await peer.send_all(attack)
        with trio.fail_after(5):
            await near.event_closed.wait()
        assert near.failure is not None
        assert near.failure.startswith("the peer broke the multiplexer's rules")


async def test_streams_beyond_the_bound_are_reset_and_the_others_live() -> None:
    async with raw_peer() as (near, peer):
        for number in range(1, 1030):
            await peer.send_all(encode_control(frames.WINDOW_UPDATE, frames.SYN, 2 * number))
        await trio.testing.wait_all_tasks_blocked()
        assert len(near._streams) == 1024
        assert not near.is_closed


async def test_flood_of_pings_that_reads_no_answers_is_cut_off() -> None:
    async with raw_peer() as (near, peer):
        near.secured_conn.write = _never  # type: ignore[method-assign]
        await peer.send_all(encode_control(frames.PING, frames.SYN, 0, 1) * 100_000)
        with trio.fail_after(5):
            await near.event_closed.wait()
        assert near.failure == "the peer floods us with requests and does not read the answers"


async def _never(data: bytes) -> None:
    await trio.sleep_forever()


@pytest.mark.parametrize(
    "text", ["/ip4/192.0.2.7/tcp/4001", "/ip6/2001:db8::1/tcp/1", "/dns4/example.org/tcp/4001", "/dns/a.example/tcp/1"]
)
def test_addresses_survive_parsing(text: str) -> None:
    peer = Identity.from_seed(bytes(range(32))).peer_id
    assert str(parse_address(text)) == text
    assert str(parse_address(f"{text}/p2p/{peer}")) == f"{text}/p2p/{peer}"
    assert parse_address(f"{text}/p2p/{peer}").peer == peer


@given(st.text(max_size=60))
def test_any_text_is_a_peer_id_or_the_users_mistake(text: str) -> None:
    with suppress(ConfigError):
        assert parse_peer_id(text) == text


async def test_a_connection_that_is_not_used_is_closed_by_who_dialled(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with muxed_pair() as (near, far):
        for _ in range(3):
            stream = await near.open_stream()
            await trio.sleep(IDLE_S - 5)
            await stream.reset()
            await trio.sleep(IDLE_S - 5)
            assert not near.is_closed
        await trio.sleep(10)
        assert near.is_closed
        assert isinstance(far, Muxer)
        assert far.failure == GOODBYE


async def test_a_stream_in_the_last_moment_keeps_the_connection(autojump_clock: trio.testing.MockClock) -> None:
    async with muxed_pair() as (near, far):
        while not near.is_retiring:
            await trio.sleep(0.5)
        await far.open_stream()
        await trio.sleep(10)
        assert not near.is_closed
        assert not near.is_retiring
