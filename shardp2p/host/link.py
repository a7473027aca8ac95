"""What a multiplexer reads from and writes to: the frames of one connection, over its own bytes or over another's.

One reader and one writer task serve the present wire, which is the secured connection at first and, after a move, a
stream of another connection to the same peer (host/carry/). The frames go on where they stopped, by the ledger of
those that can move; one that cannot fails with its wire.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, Protocol

import trio

from shardp2p.errors import RemoteProtocolError
from shardp2p.host import frames
from shardp2p.host.carry.ledger import Ledger
from shardp2p.host.failures import CONNECTION_FAILURES
from shardp2p.host.frames import Frame, FrameReader, encode_control
from shardp2p.host.vigil import SILENCE_S, Vigil

OUTBOX_BYTES: Final = 256 * 1024
"""Senders wait while this much is queued: a socket buffer's worth, so that cancelled work stops early."""
FLOOD_BYTES: Final = 1024 * 1024
"""Answers (pongs, acks, credits) to a peer that does not read them; beyond this it is cut off."""
GOODBYE_S: Final = 0.3
"""How long a closing connection tries to send what is queued."""
GOODBYE: Final = "the peer closed the connection"
"""The failure of a connection that the peer ended in order."""
RESUME_S: Final = 3.0
"""How long a connection that has lost its wire waits for another."""
MUTE_S: Final = 3.5
"""A connection that can move looks for another wire after so long a silence: an idle one was asked by then."""
GONE_S: Final = 4.7
"""A peer of which nothing was heard for this long, on whatever wire, is gone; it is noticed at most 0.1 s later."""


class Wire(Protocol):
    """Bytes in order: a secured connection or a stream. All three raise CONNECTION_FAILURES."""

    async def read(self, n: int | None = None) -> bytes:
        """Some bytes."""
        ...

    async def write(self, data: bytes) -> None:
        """All of `data`."""
        ...

    async def close(self) -> None:
        """End it."""
        ...


class Multiplexer(Protocol):
    """Whose frames they are."""

    def receive(self, frame: Frame) -> None:
        """Take a frame of a stream, each once and in order. Raises: RemoteProtocolError."""
        ...

    def end(self) -> None:
        """The link has failed."""
        ...


class Link:
    """The frames of one connection. `failure` says why it ended, or is None while it lives.

    While it has a `ledger` it can be movable. `lost` says what became of its wire while it waits for another.
    """

    def __init__(self, wire: Wire, multiplexer: Multiplexer, ledger: Ledger, *, is_early: bool) -> None:
        """`is_early`: it will be movable, so that its silence is to be suspected soon."""
        self.failure: str | None = None
        self.lost: str | None = None
        self.ledger: Ledger | None = ledger
        self.has_moved = False
        self.vigil = Vigil(is_early=is_early)
        self.wire: Wire | None = wire
        self._multiplexer = multiplexer
        self._outbox: deque[bytes] = deque()
        self._outbox_bytes = 0
        self._again: deque[bytes] = deque()
        self._is_writing = False
        self.sent_bytes = 0
        self.received_bytes = 0
        self._is_named = False
        self._is_watched = False
        self._passed = 0
        self._holds = 0
        self._lost_until = 0.0
        self._left: list[Wire] = []
        self._wire_scope = trio.CancelScope()
        self._work = trio.lowlevel.ParkingLot()
        self._space = trio.lowlevel.ParkingLot()
        self._turned = trio.lowlevel.ParkingLot()

    # What streams need.

    def queue(self, frame: bytes) -> None:
        """Queue a frame for the writer task; frames leave in the order in which they were queued."""
        if self.failure is not None:
            return
        self._outbox.append(frame)
        self._outbox_bytes += len(frame)
        if self._outbox_bytes > FLOOD_BYTES:
            self.fail("the peer floods us with requests and does not read the answers")
        self._work.unpark_all()

    @property
    def queued_bytes(self) -> int:
        """What waits to be written."""
        return self._outbox_bytes

    @property
    def is_full(self) -> bool:
        """Whether senders should wait for space."""
        return self._outbox_bytes >= OUTBOX_BYTES

    async def wait_space(self) -> None:
        """Wait until the writer task has made space or the link failed."""
        await self._space.park()

    async def drain(self) -> None:
        """Wait until everything is written or the link failed."""
        while (self._outbox or self._again or self._is_writing) and self.failure is None:
            await self._space.park()

    # Its life.

    async def run(self) -> None:
        """Serve one wire after the other, for ever: whoever runs it cancels it when the link has failed."""
        self.vigil.start(trio.current_time())
        async with trio.open_nursery() as closing:
            while True:
                wire = self.wire
                if wire is None:
                    await self._turned.park()
                    continue
                with trio.CancelScope() as self._wire_scope:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._read, wire)
                        nursery.start_soon(self._write, wire)
                while self._left:
                    closing.start_soon(close_wire, self._left.pop())

    def fail(self, reason: str) -> None:
        """End the link at once."""
        if self.failure is not None:
            return
        self.failure = reason
        self._outbox.clear()
        self._space.unpark_all()
        self._turned.unpark_all()
        self._multiplexer.end()

    async def close(self) -> None:
        """Close the present wire, and those before it that are not closed yet."""
        for wire in [*self._left, *([self.wire] if self.wire else [])]:
            await close_wire(wire)

    async def _write(self, wire: Wire) -> None:
        try:
            while True:
                while not (self._outbox or self._again):
                    await self._work.park()
                if wire is not self.wire:
                    return
                batch = self._take_batch()
                self._is_writing = True
                await wire.write(batch)
                self._is_writing = False
                if self._outbox_bytes < OUTBOX_BYTES:
                    self._space.unpark_all()
        except CONNECTION_FAILURES as error:
            self._lose(wire, f"the connection broke ({error})")

    def _take_batch(self) -> bytes:
        """As many queued frames as fit one Noise message, so that they cost one encryption and one system call."""
        outbox = self._again or self._outbox
        batch = [outbox.popleft()]
        size = len(batch[0])
        while outbox and size + len(outbox[0]) <= frames.MAX_WRITE_BYTES:
            batch.append(outbox.popleft())
            size += len(batch[-1])
        self.sent_bytes += size
        if outbox is self._outbox:
            self._outbox_bytes -= size
            self._count(batch)
        return batch[0] if len(batch) == 1 else b"".join(batch)

    def _count(self, batch: list[bytes]) -> None:
        ledger = self.ledger
        for frame in batch:
            if not frames.is_of_path(frame):
                self._passed += 1
                self.vigil.sent_at = trio.current_time()
                if ledger is not None:
                    ledger.send(frame)
        if ledger is not None and ledger.is_full and not self._holds:
            self.settle()

    async def _read(self, wire: Wire) -> None:
        reader = FrameReader()
        try:
            while True:
                data = await wire.read(None)
                self.vigil.heard_at = trio.current_time()
                self.received_bytes += len(data)
                while self._holds:
                    await self._turned.park()
                if wire is not self.wire:
                    return
                self.lost = None  # of one that was merely silent
                for frame in reader.feed(data):
                    if self.failure is None:
                        self._receive(frame)
        except RemoteProtocolError as error:
            self.refuse(error)
        except CONNECTION_FAILURES as error:
            self._lose(wire, f"the connection broke ({error})")

    def _receive(self, frame: Frame) -> None:
        if frame.stream_id == 0 or frame.kind >= frames.PING:
            self._receive_of_path(frame)
            return
        self._passed += 1
        if self.ledger is not None and self.ledger.receive(len(frame.payload)) and self._is_named:
            count = self.ledger.make_acknowledgement()
            self.queue(encode_control(frames.WINDOW_UPDATE, frames.ACK, 0, count))
        self._multiplexer.receive(frame)

    def _receive_of_path(self, frame: Frame) -> None:
        if frame.kind == frames.GO_AWAY:
            self.fail(GOODBYE)
        elif frame.kind == frames.PING and frame.flags & frames.SYN:
            self.queue(encode_control(frames.PING, frames.ACK, 0, frame.length))
        elif frame.kind == frames.PING:
            self.vigil.pong(trio.current_time(), frame.length)
        elif frame.kind == frames.WINDOW_UPDATE and frame.flags == frames.ACK:
            if self.ledger is not None:
                self.ledger.acknowledge(frame.length)
        else:
            self._multiplexer.receive(frame)

    def refuse(self, error: RemoteProtocolError) -> None:
        """The peer broke a rule: that ends the link, whatever wires there are."""
        self.fail(f"the peer broke the multiplexer's rules ({error})")

    # Liveness.

    def ask(self, now: float) -> float:
        """Ping if it is time; gives how long to sleep before `judge`."""
        value = self.vigil.ping(now, self._passed) if self.wire is not None else None
        if value is not None:
            self.queue(encode_control(frames.PING, frames.SYN, 0, value))
        return self.vigil.pause(now, is_waiting=self.lost is not None)

    def watch(self) -> None:
        """Suspect this connection early although it does not move: what others ride on is replaced as soon."""
        self._is_watched = True
        self.vigil.watch()

    def judge(self, now: float, who: str) -> None:
        """Notice the silence of `who`, suspect its path, and see that no other wire came in time."""
        silence_s = self.vigil.look(now)
        if self.lost is None and silence_s > (MUTE_S if self.is_movable else SILENCE_S):
            self._lose(self.wire, f"{who} has been silent for {silence_s:.0f} s", is_broken=False)
        elif self.lost is not None and now >= self._lost_until:
            self.fail(self.lost)
        if self.is_troubled:
            self._turned.unpark_all()

    def _lose(self, wire: Wire | None, reason: str, *, is_broken: bool = True) -> None:
        """Wait for another wire, a while; one that is merely silent may speak again."""
        if wire is not self.wire:
            return
        if not self.is_movable:
            self.fail(reason)
            return
        now = trio.current_time()
        self.lost = reason
        self._lost_until = min(now + RESUME_S, self.vigil.heard_at + GONE_S)
        if is_broken:
            self._leave(None)

    def give_up(self) -> None:
        """Wait for no other wire in place of one that broke: its peer is gone."""
        if self.lost is not None and self.wire is None:
            self.fail(self.lost)

    @property
    def is_troubled(self) -> bool:
        """Whether another wire should take over, if there is one."""
        return self.vigil.is_suspect or self.lost is not None

    async def wait_trouble(self) -> None:
        """Wait until another wire should take over, or the link failed."""
        while not self.is_troubled and self.failure is None:
            await self._turned.park()

    # Moving.

    @property
    def is_movable(self) -> bool:
        """Whether the peer has agreed that this connection can move, and it still can."""
        return self._is_named and self.ledger is not None and self.failure is None

    def keep(self) -> None:
        """Keep what is sent from now on, so that the peer can be told that this connection can move."""
        if self.ledger is not None:
            self.ledger.keep()

    def be_named(self) -> None:
        """The peer keeps what it sends, too: from now on the link outlives its wire."""
        self.keep()
        self._is_named = True
        self.vigil.watch()

    def settle(self) -> None:
        """Stay on the present wire for good: keep nothing, and end with it."""
        self.ledger = None
        if not self._is_watched:
            self.vigil.settle()
        if self.lost is not None:
            self.fail(self.lost)

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Deliver nothing meanwhile, so that the count of what was received stays true while the peer is told it."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
            self._turned.unpark_all()

    def switch(self, wire: Wire, received: int) -> None:
        """Go on over `wire`, whose other end has `received` frames of ours. Only while holding, and while movable.

        Raises: RemoteProtocolError when that cannot be.
        """
        assert self.ledger is not None
        self._again = self.ledger.resume(received)
        self.lost = None
        self.has_moved = True
        self.vigil.start(trio.current_time())
        self._leave(wire)

    def _leave(self, wire: Wire | None) -> None:
        """Put `wire` in the place of the present one, whose tasks stop."""
        if self.wire is not None:
            self._left.append(self.wire)
        self.wire = wire
        self._is_writing = False
        self._wire_scope.cancel()
        self._turned.unpark_all()
        # The batch that was being written had made space, and what follows may have nothing to write.
        self._space.unpark_all()

    async def wait_left(self, wire: Wire) -> None:
        """Wait until `wire` is not the present one any more, or the link failed."""
        while self.wire is wire and self.failure is None:
            await self._turned.park()


async def close_wire(wire: Wire) -> None:
    """Close `wire` in a bounded time, whatever happens to it."""
    with trio.move_on_after(GOODBYE_S, shield=True), suppress(*CONNECTION_FAILURES):
        await wire.close()
