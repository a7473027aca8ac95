"""Live streams move to another path between two real hosts: nothing is lost, repeated or reordered, whatever dies."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
import trio

from shardp2p.errors import PeerUnavailableError
from shardp2p.host import link as links
from shardp2p.host.carry import carrier
from shardp2p.host.carry import ledger as ledgers
from shardp2p.host.carry.exchange import receive, send
from shardp2p.host.link import GOODBYE
from shardp2p.host.muxer import Muxer
from shardp2p.host.path import DIRECT, PUNCHED
from shardp2p.wire.carrying import Refused, Resume, Resumed
from shardp2p.wire.protocols import CARRY
from shardp2p.wire.stream import Stream
from tests.process.carried import ECHO, RELAYED, Pair, Way, exchange, pair, wait_movable

SINK = "/test/sink/1"
BOUND_S = 60
"""Of whole tests: nothing hangs; a loaded machine is no failure."""


@asynccontextmanager
async def movable_pair() -> AsyncIterator[tuple[Pair, Muxer, Muxer, Way]]:
    """Two hosts and a connection that can move, as both sides have it."""
    with trio.fail_after(BOUND_S):
        async with pair() as hosts:
            near, far, way = await hosts.connect()
            await wait_movable(near, far)
            yield hosts, near, far, way


async def laps(stream: Stream, count: int, *, pause_s: float = 0.002) -> None:
    """Small messages to and fro, as a ring's."""
    for number in range(count):
        message = number.to_bytes(4, "big") * 64
        await stream.send_all(message)
        received = b""
        while len(received) < len(message):
            data = await stream.receive_some(65536)
            assert data
            received += data
        assert received == message
        await trio.sleep(pause_s)


async def under_traffic(
    hosts: Pair, near: Muxer, far: Muxer, disturb: Callable[[], Awaitable[None]], seed: int = 0, size: int = 3_000_000
) -> None:
    """`disturb` while several streams of the connection are busy, opened from both sides."""
    bulk = [await hosts.near.open_stream_over(near, ECHO), await hosts.far.open_stream_over(far, ECHO)]
    rings = [await hosts.near.open_stream_over(near, ECHO), await hosts.far.open_stream_over(far, ECHO)]
    async with trio.open_nursery() as nursery:
        for number, stream in enumerate(bulk):
            nursery.start_soon(exchange, stream, size, 100 * seed + number)
        for stream in rings:
            nursery.start_soon(laps, stream, 150)
        await disturb()
    for stream in [*bulk, *rings]:
        await stream.close()


async def test_streams_move_to_a_better_path_and_do_not_notice() -> None:
    async with movable_pair() as (hosts, near, far, _):
        better, better_far, _ = await hosts.connect(PUNCHED)

        async def move() -> None:
            await trio.sleep(0.05)
            await hosts.near.carrier.move(near, better)

        await under_traffic(hosts, near, far, move)
        assert near.carrier is better
        assert far.carrier is better_far
        assert near.path == far.path == PUNCHED
        assert near.failure is None


async def test_the_side_that_accepted_may_move_as_well() -> None:
    async with movable_pair() as (hosts, near, far, _):
        _, better_far, _ = await hosts.connect(DIRECT)
        await under_traffic(hosts, near, far, lambda: hosts.far.carrier.move(far, better_far))
        assert near.path == far.path == DIRECT


@pytest.mark.parametrize("seed", range(4))
async def test_paths_that_die_at_any_moment_lose_nothing(seed: int) -> None:
    chance = random.Random(seed)
    async with movable_pair() as (hosts, near, far, way):

        async def disturb() -> None:
            present = way
            for _ in range(6):
                over, over_far, after = await hosts.connect(chance.choice([RELAYED, PUNCHED, DIRECT]))
                carrier, moving, to = chance.choice(
                    [(hosts.near.carrier, near, over), (hosts.far.carrier, far, over_far)]
                )
                async with trio.open_nursery() as nursery:
                    if chance.random() < 0.7:
                        nursery.start_soon(_try_move, carrier.move, moving, to)
                    await trio.sleep(chance.choice([0, 0.001, 0.004, 0.02, 0.1]))
                    await present.cut()
                present = after
                while near.link.is_troubled or far.link.is_troubled or near.carrier is None:
                    await trio.sleep(0.01)

        await under_traffic(hosts, near, far, disturb, seed)
        assert near.failure is None
        assert far.failure is None


async def _try_move(move: Callable[[Muxer, Muxer], Awaitable[None]], muxer: Muxer, over: Muxer) -> None:
    with suppress(PeerUnavailableError):
        await move(muxer, over)


@pytest.mark.parametrize("seed", range(2))
async def test_moves_that_cross_or_are_cancelled_lose_nothing(seed: int) -> None:
    chance = random.Random(seed)
    async with movable_pair() as (hosts, near, far, _):
        others = [await hosts.connect(PUNCHED) for _ in range(3)]

        async def some_moves(move: Callable[[Muxer, Muxer], Awaitable[None]], muxer: Muxer, side: int) -> None:
            for _ in range(12):
                over = chance.choice(others)[side]
                assert isinstance(over, Muxer)
                with trio.move_on_after(chance.choice([0.0005, 0.003, 0.02, 1])):
                    await _try_move(move, muxer, over)
                await trio.sleep(chance.choice([0, 0.001, 0.01]))

        async def disturb() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(some_moves, hosts.near.carrier.move, near, 0)
                nursery.start_soon(some_moves, hosts.far.carrier.move, far, 1)

        await under_traffic(hosts, near, far, disturb, seed)
        assert near.failure is None


async def test_a_silent_path_is_left_for_another_that_lives() -> None:
    async with movable_pair() as (hosts, near, far, way):
        other, _, _ = await hosts.connect(RELAYED)

        async def disturb() -> None:
            way.swallow()
            while near.carrier is not other:
                await trio.sleep(0.01)

        await under_traffic(hosts, near, far, disturb)


async def test_a_move_over_a_path_that_falls_silent_is_called_off_so_that_the_present_one_is_not_held_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(carrier, "HOLD_S", BOUND_S)
    monkeypatch.setattr(carrier, "RESUME_S", BOUND_S)
    async with movable_pair() as (hosts, near, far, _):
        hole, hole_far, hole_way = await hosts.connect(PUNCHED)
        await wait_movable(hole, hole_far)
        while not hole.round_trip_s:
            await trio.sleep(0.01)
        hole_way.swallow()
        with pytest.raises(PeerUnavailableError, match="called off"):
            await hosts.near.carrier.move(near, hole)
        await under_traffic(hosts, near, far, trio.lowlevel.checkpoint, size=10_000)


async def test_a_connection_to_which_another_is_about_to_move_stays_where_it_is() -> None:
    async with movable_pair() as (hosts, near, far, _):
        hole, hole_far, _ = await hosts.connect(PUNCHED)
        await wait_movable(hole, hole_far)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hosts.near.carrier.move, hole, near)
            while not hosts.near.carrier._attempts:
                await trio.lowlevel.checkpoint()
            with pytest.raises(PeerUnavailableError, match="about to move"):
                await hosts.near.carrier.move(near, hole)
        assert hole.carrier is near
        await under_traffic(hosts, near, far, trio.lowlevel.checkpoint, size=10_000)


async def test_nothing_takes_over_that_has_the_same_path_or_a_silent_one() -> None:
    async with movable_pair() as (hosts, near, _, _):
        rider, rider_far, _ = await hosts.connect(PUNCHED)
        await wait_movable(rider, rider_far)
        await hosts.near.carrier.move(rider, near)
        assert hosts.near.carrier._others(near) == hosts.near.carrier._others(rider) == []
        spare, _, _ = await hosts.connect(RELAYED)
        assert hosts.near.carrier._others(near) == hosts.near.carrier._others(rider) == [spare]
        near.link.vigil.is_suspect = True  # and with it whatever it carries
        assert hosts.near.carrier._others(spare) == []
        near.link.vigil.is_suspect = False


async def test_a_relay_to_which_our_own_line_is_silent_takes_nothing_over() -> None:
    async with movable_pair() as (hosts, near, _, _):
        (spare, _, _), (line, _, _) = [await hosts.connect(path) for path in (RELAYED, DIRECT)]
        spare.line = line
        assert hosts.near.carrier._others(near) == [line, spare]
        line.link.watch()
        line.link.vigil.is_suspect = True  # as after the router before us, or the relay, began anew
        assert spare.is_doubtful
        assert hosts.near.carrier._others(near) == []
        assert hosts.near.connections(hosts.far.peer_id)[0] is near
        await hosts.near.carrier.move(spare, near)  # then it needs that line no more
        assert not spare.is_doubtful


async def test_a_carrier_may_be_carried_itself_and_die() -> None:
    async with movable_pair() as (hosts, near, far, _):
        punched, punched_far, punched_way = await hosts.connect(PUNCHED)
        await wait_movable(punched, punched_far)
        await hosts.near.carrier.move(near, punched)

        async def disturb() -> None:
            relay, _, _ = await hosts.connect(RELAYED)
            await punched_way.cut()
            while punched.carrier is not relay and near.carrier is not relay:
                await trio.sleep(0.01)

        await under_traffic(hosts, near, far, disturb)
        assert near.path == RELAYED


async def test_streams_in_negotiation_and_streams_that_close_move_too() -> None:
    received = bytearray()
    ended = trio.Event()

    async def sink(stream: Stream) -> None:
        while data := await stream.receive_some(65536):
            received.extend(data)
        ended.set()

    async with movable_pair() as (hosts, near, _, way):
        hosts.far.serve(SINK, sink)
        over, _, _ = await hosts.connect(PUNCHED)
        finished = await hosts.near.open_stream_over(near, SINK)
        way.swallow()
        await finished.send_all(bytes(range(256)) * 400)
        await finished.close()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_open_and_exchange, hosts, near)
            await trio.testing.wait_all_tasks_blocked(0.05)
            await hosts.near.carrier.move(near, over)
        await ended.wait()
        assert bytes(received) == bytes(range(256)) * 400


async def _open_and_exchange(hosts: Pair, muxer: Muxer) -> None:
    await exchange(await hosts.near.open_stream_over(muxer, ECHO), 100_000, 1)


async def test_a_lost_path_that_nothing_replaces_fails_with_its_reason() -> None:
    async with movable_pair() as (hosts, near, _, way):
        stream = await hosts.near.open_stream_over(near, ECHO)
        await way.cut()
        with pytest.raises(PeerUnavailableError, match="the connection broke"):
            await stream.receive_some(1)
        assert near.failure is not None


async def test_a_peer_that_falls_silent_is_gone_within_six_seconds() -> None:
    async with movable_pair() as (hosts, near, _, way):
        stream = await hosts.near.open_stream_over(near, ECHO)
        await stream.send_all(b"x")
        assert await stream.receive_some(1) == b"x"
        way.swallow()
        with trio.fail_after(6), pytest.raises(PeerUnavailableError, match="has been silent"):
            await stream.receive_some(1)


async def test_the_policy_is_asked_for_a_way_where_none_is_left() -> None:
    async with movable_pair() as (hosts, near, far, way):
        asked: list[Muxer] = []

        async def reconnect(muxer: Muxer) -> Muxer | None:
            asked.append(muxer)
            return (await hosts.connect(RELAYED))[0] if len(asked) > 1 else None

        hosts.near.carrier.reconnect = reconnect
        await under_traffic(hosts, near, far, way.cut)
        assert asked == [near, near]
        assert near.carrier is not None


async def test_a_goodbye_is_no_lost_path() -> None:
    async with movable_pair() as (hosts, near, far, _):
        over, _, _ = await hosts.connect(PUNCHED)
        await hosts.near.carrier.move(near, over)
        stream = await hosts.near.open_stream_over(near, ECHO)
        await hosts.far.disconnect(hosts.near.peer_id)
        with pytest.raises(PeerUnavailableError):
            await stream.receive_some(1)
        assert near.failure == over.failure == GOODBYE
        assert far.failure is not None


async def test_direct_connections_and_those_of_peers_that_keep_nothing_do_not_move() -> None:
    with trio.fail_after(BOUND_S):
        async with pair() as hosts:
            direct, _, _ = await hosts.connect(DIRECT)
            relayed, relayed_far, way = await hosts.connect(RELAYED)
            await wait_movable(relayed)
            relayed_far.link.settle()
            streams = [await hosts.near.open_stream_over(muxer, ECHO) for muxer in (direct, relayed)]
            for muxer, over in ((direct, relayed), (relayed, direct)):
                with pytest.raises(PeerUnavailableError):
                    await hosts.near.carrier.move(muxer, over)
            for stream in streams:
                await exchange(stream, 10_000, 1)
            await way.cut()
            with pytest.raises(PeerUnavailableError, match="the connection broke"):
                await streams[1].receive_some(1)


@asynccontextmanager
async def movable_direct() -> AsyncIterator[tuple[Pair, Muxer, Muxer, Way]]:
    """A direct connection that became movable after it had been used, as that to a peer that came into a ring."""
    with trio.fail_after(BOUND_S):
        async with pair() as hosts:
            near, far, way = await hosts.connect(DIRECT)
            await under_traffic(hosts, near, far, trio.lowlevel.checkpoint, size=10_000)
            hosts.near.carrier.add(near)
            await wait_movable(near, far)
            yield hosts, near, far, way


@pytest.mark.parametrize("end", ["cut", "swallow"])
async def test_a_direct_connection_goes_over_to_the_relay_when_its_path_dies_and_comes_back(end: str) -> None:
    async with movable_direct() as (hosts, near, far, way):
        spare, _, _ = await hosts.connect(RELAYED)

        async def disturb() -> None:
            await trio.sleep(0.02)
            way.swallow()
            if end == "cut":
                await way.cut()
            while near.carrier is not spare:
                await trio.sleep(0.01)
            again, _, _ = await hosts.connect(DIRECT)
            await hosts.near.carrier.move(near, again)

        await under_traffic(hosts, near, far, disturb)
        assert near.path == far.path == DIRECT
        assert near.failure is None
        assert not near.is_as_dialled


async def test_direct_connections_of_a_peer_that_is_gone_fail_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "RESUME_S", 10 * BOUND_S)
    monkeypatch.setattr(links, "GONE_S", 10 * BOUND_S)

    async def reconnect(muxer: Muxer) -> Muxer | None:
        raise PeerUnavailableError("nothing listens there")

    async with movable_direct() as (hosts, near, _, way):
        hosts.near.carrier.reconnect = reconnect
        stream = await hosts.near.open_stream_over(near, ECHO)
        await way.cut()
        with pytest.raises(PeerUnavailableError, match="the connection broke"):
            await stream.receive_some(1)


async def test_nobody_is_dialled_in_place_of_a_straight_path_that_is_only_slow() -> None:
    asked: list[Muxer] = []

    async def reconnect(muxer: Muxer) -> Muxer | None:
        asked.append(muxer)
        return None

    async with movable_direct() as (hosts, near, _, _):
        hosts.near.carrier.reconnect = reconnect
        near.link.vigil.is_suspect = True
        await hosts.near.carrier._rescue(near)
        assert asked == []
        near.link.lost = "it has been silent"
        await hosts.near.carrier._rescue(near)
        assert asked == [near]
        near.link.lost, near.link.vigil.is_suspect = None, False


async def test_a_connection_does_not_carry_itself() -> None:
    async with movable_pair() as (hosts, near, far, _):
        over, over_far, _ = await hosts.connect(PUNCHED)
        await wait_movable(over, over_far)
        await hosts.near.carrier.move(near, over)
        for muxer, to in ((near, near), (over, near)):
            with pytest.raises(PeerUnavailableError, match="would carry itself"):
                await hosts.near.carrier.move(muxer, to)
        await under_traffic(hosts, near, far, trio.lowlevel.checkpoint, size=10_000)


async def test_who_keeps_too_much_for_a_peer_that_acknowledges_nothing_stays_where_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ledgers, "KEEP_BYTES", 500_000)
    async with movable_pair() as (hosts, near, far, _):
        far.link._is_named = False  # so it acknowledges nothing
        await under_traffic(hosts, near, far, trio.lowlevel.checkpoint)
        assert near.link.ledger is None
        assert not near.link.is_movable
        await exchange(await hosts.near.open_stream_over(near, ECHO), 10_000, 1)


async def test_what_is_kept_stays_small_while_the_peer_acknowledges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers, "KEEP_BYTES", 4_000_000)
    async with movable_pair() as (hosts, near, far, _):
        await under_traffic(hosts, near, far, trio.lowlevel.checkpoint, size=12_000_000)
        assert near.link.is_movable
        assert far.link.is_movable


@pytest.mark.parametrize("received", [10**9, 2**63])
async def test_resuming_from_what_was_never_sent_ends_the_connection(received: int) -> None:
    async with movable_pair() as (hosts, near, far, _):
        over, _, _ = await hosts.connect(PUNCHED)
        name = hosts.near.carrier._names[near]
        stream = await hosts.near.open_stream_over(over, CARRY)
        await send(stream, Resume(name, 1, received))
        assert isinstance(await receive(stream), Resumed)
        with pytest.raises(PeerUnavailableError):
            await stream.receive_some(1)
        assert far.failure is not None
        assert far.failure.startswith("the peer broke the multiplexer's rules")


async def test_strange_names_and_late_turns_are_refused() -> None:
    async with movable_pair() as (hosts, near, far, _):
        over, _, _ = await hosts.connect(PUNCHED)
        await hosts.near.carrier.move(near, over)
        name = hosts.near.carrier._names[near]
        for late in (Resume(bytes(16), 1, 0), Resume(name, 1, 0)):
            stream = await hosts.near.open_stream_over(over, CARRY)
            await send(stream, late)
            assert isinstance(await receive(stream), Refused)
        await under_traffic(hosts, near, far, trio.lowlevel.checkpoint, size=10_000)
