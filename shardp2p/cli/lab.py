"""`shardp2p lab`: networks on this machine, and swarms in this process alone, to see what the real ones would do."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardp2p.cli import schemes
from shardp2p.cli.interrupts import interrupts
from shardp2p.cli.options import AsJson
from shardp2p.cli.output import note, write, write_json
from shardp2p.errors import ConfigError, IntegrityError

if TYPE_CHECKING:
    from shardp2p.lab.network.description import Description
    from shardp2p.lab.network.lab import Network

app = typer.Typer(name="lab", help="Emulate networks, simulate swarms, and break them.", no_args_is_help=True)


@app.callback()
def _lab() -> None:
    """Emulate networks, simulate swarms, and break them."""


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


@app.command("list")
def list_networks(as_json: AsJson = False) -> None:
    """Show the networks that are shipped, and the scenarios that can be run."""
    from shardp2p.lab.network.catalog import shipped_networks
    from shardp2p.lab.network.scenario import SCENARIOS

    networks = shipped_networks()
    if as_json:
        write_json(
            {
                "networks": [
                    {"name": name, "hosts": list(it.hosts), "routers": list(it.routers), "about": it.about}
                    for name, it in networks.items()
                ],
                "scenarios": [
                    {"name": name, "network": it.network, "about": it.about} for name, it in SCENARIOS.items()
                ],
            }
        )
        return
    width = max(map(len, (*networks, *SCENARIOS)))
    write("networks, for `shardp2p lab up NAME`\n")
    write("".join(f"  {name:{width}}  {network.about}\n" for name, network in networks.items()))
    write("scenarios, for `shardp2p lab run NAME`\n")
    write("".join(f"  {name:{width}}  {scenario.about}\n" for name, scenario in SCENARIOS.items()))


@app.command("up")
def up(
    network: Annotated[str, typer.Argument(metavar="FILE|NAME", help="A description, or the name of a shipped one.")],
    seed: Annotated[int, typer.Option("--seed", help="The same seed loses the same packets.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Build a network of hosts and routers on this machine, and remove it on Ctrl-C."""
    from shardp2p.lab.network.catalog import read_network

    interrupts.run(partial(_hold_up, read_network(network), seed, as_json=as_json))


@app.command("run")
def run(
    name: Annotated[str, typer.Argument(help="A scenario; `shardp2p lab list` shows them.", show_default=False)],
    network: Annotated[
        str | None, typer.Option("--network", metavar="FILE|NAME", help="Run it on this network, not on its own.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a scenario on a network of its own, and tell how it went."""
    from shardp2p.lab.network.catalog import read_network
    from shardp2p.lab.network.scenario import find_scenario, run_scenario

    scenario = find_scenario(name)
    description = read_network(network or scenario.network)
    outcome = interrupts.run(partial(run_scenario, scenario, description))
    if as_json:
        write_json({"scenario": name, "network": network or scenario.network, **outcome.figures})
    else:
        write("".join(line + "\n" for line in outcome.lines))
    if outcome.failure is not None:
        raise IntegrityError(outcome.failure)


@app.command("simulate")
def simulate(
    profile: schemes.ProfileName = "glm52",
    accept: schemes.Accept = 0.74,
    arm: schemes.Schemes = None,
    rounds: schemes.Rounds = 3,
    tokens: schemes.Tokens = 200,
    seed: schemes.Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Compare drafting schemes on a simulated ring: the real machines, and a clock that does not wait."""
    ring, names = schemes.choose(profile, accept, arm, rounds, tokens)
    from shardp2p.lab.emulation.comparison import compare_simulated

    compared = compare_simulated(ring, accept, names=names, rounds=rounds, tokens=tokens, seed=seed)
    if as_json:
        write_json(compared)
    else:
        write(schemes.describe_arms(compared))


async def _hold_up(description: Description, seed: int, *, as_json: bool) -> None:
    import trio

    from shardp2p.lab.network.lab import open_network

    async with open_network(description, seed=seed) as network:
        interrupts.is_serving = True  # before anybody can read that we are ready
        if as_json:
            write_json({"hosts": _hosts(network)})
        else:
            write(_table(_hosts(network)))
            note("ready; Ctrl-C removes it")
        await trio.sleep_forever()


def _hosts(network: Network) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "address": host.address,
            "public_address": network.public_address(name),
            "behind": network.description.behind(name),
            "namespaces": list(host.namespaces),
            "enter": host.entering(),
        }
        for name, host in network.hosts.items()
    ]


def _table(hosts: list[dict[str, Any]]) -> str:
    rows = [("host", "address", "seen as", "behind", "run a command inside")]
    rows += [
        (
            host["name"],
            host["address"],
            host["public_address"] if host["public_address"] != host["address"] else "",
            host["behind"] or "",
            " ".join(host["enter"]) + " COMMAND",
        )
        for host in hosts
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "".join("  ".join(map(str.ljust, row, widths)).rstrip() + "\n" for row in rows)
