"""When to ping a peer, and what its silence means. Pure: `now` is an argument.

Any path that was silent for long is lost. Where another path could take over, a silent one is suspected much sooner,
and only while streams are in use is it asked early: an idle one costs a ping now and then.
"""

from __future__ import annotations

from typing import Final

PING_INTERVAL_S: Final = 1.0
QUIET_S: Final = 1.9
"""Whom we heard within this needs no ping, so of two idle sides one pings and the other hears it."""
CALM_S: Final = 2.4
"""The same where nothing could take over: gossip comes every two or three seconds and saves most pings, and the answer
still has a second until SILENCE_S."""
CALM_LOOK_S: Final = 0.5
"""How often at most such a path is looked at; before CALM_S have passed in silence, not at all."""
ROUND_TRIP_S: Final = 10.0
"""How old the measured round trip may get: windows grow by it."""
SILENCE_S: Final = 4.0
"""A peer that sends nothing for this long, pongs included, is gone; it is noticed at most CALM_LOOK_S later."""
ASK_S: Final = 0.15
"""A busy path is asked after so long a silence, or two round trips."""
SUSPECT_S: Final = 0.25
"""It is suspected when that was not answered for so long, or two round trips."""
LOOK_S: Final = 0.1
"""How often at least a movable path is looked at while it is busy or a ping is unanswered."""
SOON_S: Final = 0.02
"""How often at most."""
BUSY_S: Final = 3.0
"""How long after its last frame a path counts as busy."""


class Vigil:
    """Watches one connection, by turns: `ping`, then `pause`, then `look`.

    Who reads from it sets `heard_at`, and who writes a frame of a stream `sent_at`. `is_early`: another path could take
    over, so a silent one is to be suspected early.
    """

    def __init__(self, *, is_early: bool) -> None:
        self.heard_at = 0.0
        self.sent_at = 0.0
        self.round_trip_s = 0.0
        self.is_suspect = False
        self.missed_pings = 0
        """Pings after which nothing was heard before the next one was due."""
        self.is_early = is_early
        """Whether silence is suspected early."""
        self._pinged_at = -ROUND_TRIP_S
        self._asked_at = -ROUND_TRIP_S  # the first ping since we heard something
        self._ping_value = 0
        self._frames = 0
        self._busy_at = -BUSY_S
        self._looked_at = 0.0
        self._pause_s = PING_INTERVAL_S

    def start(self, now: float) -> None:
        """A path begins: that of a new connection, or one to which it moved."""
        self.heard_at = now
        self.round_trip_s = 0.0
        self._pinged_at = now - ROUND_TRIP_S
        self._ping_value = (self._ping_value + 1) % 2**32  # so that a late pong measures nothing
        self.is_suspect = False

    def watch(self) -> None:
        """Suspect early from now on."""
        self.is_early = True

    def settle(self) -> None:
        """Nothing can take over: suspect nothing."""
        self.is_early = self.is_suspect = False

    def ping(self, now: float, frames: int) -> int | None:
        """The value of the ping that is due, if one is. `frames` counts what passed, both ways together."""
        if frames != self._frames:
            self._frames, self._busy_at = frames, now
        is_quiet = now - self.heard_at >= self._quiet_s(now)
        is_due = is_quiet and (now - self._pinged_at >= 0.9 * PING_INTERVAL_S or self._is_owed)
        if not is_due and now - self._pinged_at < ROUND_TRIP_S:
            return None
        if self._is_asked:
            self.missed_pings += 1
        else:
            self._asked_at = now
        self._pinged_at = now
        self._ping_value = (self._ping_value + 1) % 2**32
        return self._ping_value

    def pong(self, now: float, value: int) -> None:
        """The answer to a ping came."""
        if value == self._ping_value:
            sample_s = now - self._pinged_at
            self.round_trip_s = (self.round_trip_s + sample_s) / 2 if self.round_trip_s else sample_s

    def pause(self, now: float, *, is_waiting: bool) -> float:
        """How long to sleep before looking; `is_waiting`: the path is lost, and time runs out for another."""
        self._looked_at = now
        self._pause_s = PING_INTERVAL_S
        if not self.is_early:
            until = min(now + PING_INTERVAL_S, self.heard_at + SILENCE_S) if self._is_asked else self.heard_at + CALM_S
            self._pause_s = max(until - now, CALM_LOOK_S)
        if is_waiting or (self.is_early and (self._is_asked or self._is_busy(now))):
            due_at = self._asked_at + self._patience_s if self._is_asked else self.heard_at + self._quiet_s(now)
            self._pause_s = max(due_at - now, SOON_S) if now < due_at < now + LOOK_S else LOOK_S
        return self._pause_s

    def look(self, now: float) -> float:
        """For how long the peer has been silent, in seconds."""
        late_s = now - self._looked_at - self._pause_s
        if late_s > PING_INTERVAL_S:
            # This process itself was stopped or starved: the peer's bytes may be waiting unread.
            self.heard_at = now
        elif late_s > LOOK_S and self._is_asked:
            self._asked_at = now
        self.is_suspect = self.is_early and self._is_asked and now - self._asked_at >= self._patience_s
        return now - self.heard_at

    @property
    def _is_asked(self) -> bool:
        """Whether a ping is unanswered, and nothing else was heard since."""
        return self._asked_at > self.heard_at

    @property
    def _is_owed(self) -> bool:
        """Whether we wrote since we last heard, and it answered our last ping: then a lost frame is worth another."""
        return self.is_early and self.sent_at > self.heard_at > self._pinged_at

    def _quiet_s(self, now: float) -> float:
        """How long a silence may be before it is asked."""
        if not (self.is_early and self._is_busy(now)):
            return QUIET_S if self.is_early else CALM_S
        return max(2 * self.round_trip_s, ASK_S) if self.round_trip_s else PING_INTERVAL_S

    @property
    def _patience_s(self) -> float:
        return max(2 * self.round_trip_s, SUSPECT_S) if self.round_trip_s else PING_INTERVAL_S

    def _is_busy(self, now: float) -> bool:
        return now - self._busy_at < BUSY_S
