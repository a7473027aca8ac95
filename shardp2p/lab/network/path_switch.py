"""A long answer while its ring moves from a relay to a hole that is punched, and back: is it exact, and how long is the
longest wait for a token?

Two peers behind routers hold half of the model each. The straight way between their homes is cut until the answer is
under way, then restored, so that a hole comes about, then cut for good.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, Final

import trio

from shardp2p.lab.network.description import Description
from shardp2p.lab.network.hosted import HostedSwarm, Question, Told, open_hosted, prepare_questions
from shardp2p.lab.network.scenario import Outcome

PROMPT: Final = "Tell a long story about a river that wants to see the sea."
TOKENS: Final = 96
WHOLE_S: Final = 240.0
"""For everything, so that what hangs fails."""
UNDER_WAY: Final = 8
"""Pieces of the answer that come before the hole may be punched: enough to see how long a lap takes."""
KEPT_S: Final = 2.0
"""How long the straight path is used before it is cut."""
LAPS_OF_GAP: Final = 2
GAP_S: Final = 1.0
"""The longest wait for a token may be LAPS_OF_GAP laps and this."""


@dataclass(slots=True)
class _Moves:
    """When the path became what, in trio's time; None before."""

    began_at: float | None = None
    punched_at: float | None = None
    cut_at: float | None = None
    relayed_at: float | None = None


@dataclass(frozen=True, slots=True)
class Switch:
    """What came of it. Times are from the first piece of the answer, in seconds; None where it did not come to that."""

    exact: bool
    lap_s: float
    longest_gap_s: float
    gap_before_cut_s: float
    punched_after_s: float | None
    cut_after_s: float | None
    relayed_after_s: float | None
    problem: str = ""

    @property
    def allowed_gap_s(self) -> float:
        """How long a token may have been waited for."""
        return LAPS_OF_GAP * self.lap_s + GAP_S

    @property
    def failure(self) -> str | None:
        """What is not as it must be."""
        if self.problem or not self.exact:
            return self.problem or "the answer is not exact"
        if self.relayed_after_s is None:
            return "the answer ended before the path had moved to the hole and back"
        if self.longest_gap_s > self.allowed_gap_s:
            return f"a token was waited for {self.longest_gap_s:.2f} s, and {self.allowed_gap_s:.2f} s are allowed"
        return None


async def switch_paths(description: Description, tokens: int = TOKENS) -> Switch:
    """Let it happen on a network with the hosts relay, alice and bob, the last two behind home-a and home-b."""
    question, greeting = await prepare_questions((PROMPT, tokens), ("Hello!", 2))
    async with open_hosted(description) as hosted:
        await hosted.network.cut("home-a", "home-b")
        await hosted.found("relay")
        await hosted.join_halves("alice", "bob")
        with trio.fail_after(WHOLE_S):
            await hosted.ask_until_answered("alice", greeting)
            moves = _Moves()
            told = await _ask_and_move(hosted, question, moves)
    return _result(told, moves)


async def _ask_and_move(hosted: HostedSwarm, question: Question, moves: _Moves) -> Told:
    under_way = trio.Event()

    def count(pieces: int) -> None:
        if pieces == UNDER_WAY:
            under_way.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(_move, hosted, moves, under_way))
        told = await hosted.ask("alice", question, count)
        nursery.cancel_scope.cancel()
    return told


async def _move(hosted: HostedSwarm, moves: _Moves, under_way: trio.Event) -> None:
    await under_way.wait()
    moves.began_at = trio.current_time()
    await hosted.network.restore("home-a", "home-b")
    moves.punched_at = await hosted.wait_path("alice", "bob", {"punched", "direct"})
    await trio.sleep(KEPT_S)
    await hosted.network.cut("home-a", "home-b")
    moves.cut_at = trio.current_time()
    moves.relayed_at = await hosted.wait_path("alice", "bob", {"relayed"})


def _result(told: Told, moves: _Moves) -> Switch:
    start = told.pieces_at[0] if told.pieces_at else told.asked_at
    gaps_s = list(told.gaps_s())
    before_cut = [gap for gap, at in zip(gaps_s, told.pieces_at[1:], strict=True) if moves.cut_at and at < moves.cut_at]
    since = [None if at is None else round(at - start, 2) for at in (moves.punched_at, moves.cut_at, moves.relayed_at)]
    return Switch(
        exact=not told.problem,
        # A piece is a token, and a token without drafts a lap: those over the relay, before anything moves.
        lap_s=round(median(gaps_s[: UNDER_WAY - 1]), 3) if gaps_s else 0.0,
        longest_gap_s=round(told.longest_gap_s, 3),
        gap_before_cut_s=round(max(before_cut, default=0.0), 3),
        punched_after_s=since[0],
        cut_after_s=since[1],
        relayed_after_s=since[2],
        problem=told.problem,
    )


async def run(description: Description) -> Outcome:
    """The scenario `path-switch`."""
    switch = await switch_paths(description)
    figures: dict[str, Any] = {
        "exact": switch.exact,
        "lap_s": switch.lap_s,
        "longest_gap_s": switch.longest_gap_s,
        "allowed_gap_s": round(switch.allowed_gap_s, 3),
        "gap_before_cut_s": switch.gap_before_cut_s,
        "punched_after_s": switch.punched_after_s,
        "cut_after_s": switch.cut_after_s,
        "relayed_after_s": switch.relayed_after_s,
        "problem": switch.problem,
    }
    width = max(map(len, figures))
    lines = [f"{name:{width}}  {'-' if value is None else value}" for name, value in figures.items()]
    return Outcome(figures, lines, switch.failure)
