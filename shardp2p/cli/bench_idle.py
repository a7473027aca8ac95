"""`shardp2p bench idle`: what a peer costs that serves and has nothing to do."""

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


def idle(
    peers: Annotated[int, typer.Option("--peers", help="Processes of the swarm.")] = 8,
    settle_s: Annotated[float, typer.Option("--settle", help="Seconds from when all serve until it counts.")] = 120.0,
    measured_s: Annotated[float, typer.Option("--measured", help="Seconds that count.")] = 60.0,
    model: Annotated[str, typer.Option("--model", help="A model in the store.")] = "smollm2",
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Let a swarm on this machine serve nobody, and say what share of a core each of its peers takes."""
    configure_logging("warning")
    for name, value, least, most in (
        ("--peers", peers, 1, 64),
        ("--settle", settle_s, 0, 3600),
        ("--measured", measured_s, 1, 3600),
    ):
        if not least <= value <= most:
            raise ConfigError(f"{name} is {value:g}; it must be between {least} and {most}")
    from shardp2p.lab.idle import CACHE_ROWS, measure_idle
    from shardp2p.lab.swarm_children import PeerOptions
    from shardp2p.weights.store import ModelStore

    models_dir = load_settings(data_dir=data_dir).paths.models_dir
    with progress_bar() as report:
        stored = ModelStore(models_dir).resolve(model, report)
        options = PeerOptions(models_dir, stored.name, cache_rows=CACHE_ROWS)
        cost = interrupts.run(
            partial(measure_idle, options, peers=peers, settle_s=settle_s, measured_s=measured_s, progress=report)
        )
    measured = {"model": stored.name, "peers": peers, "settle_s": settle_s, "measured_s": measured_s} | cost.report()
    if as_json:
        write_json(measured)
    else:
        write(describe(measured))


def describe(measured: dict[str, Any]) -> str:
    """What `idle` measured, for a person to read."""
    lines = [f"{measured['peers']} peers of {measured['model']} that serve nobody"]
    lines += [
        f"  {share:5.2f} % of a core, {wakes:4.1f} wakes a second, {neighbours} neighbours"
        for share, wakes, neighbours in zip(
            measured["core_percent"], measured["wakes_s"], measured["neighbours"], strict=True
        )
    ]
    lines.append(f"mean {measured['core_percent_mean']:.2f} %, most {measured['core_percent_max']:.2f} %")
    return "\n".join(lines) + "\n"
