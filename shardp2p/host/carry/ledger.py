"""What a movable connection has sent and received, in frames counted from its start: docs/protocols/carry.md. Pure.

The frames of streams are counted; those of stream 0 (pings and acknowledgements) belong to a path and are not.
From when the connection is named, a frame is kept from before it is written until the peer says that it has it, so
whatever a lost path swallowed can be sent again, in order, from exactly where the peer stopped receiving.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from shardp2p.errors import RemoteProtocolError

KEEP_BYTES: Final = 64 * 1024 * 1024
"""As much as the peer's windows let us have under way, so only a peer that acknowledges nothing gets there."""
ACKNOWLEDGE_BYTES: Final = 256 * 1024
"""How much is received between two acknowledgements: a few of them per second on a home line."""
FRAME_BYTES: Final = 64
"""What keeping a frame costs beside its bytes."""

_COUNTS: Final = 2**32


class Ledger:
    """The counts of both directions of one connection, the frames to send again, and the turns of moving it."""

    def __init__(self, *, has_dialled: bool, is_keeping: bool = True) -> None:
        """One that `is_keeping` keeps from the start what another keeps once it is told to."""
        self._has_dialled = has_dialled
        self._is_keeping = is_keeping
        self._sent = 0
        self._kept: deque[bytes] = deque()
        self._kept_bytes = 0
        self._received = 0
        self._unacknowledged_bytes = 0
        self._turn = 0
        self._is_asking = False

    @property
    def sent(self) -> int:
        """Frames sent so far."""
        return self._sent

    @property
    def received(self) -> int:
        """Frames received so far."""
        return self._received

    @property
    def acknowledged(self) -> int:
        """Frames sent that the peer is known to have."""
        return self._sent - len(self._kept)

    @property
    def kept_bytes(self) -> int:
        """What the kept frames cost."""
        return self._kept_bytes

    @property
    def is_full(self) -> bool:
        """Whether the peer acknowledges too little for the connection to stay movable."""
        return self._kept_bytes > KEEP_BYTES

    def keep(self) -> None:
        """Keep what is sent from now on: what was sent before arrives, or the peer never hears that we can move."""
        self._is_keeping = True

    def send(self, frame: bytes) -> None:
        """Count, and keep, a frame that is about to be written."""
        self._sent += 1
        if not self._is_keeping:
            return
        self._kept.append(frame)
        self._kept_bytes += len(frame) + FRAME_BYTES

    def receive(self, payload_bytes: int) -> bool:
        """Count a frame that arrived; True when the peer is to be told."""
        self._received += 1
        self._unacknowledged_bytes += payload_bytes + FRAME_BYTES
        return self._unacknowledged_bytes >= ACKNOWLEDGE_BYTES

    def make_acknowledgement(self) -> int:
        """The count to tell the peer, in 32 bits."""
        self._unacknowledged_bytes = 0
        return self._received % _COUNTS

    def acknowledge(self, count: int) -> None:
        """Drop what the peer has; `count` has 32 bits. Raises: RemoteProtocolError for what was never sent.

        One that was queued before a move may come after it, and is older than what the move said.
        """
        news = (count - self.acknowledged) % _COUNTS
        if news < _COUNTS // 2:
            self._drop(news)

    def resume(self, count: int) -> deque[bytes]:
        """The frames to send again, to a peer that has received `count`.

        Raises: RemoteProtocolError when it never was sent that many, or had acknowledged more.
        """
        if count < self.acknowledged:
            raise RemoteProtocolError(f"it resumes at frame {count} and had acknowledged {self.acknowledged}")
        self._drop(count - self.acknowledged)
        self._unacknowledged_bytes = 0
        self._is_asking = False
        return self._kept.copy()

    def _drop(self, frames: int) -> None:
        if frames > len(self._kept):
            raise RemoteProtocolError(f"it has received {frames} frames of the {len(self._kept)} that were sent")
        for _ in range(frames):
            self._kept_bytes -= len(self._kept.popleft()) + FRAME_BYTES

    # Turns: every attempt to move has a number, so that a late one is known as such, and of two at once one is.

    def ask(self) -> int:
        """The turn of an attempt of ours, which starts now."""
        self._turn += 1
        self._is_asking = True
        return self._turn

    def is_current(self, turn: int) -> bool:
        """Whether no later attempt has come between."""
        return self._turn == turn

    def give_up(self, turn: int) -> None:
        """Our attempt came to nothing."""
        if self._turn == turn:
            self._is_asking = False

    def take_turn(self, turn: int) -> bool:
        """Whether the peer's attempt is to be answered; one of ours is off then. At once, who dialled wins."""
        is_taken = turn > self._turn or (turn == self._turn and self._is_asking and not self._has_dialled)
        if is_taken:
            self._turn = turn
            self._is_asking = False
        return is_taken
