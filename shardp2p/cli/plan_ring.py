"""`shardp2p plan`: the ring that a request would take now, the one that would be best, and why each peer is in it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

from typer import Option

from shardp2p.cli import options
from shardp2p.cli.interrupts import interrupts
from shardp2p.cli.output import write, write_json
from shardp2p.cli.progress import progress_bar
from shardp2p.config import load_settings
from shardp2p.errors import ShardError
from shardp2p.telemetry import configure_logging

if TYPE_CHECKING:
    from shardp2p.cli.seeing import Where
    from shardp2p.cli.sight import Sight


def plan(
    model: options.SeenModel,
    depth: Annotated[int, Option("--depth", min=1, help="Chunks in the ring at once.")] = 1,
    rows: Annotated[int, Option("--rows", min=0, help="Cache rows that the request needs.")] = 0,
    join: options.Join = None,
    peer: options.SeenPeers = None,
    from_dht: options.FromDht = False,
    data_dir: options.DataDir = None,
    as_json: options.AsJson = False,
    log_level: options.LogLevel = None,
) -> None:
    """Show the ring that a request would take now, the best one if layers could move, and why."""
    configure_logging(log_level or "error")
    paths = load_settings(data_dir=data_dir).paths
    from shardp2p.cli.plan_view import make_plans, plan_lines, plans_object
    from shardp2p.cli.seeing import Where, digest_in
    from shardp2p.scheduler.planning import Goal

    where = Where(paths, join, tuple(peer or ()), from_dht, digest_in(model), needs_links=True)
    sight = interrupts.run(partial(_see, where))
    with progress_bar() as report:
        report("planning", 0, 0)
        plans = make_plans(sight, model, Goal(in_flight=depth), rows)
    if as_json:
        write_json({**plans_object(plans), **sight.head()})
    else:
        write("\n".join(plan_lines(plans)) + "\n")
    if isinstance(plans.route, ShardError) and isinstance(plans.best, ShardError):
        raise plans.route


async def _see(where: Where) -> Sight:
    from shardp2p.cli.seeing import open_sight

    async with open_sight(where) as look:
        return await look()
