"""Traffic that measures a network from inside, with sockets in its namespaces and one clock for both ends.

A thread blocks in the sockets of both ends: an event loop in between would be measured as well.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import median
from typing import Final

import trio

from shardp2p.errors import PeerUnavailableError
from shardp2p.lab.network.lab import LabHost

PACKET_BYTES: Final = 1200
"""Of a packet of a flood, its headers included: it fits the narrowest line."""

_HEADERS_BYTES: Final = 28
_PROBE_S: Final = 1.0
"""After which a probe counts as lost, and another one is sent."""

_PROBES_LOST: Final = 20
"""And there is no path."""

_SILENCE_S: Final = 0.5
"""Without a packet that long, a flood is over; more than any sensible line queues."""

_TICK_MS: Final = 2
_BURST: Final = 200
"""Packets at most before those that came are taken: all that is due after a pause might fit no buffer."""

_BUFFER_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class RoundTrips:
    """Of probes one after the other: the shortest and the middle one."""

    least_s: float
    median_s: float


@dataclass(frozen=True, slots=True)
class Flood:
    """How many packets of a flood were sent and came, and how fast they came, in Mbit/s of IP."""

    sent: int
    received: int
    mbit_s: float


async def measure_round_trips(source: LabHost, destination: LabHost, count: int) -> RoundTrips:
    """Round trips from a host to one that it can dial. Raises: PeerUnavailableError where nothing comes back."""
    async with _joined(source, destination) as (ours, theirs):
        times = await trio.to_thread.run_sync(_round_trips, ours, theirs, count)
    return RoundTrips(min(times), median(times))


async def flood(
    source: LabHost, destination: LabHost, mbit_s: float, seconds: float, *, is_back: bool = False
) -> Flood:
    """Send packets at that rate from a host to one that it can dial, or, `is_back`, from that one to the host."""
    count = max(2, round(seconds * mbit_s * 1e6 / 8 / PACKET_BYTES))
    async with _joined(source, destination) as (ours, theirs):
        sender, receiver = (theirs, ours) if is_back else (ours, theirs)
        return await trio.to_thread.run_sync(_flood, sender, receiver, count, seconds)


def _flood(sender: socket.socket, receiver: socket.socket, count: int, seconds: float) -> Flood:
    """Send as many packets as are due, take those that have come, and so on until nothing comes any more."""
    data = bytes(PACKET_BYTES - _HEADERS_BYTES)
    for made in (sender, receiver):
        made.setblocking(False)
    waiting = select.poll()
    waiting.register(receiver, select.POLLIN)
    sent = 0
    came_at: list[float] = []
    start = last = time.monotonic()
    while len(came_at) < count and (sent < count or time.monotonic() - last < _SILENCE_S):
        due = min(count, sent + _BURST, 1 + int(count * (time.monotonic() - start) / seconds))
        try:
            for _ in range(sent, due):
                sender.send(data)
                sent += 1
        except BlockingIOError:
            pass  # the rest when there is room
        waiting.poll(_TICK_MS)
        try:
            while True:
                receiver.recv(PACKET_BYTES)
                came_at.append(last := time.monotonic())
        except BlockingIOError:
            continue
    # The first packet begins the clock, so it is not one of those that came while it ran.
    took_s = came_at[-1] - came_at[0] if came_at else 0.0
    return Flood(count, len(came_at), (len(came_at) - 1) * PACKET_BYTES * 8 / 1e6 / took_s if took_s else 0.0)


def _round_trips(ours: socket.socket, theirs: socket.socket, count: int) -> list[float]:
    times: list[float] = []
    lost = 0
    while len(times) < count:
        taken_s = _probe(ours, theirs, len(times).to_bytes(2) + lost.to_bytes(2))
        if taken_s is not None:
            times.append(taken_s)
        elif (lost := lost + 1) == _PROBES_LOST:
            raise PeerUnavailableError("nothing comes back in a network of the lab; is something cut?")
    return times


def _probe(ours: socket.socket, theirs: socket.socket, data: bytes) -> float | None:
    """How long a packet takes there and back; None if it, or its answer, is lost."""
    sent_at = time.monotonic()
    ours.send(data)
    try:
        for receiver, answers in ((theirs, True), (ours, False)):
            while receiver.recv(64) != data:
                pass  # one that was given up for lost
            if answers:
                theirs.send(data)
    except TimeoutError:
        return None
    return time.monotonic() - sent_at


@asynccontextmanager
async def _joined(source: LabHost, destination: LabHost) -> AsyncIterator[tuple[socket.socket, socket.socket]]:
    """A UDP socket on each, connected; the routers in between have let the first packet out."""
    with await _udp(source) as ours, await _udp(destination) as theirs:
        ours.connect((destination.address, theirs.getsockname()[1]))
        theirs.connect(await _first_sender(ours, theirs))
        yield ours, theirs


async def _first_sender(ours: socket.socket, theirs: socket.socket) -> tuple[str, int]:
    for _ in range(_PROBES_LOST):
        ours.send(b"")
        try:
            _, (address, port) = await trio.to_thread.run_sync(theirs.recvfrom, 64)
        except TimeoutError:
            continue
        return address, port
    raise PeerUnavailableError("nothing arrives in a network of the lab; is something cut?")


async def _udp(host: LabHost) -> socket.socket:
    made = await host.open_stdlib_socket(socket.SOCK_DGRAM)
    made.settimeout(_PROBE_S)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        made.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
    made.bind(("0.0.0.0", 0))
    return made
