"""Two peers behind one router, and a founder outside: do they use the network at home, and tell no useless address?

They hold half of the model each. When both have found each other the line of the home is cut, and they must go on
answering: only the network at home can carry that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from ipaddress import IPv4Network
from typing import Final

import trio

from shardp2p.lab.network.description import Description
from shardp2p.lab.network.hosted import HostedSwarm, Question, open_hosted, prepare_questions
from shardp2p.lab.network.scenario import Outcome

PROMPT: Final = "Name three rivers of Europe."
TOKENS: Final = 8
WHOLE_S: Final = 180.0
"""For everything, so that what hangs fails."""
DOCKER: Final = IPv4Network("172.17.0.0/16")


@dataclass(frozen=True, slots=True)
class Home:
    """What came of it. `exact`: of the answer over all lines. `path`: between the two peers."""

    exact: bool
    path: str
    answers_without_line: bool
    addresses: tuple[str, ...]
    """All that any peer has of any."""
    answer_s: float

    @property
    def docker_addresses(self) -> tuple[str, ...]:
        """Those that nobody else can use."""
        return tuple(address for address in self.addresses if _is_docker(address))

    @property
    def failure(self) -> str | None:
        """What is not as it must be."""
        if not self.exact:
            return "the answer is not exact"
        if self.path != "direct" or not self.answers_without_line:
            return f"the two peers are joined {self.path} and do not use the network at home"
        if self.docker_addresses:
            return f"addresses of a Docker bridge are announced: {', '.join(self.docker_addresses)}"
        return None


async def live_at_home(description: Description) -> Home:
    """Let it happen on a network with the hosts relay, desk and shelf, the last two behind the router home."""
    (question,) = await prepare_questions((PROMPT, TOKENS))
    async with open_hosted(description) as hosted:
        with trio.fail_after(WHOLE_S):
            await hosted.found("relay")
            began_at = trio.current_time()
            await hosted.join_halves("desk", "shelf")
            told = await hosted.ask_until_answered("relay", question)
            await hosted.wait_path("desk", "shelf", {"direct"})
            addresses = [address for host in hosted.peers for address in await hosted.addresses(host)]
            return Home(
                exact=not told.problem,
                path=await hosted.path_within("desk", "shelf", "direct"),
                answers_without_line=await _answers_without_line(hosted, question),
                addresses=tuple(sorted(set(addresses))),
                answer_s=round(told.ended_at - began_at, 2),
            )


async def _answers_without_line(hosted: HostedSwarm, question: Question) -> bool:
    """Whether a client at home is answered when nothing comes in or goes out."""
    await hosted.network.cut("home")
    return not (await hosted.ask("desk", question)).problem


def _is_docker(address: str) -> bool:
    return any(part.startswith(str(DOCKER[0]).removesuffix("0.0")) for part in address.split("/"))


def _lines(home: Home) -> Iterator[str]:
    for name, value in asdict(home).items():
        yield f"{name:20}  {' '.join(value) if isinstance(value, tuple) else value}"


async def run(description: Description) -> Outcome:
    """The scenario `one-home`."""
    home = await live_at_home(description)
    return Outcome(asdict(home), list(_lines(home)), home.failure)
