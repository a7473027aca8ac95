"""Which commands there are. No command's module brings torch or libp2p; its functions do, when they run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from shardp2p.cli import (
    bench,
    bench_departures,
    bench_idle,
    chat,
    coverage,
    demo,
    doctor,
    generate,
    lab,
    metrics,
    model,
    peers,
    plan_ring,
    status,
    swarm,
    up,
)
from shardp2p.cli.hints import note_data_dir
from shardp2p.cli.output import note, one_line

app = typer.Typer(
    name="shardp2p",
    help="A peer-to-peer swarm that runs a language model too large for any one of its machines.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("demo")(demo.demo)
app.command("up")(up.up)
app.command("generate")(generate.generate)
app.command("chat")(chat.chat)
app.command("coverage")(coverage.coverage)
app.command("peers")(peers.peers)
app.command("status")(status.status)
app.command("metrics")(metrics.metrics)
app.command("plan")(plan_ring.plan)
app.command("doctor")(doctor.doctor)
app.add_typer(model.app)
app.add_typer(swarm.app)
bench.app.command("departures")(bench_departures.departures)
bench.app.command("idle")(bench_idle.idle)
app.add_typer(bench.app)
app.add_typer(lab.app)


def run_command(arguments: Sequence[str]) -> int:
    """Carry out a command line; gives its exit code. Raises what the command raises, usage errors excepted."""
    # typer has its own click or uses the installed one, as its version goes.
    usage_error: type[Exception] = next(k for k in typer.BadParameter.__mro__ if k.__name__ == "ClickException")
    command = typer.main.get_command(app)
    note_data_dir(None)
    try:
        # Not command.main, which would take interrupts and broken pipes for its own business.
        with command.make_context("shardp2p", list(arguments) or ["--help"]) as context:
            command.invoke(context)
    except usage_error as error:
        return _explain_usage(error)
    except typer.Exit as error:
        return error.exit_code
    return 0


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        from importlib.metadata import version

        typer.echo(f"shardp2p {version('shardp2p')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    pass


def _explain_usage(error: Exception) -> int:
    """The one line about a command line that cannot be understood; a group without a command shows its help."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError" and context is not None:
        note(context.get_help())
        return 2
    message: str = error.format_message()  # type: ignore[attr-defined]
    where = context.command_path if context is not None else "shardp2p"
    note(f"shardp2p: error: {one_line(message).rstrip('.')}; see {where} --help")
    return 2
