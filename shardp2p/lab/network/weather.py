"""Bad weather: an exact answer between two homes over lines and routers that make it hard.

What the network does not tell by itself, by its name: how long the edge is left idle before a second answer, at which
port the founder listens, and which way must be found.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

import trio

from shardp2p.errors import ConfigError
from shardp2p.lab.network.description import Description
from shardp2p.lab.network.hosted import PORT, HostedSwarm, open_hosted, prepare_questions
from shardp2p.lab.network.scenario import Outcome

PROMPT: Final = "Name three rivers of Europe, and say in one sentence each where it flows and what it is known for."
TOKENS: Final = 12
WHOLE_S: Final = 240.0
"""For everything, so that what hangs fails."""
IDLE_S: Final = 60.0
"""Twice as long as a forgetful router keeps a mapping."""
LOOK_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Weather:
    """What came of it. `path` is the expected one if that is there soon after the second answer; `idle_paths` are all
    that were seen while the edge was idle; times are in seconds.
    """

    exact: bool
    path: str
    expected: str
    answer_s: float
    final_path_s: float
    idle_s: float
    idle_paths: tuple[str, ...]

    @property
    def failure(self) -> str | None:
        """What is not as it must be."""
        if not self.exact:
            return "an answer is not exact"
        if self.path != self.expected:
            return f"the path is {self.path}, and it must be {self.expected}"
        if self.idle_paths not in ((), (self.expected,)):
            return f"the idle edge did not stay {self.expected}: {', '.join(self.idle_paths)}"
        return None


async def endure(description: Description, idle_s: float | None = None) -> Weather:
    """Let two peers answer, wait, and answer again, on a network of a relay and two homes."""
    homes = [name for name, host in description.hosts.items() if host.behind]
    if len(homes) != 2 or "relay" not in description.hosts:
        raise ConfigError("this scenario wants a network of a host relay and two hosts behind routers")
    allowed = [router.allow_out for router in description.routers.values() if router.allow_out is not None]
    port = allowed[0][0] if allowed else PORT
    expected = "relayed" if allowed else "punched"
    if idle_s is None:
        forgets = any(router.mapping_timeout_s is not None for router in description.routers.values())
        idle_s = IDLE_S if forgets else 0.0
    (question,) = await prepare_questions((PROMPT, TOKENS))
    async with open_hosted(description, seed=1) as hosted:
        with trio.fail_after(WHOLE_S + idle_s):
            await hosted.found("relay", port=port)
            began_at = trio.current_time()
            await hosted.join_halves(*homes)
            first = await hosted.ask_until_answered("relay", question)
            final_at = await hosted.wait_path(homes[0], homes[1], {expected})
            idle_paths = await _paths_while_idle(hosted, homes, idle_s)
            second = await hosted.ask("relay", question)
            return Weather(
                exact=not (first.problem or second.problem),
                path=await hosted.path_within(homes[0], homes[1], expected),
                expected=expected,
                answer_s=round(first.ended_at - began_at, 2),
                final_path_s=round(final_at - began_at, 2),
                idle_s=idle_s,
                idle_paths=idle_paths,
            )


async def _paths_while_idle(hosted: HostedSwarm, homes: list[str], idle_s: float) -> tuple[str, ...]:
    seen: dict[str, None] = {}
    with trio.move_on_after(idle_s):
        while idle_s:
            seen[await hosted.path(homes[0], homes[1])] = None
            await trio.sleep(LOOK_S)
    return tuple(seen)


async def run(description: Description) -> Outcome:
    """The scenario `weather`."""
    weather = await endure(description)
    figures = asdict(weather)
    return Outcome(figures, [f"{name:14}  {value}" for name, value in figures.items()], weather.failure)
