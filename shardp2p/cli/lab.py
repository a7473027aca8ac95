"""`shardp2p lab`: swarms that exist in this process alone, to see what the real ones would do."""

from __future__ import annotations

from typing import Annotated

import typer

from shardp2p.cli.options import AsJson
from shardp2p.cli.output import write, write_json
from shardp2p.errors import ConfigError

app = typer.Typer(name="lab", help="Simulate swarms, and break them.", no_args_is_help=True)


@app.callback()
def _lab() -> None:
    """Simulate swarms, and break them."""


@app.command("churn")
def churn(
    peers: Annotated[int, typer.Option("--peers", help="Peers in the swarm.")] = 1000,
    minutes: Annotated[float, typer.Option("--minutes", help="Simulated time.")] = 60.0,
    layers: Annotated[int, typer.Option("--layers", help="Layers of the model.")] = 80,
    stay_minutes: Annotated[float, typer.Option("--stay-minutes", help="How long a peer stays, on average.")] = 30.0,
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same hour.")] = 0,
    traffic: Annotated[bool, typer.Option(help="Measure gossip too, which takes much longer.")] = False,
    as_json: AsJson = False,
) -> None:
    """Let peers join, crash and leave for an hour: is a layer lost, who moves, what do records cost?"""
    for name, value, least, most in (
        ("--peers", peers, 2, 10_000),
        ("--minutes", minutes, 1, 24 * 60),
        ("--layers", layers, 1, 512),
        ("--stay-minutes", stay_minutes, 1, 24 * 60),
    ):
        if not least <= value <= most:
            raise ConfigError(f"{name} is {value:g}; it must be between {least} and {most}")
    from shardp2p.lab.churn import Churn, ChurnSettings
    from shardp2p.lab.churn_traffic import measure_traffic

    settings = ChurnSettings(
        peers=peers,
        duration_s=60 * minutes,
        layers=layers,
        stay_s=60 * stay_minutes,
        seed=seed,
        start_within_s=min(300.0, 10 * minutes),
    )
    figures = Churn(settings).run().figures()
    if traffic:
        figures |= measure_traffic(settings).figures()
    if as_json:
        write_json(figures)
    else:
        width = max(map(len, figures))
        write("".join(f"{name.replace('_', ' '):{width}}  {value}\n" for name, value in figures.items()))
