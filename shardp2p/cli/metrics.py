"""`shardp2p metrics`: the figures of the peers of this data directory that run now, for a monitor to collect."""

from __future__ import annotations

from shardp2p.cli import options
from shardp2p.cli.output import write
from shardp2p.cli.status import note_silent, running_statuses
from shardp2p.telemetry import configure_logging


def metrics(data_dir: options.DataDir = None, log_level: options.LogLevel = None) -> None:
    """Print the figures of this machine's running peer in the text format of Prometheus."""
    configure_logging(log_level or "error")
    told = running_statuses(data_dir)
    note_silent(told)
    from shardp2p.cli.metrics_view import metrics_text

    write(metrics_text(tuple(told.answers.values()), tuple(told.silent)))
