"""The README's story: three peers behind three kinds of routers join a founder's swarm, a client behind a fourth asks.

Then, with requests running all the time, the relay that carries most is killed, one router loses its mappings, and one
home gets another address. No request may hang, and whatever ended must be back soon.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Final

import trio

from shardp2p.errors import PeerUnavailableError
from shardp2p.lab.network.description import Description
from shardp2p.lab.network.hosted import LAYERS, HostedSwarm, Question, Told, open_hosted, prepare_questions
from shardp2p.lab.network.scenario import Outcome

PROMPT: Final = "Tell a story about a river that wants to see the sea."
TOKENS: Final = 24
PUBLIC: Final = ("founder", "relay")
HOMES: Final = ("alice", "bob", "carol")
CLIENT: Final = "client"
HOME_MEMORY: Final = "450MiB"
"""Room for less than half of the model."""
BEGINNING_S: Final = 120.0
"""Until the first answer, so that what never comes is said early."""
WHOLE_S: Final = 420.0
"""For everything, so that what hangs fails."""
REQUEST_S: Final = 45.0
"""A request that has not ended by then hangs."""
BACK_S: Final = 15.0
"""How soon after each event there must be answers again."""
WATCH_S: Final = 20.0
"""How long after each event the requests are watched, at least."""
WATCHED: Final = 2
"""So many answers must come after each event before the next one."""
UNDER_WAY: Final = 4
"""Pieces of an answer that have come when something happens to it."""
LOOK_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Event:
    """What happened, and how the requests fared until the next event. Times are from the event, in seconds.

    `failed_last_s`: when a request failed last, None where none did. `worked_again_s`: when, after that, the next token
    came of an answer that was complete and right. `longest_gap_s`: for how long a token was waited for in such answers.
    `requests` ended until the next event, `errors` are what those that failed said.
    """

    what: str
    at_s: float
    failed_last_s: float | None
    worked_again_s: float | None
    longest_gap_s: float
    requests: int
    errors: tuple[str, ...]

    @property
    def is_back(self) -> bool:
        """Whether answers came again soon enough."""
        return self.worked_again_s is not None and self.worked_again_s <= BACK_S


@dataclass(frozen=True, slots=True)
class Story:
    """How it went. Times are from the start of the three peers, in seconds. `exact`: of each answer that came."""

    covered_s: float
    answer_s: float
    exact: bool
    hung: int
    longest_request_s: float
    events: tuple[Event, ...]
    paths: dict[str, str]
    """Between the three peers, at the end."""

    @property
    def failure(self) -> str | None:
        """What is not as it must be."""
        if not self.exact:
            return "an answer was wrong"
        if self.hung:
            return f"{self.hung} requests hung"
        late = [event.what for event in self.events if not event.is_back]
        return f"answers did not come again within {BACK_S:.0f} s: {', '.join(late)}" if late else None


class _Requests:
    """A client that asks all the time. `run` is its lifetime."""

    def __init__(self, hosted: HostedSwarm, question: Question) -> None:
        self.told: list[Told] = []
        self.hung = 0
        self._hosted = hosted
        self._question = question
        self._is_under_way = False

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            asked_at = trio.current_time()
            with trio.move_on_after(REQUEST_S) as scope:
                self.told.append(await self._hosted.ask(CLIENT, self._question, self._count))
            if scope.cancelled_caught:
                self.hung += 1
                now = trio.current_time()
                self.told.append(Told("", (), asked_at, now, f"no answer and no error within {REQUEST_S:.0f} s"))
            self._is_under_way = False

    def _count(self, pieces: int) -> None:
        self._is_under_way = UNDER_WAY <= pieces < TOKENS

    async def wait_under_way(self) -> None:
        """Wait until an answer is coming."""
        while True:
            if self._is_under_way:
                return
            await trio.sleep(LOOK_S)

    async def wait_answers_after(self, at: float) -> None:
        """Wait until answers came that were asked for after that moment, or it is clear that they do not."""
        with trio.move_on_after(REQUEST_S + WATCH_S):
            while True:
                right = sum(told.asked_at > at and not told.problem for told in self.told)
                if right >= WATCHED and trio.current_time() >= at + WATCH_S:
                    return
                await trio.sleep(LOOK_S)


async def tell(description: Description) -> Story:
    """Let it happen on the network `story`."""
    (question,) = await prepare_questions((PROMPT, TOKENS))
    async with open_hosted(description) as hosted:
        with trio.fail_after(WHOLE_S):
            await hosted.found("founder")
            await hosted.join("relay", memory="8MiB")
            began_at = trio.current_time()
            for home in HOMES:
                await hosted.join(home, memory=HOME_MEMORY)
            with trio.fail_after(BEGINNING_S):
                covered_at = await _wait_covered(hosted)
                first = await hosted.ask_until_answered(CLIENT, question)
            requests = _Requests(hosted, question)
            happened: list[tuple[str, float]] = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(requests.run)
                for what, do in _events(hosted):
                    await requests.wait_under_way()
                    happened.append((await do() or what, trio.current_time()))
                    await requests.wait_answers_after(happened[-1][1])
                nursery.cancel_scope.cancel()
            return Story(
                covered_s=round(covered_at - began_at, 2),
                answer_s=round(first.ended_at - began_at, 2),
                exact=not any("wrongly" in told.problem for told in requests.told),
                hung=requests.hung,
                longest_request_s=round(max(told.ended_at - told.asked_at for told in requests.told), 2),
                events=tuple(_events_told(happened, requests.told, began_at)),
                paths={f"{a}-{b}": await hosted.path(a, b) for a in HOMES for b in HOMES if a < b},
            )


async def _wait_covered(hosted: HostedSwarm) -> float:
    while True:
        with suppress(PeerUnavailableError):  # it is still starting
            if await hosted.covered(PUBLIC[0]) == LAYERS:
                return trio.current_time()
        await trio.sleep(LOOK_S)


def _events(hosted: HostedSwarm) -> Iterator[tuple[str, Callable[[], Awaitable[str | None]]]]:
    """What happens, in order; each gives a better name of itself where it knows one."""

    async def kill_relay() -> str:
        carried = {name: await _carried(hosted, name) for name in PUBLIC}
        busiest = max(PUBLIC, key=lambda name: (carried[name], name == "relay"))
        await hosted.peers[busiest].kill()
        return f"{busiest}, which relayed {carried[busiest]} of {sum(carried.values())} circuits, is killed"

    async def forget() -> None:
        await hosted.network.routers["home-a"].forget_mappings()

    async def readdress() -> None:
        await hosted.network.readdress("home-b")

    yield "the relay is killed", kill_relay
    yield "the router of alice forgets its mappings", forget
    yield "the home of bob gets another address", readdress


async def _carried(hosted: HostedSwarm, name: str) -> int:
    relaying: dict[str, Any] | None = (await hosted.peers[name].status())["paths"]["relaying"]
    return 0 if relaying is None else int(relaying["circuits"])


def _events_told(happened: Sequence[tuple[str, float]], told: Sequence[Told], began_at: float) -> Iterator[Event]:
    """How the requests fared that ended after each event and before the next."""
    for number, (what, at) in enumerate(happened):
        until = happened[number + 1][1] if number + 1 < len(happened) else float("inf")
        since = [one for one in told if at < one.ended_at <= until]
        failed = [one for one in since if one.problem]
        last_at = max((one.ended_at for one in failed), default=at)
        right = [
            piece_at
            for one in since
            if not one.problem and one.ended_at > last_at
            for piece_at in one.pieces_at
            if piece_at > last_at
        ]
        yield Event(
            what=what,
            at_s=round(at - began_at, 2),
            failed_last_s=round(last_at - at, 2) if failed else None,
            worked_again_s=round(min(right) - at, 2) if right else None,
            longest_gap_s=round(max((one.longest_gap_s for one in since if not one.problem), default=0.0), 2),
            requests=len(since),
            errors=tuple(one.problem for one in failed),
        )


async def run(description: Description) -> Outcome:
    """The scenario `story`."""
    story = await tell(description)
    lines = [
        f"covered after {story.covered_s:.1f} s, the first answer after {story.answer_s:.1f} s",
        f"longest request {story.longest_request_s:.1f} s, {story.hung} hung",
        f"paths at the end: {', '.join(f'{pair} {path}' for pair, path in story.paths.items())}",
    ]
    for event in story.events:
        again = f"after {event.worked_again_s:.1f} s" if event.worked_again_s is not None else "never"
        failed = f", {len(event.errors)} failed, the last after {event.failed_last_s:.1f} s" if event.errors else ""
        lines.append(
            f"{event.what}: {event.requests} requests{failed}; "
            f"tokens again {again}, waited for {event.longest_gap_s:.1f} s at most"
        )
        lines += [f"    {error}" for error in event.errors]
    return Outcome(asdict(story), lines, story.failure)
