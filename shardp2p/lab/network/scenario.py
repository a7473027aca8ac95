"""Scenarios that `shardp2p lab run NAME` knows.

A scenario is a module with `async def run(description: Description) -> Outcome`, imported when it is run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from shardp2p.errors import ConfigError
from shardp2p.lab.network.description import Description


@dataclass(frozen=True, slots=True)
class Outcome:
    """`figures` is the JSON object, `lines` what a person reads; `failure` is why it counts as failed, if it does."""

    figures: Mapping[str, Any]
    lines: Sequence[str]
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """What a scenario shows, the module that has it, and the shipped network that it runs on unless told otherwise."""

    about: str
    module: str
    network: str


SCENARIOS: Final[Mapping[str, Scenario]] = {
    "check": Scenario(
        "does a network have the delays, rates and loss that it asks for?", "shardp2p.lab.network.check", "check"
    ),
    "nat-matrix": Scenario(
        "which way do two peers find to each other, behind every kind of router?",
        "shardp2p.lab.network.nat_matrix",
        "nat-kinds",
    ),
    "story": Scenario(
        "four homes and a founder: do requests go on when a relay dies, a router forgets, an address changes?",
        "shardp2p.lab.network.story",
        "story",
    ),
    "path-switch": Scenario(
        "is an answer exact, and how long does it stop, while its path moves from a relay to a hole and back?",
        "shardp2p.lab.network.path_switch",
        "two-homes",
    ),
    "one-home": Scenario(
        "do two peers in one home use its network, also without the line out?",
        "shardp2p.lab.network.one_home",
        "one-home",
    ),
    "weather": Scenario(
        "does an answer come over bad lines and odd routers? with --network narrow, rough-homes, only-443, forgetful",
        "shardp2p.lab.network.weather",
        "forgetful",
    ),
}


def find_scenario(name: str) -> Scenario:
    """The scenario of that name. Raises: ConfigError with those that there are."""
    if name not in SCENARIOS:
        raise ConfigError(f"there is no scenario {name!r}; there is {', '.join(SCENARIOS)}")
    return SCENARIOS[name]


async def run_scenario(scenario: Scenario, description: Description) -> Outcome:
    """Let it run. Raises: what it raises."""
    outcome = await import_module(scenario.module).run(description)
    assert isinstance(outcome, Outcome)
    return outcome
