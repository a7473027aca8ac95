"""`shardp2p bench departures`: how soon all peers know who died, left or came back."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from shardp2p.cli.interrupts import interrupts
from shardp2p.cli.options import AsJson, DataDir
from shardp2p.cli.output import write, write_json
from shardp2p.cli.progress import progress_bar
from shardp2p.config import load_settings
from shardp2p.errors import ConfigError
from shardp2p.telemetry import configure_logging

WORDS = {
    "killed_s": "killed, until nobody sees it",
    "started_again_s": "started again, until all see it",
    "left_s": "told to leave, until nobody sees it",
    "restarted_at_once_s": "killed and started at once, until all see the new run",
}


def departures(
    peers: Annotated[int, typer.Option("--peers", help="Processes of the swarm.")] = 8,
    rounds: Annotated[int, typer.Option("--rounds", help="How often each is tried.")] = 3,
    model: Annotated[str, typer.Option("--model", help="A model in the store.")] = "smollm2",
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Kill, stop and restart peers of a swarm on this machine, and say how soon all the others know."""
    configure_logging("warning")
    for name, value, least, most in (("--peers", peers, 3, 64), ("--rounds", rounds, 1, 100)):
        if not least <= value <= most:
            raise ConfigError(f"{name} is {value}; it must be between {least} and {most}")
    from shardp2p.lab.departures import measure_departures
    from shardp2p.lab.swarm_children import PeerOptions
    from shardp2p.weights.store import ModelStore

    models_dir = load_settings(data_dir=data_dir).paths.models_dir
    with progress_bar() as report:
        stored = ModelStore(models_dir).resolve(model, report)
        options = PeerOptions(models_dir, stored.name, cache_rows=1024)
        found = interrupts.run(partial(measure_departures, options, peers=peers, rounds=rounds, progress=report))
    measured = {"model": stored.name, "peers": peers, "rounds": rounds} | found.report()
    if as_json:
        write_json(measured)
    else:
        write(describe(measured))


def describe(measured: dict[str, Any]) -> str:
    """What `departures` measured, for a person to read."""
    lines = [f"a swarm of {measured['peers']} processes; seconds in {measured['rounds']} rounds"]
    lines += [f"  {words}: {', '.join(map(str, measured[name]))}" for name, words in WORDS.items()]
    return "\n".join(lines) + "\n"
