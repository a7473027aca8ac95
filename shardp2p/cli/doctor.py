"""`shardp2p doctor`: whether a peer can run on this machine, how others would reach it, and what to do about it."""

from __future__ import annotations

import typer

from shardp2p.cli import options
from shardp2p.cli.interrupts import interrupts
from shardp2p.cli.output import write, write_json
from shardp2p.cli.progress import progress_bar
from shardp2p.cli.quick_imports import quick_imports
from shardp2p.config import load_settings, prepare_compute, with_flags
from shardp2p.telemetry import configure_logging

BLOCKED = 3
"""The exit code where something cannot work as it is."""


def doctor(
    join: options.Join = None,
    peer: options.SeenPeers = None,
    listen: options.Listen = None,
    announce: options.Announce = None,
    device: options.Device = None,
    data_dir: options.DataDir = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
    log_level: options.LogLevel = None,
) -> None:
    """Check whether a peer can run here and how others reach it; exit code 3 when something cannot work."""
    configure_logging(log_level or "error")
    everything = load_settings(config, data_dir=data_dir)
    settings = with_flags(everything.up, listen=listen, announce=announce, device=device)
    prepare_compute()
    with quick_imports():
        from shardp2p.cli.doctor_checks import Asked, examine
        from shardp2p.cli.doctor_findings import is_blocked, lines_of, object_of

    asked = Asked(settings, everything.paths, join, tuple(peer or ()))
    with progress_bar() as report:
        report("looking at this machine and its network", 0, 0)
        findings = interrupts.run(lambda: examine(asked))
    if as_json:
        write_json(object_of(findings))
    else:
        write("\n".join(lines_of(findings)) + "\n")
    if is_blocked(findings):
        raise typer.Exit(BLOCKED)
