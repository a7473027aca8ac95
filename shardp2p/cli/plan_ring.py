"""`shardp2p plan`: the ring that a request would take now, the one that would be best, and why each peer is in it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

from typer import Option

from shardp2p.cli import options
from shardp2p.cli.interrupts import interrupts
from shardp2p.cli.option_sets import SeeOptions, taking
from shardp2p.cli.output import write, write_json
from shardp2p.cli.progress import progress_bar
from shardp2p.errors import ShardError

if TYPE_CHECKING:
    from shardp2p.cli.seeing import Where
    from shardp2p.cli.sight import Sight


@taking(SeeOptions)
def plan(
    seen: SeeOptions,
    model: options.SeenModel,
    depth: Annotated[int, Option("--depth", min=1, help="Chunks in the ring at once.")] = 1,
    rows: Annotated[int, Option("--rows", min=0, help="Cache rows that the request needs.")] = 0,
) -> None:
    """Show the ring that a request would take now, the best one if layers could move, and why."""
    where = seen.where(model, needs_links=True)
    from shardp2p.cli.plan_view import make_plans, plan_lines, plans_object
    from shardp2p.scheduler.planning import Goal

    sight = interrupts.run(partial(_see, where))
    with progress_bar() as report:
        report("planning", 0, 0)
        plans = make_plans(sight, model, Goal(in_flight=depth), rows)
    if seen.as_json:
        write_json({**plans_object(plans), **sight.head()})
    else:
        write("\n".join(plan_lines(plans)) + "\n")
    if isinstance(plans.route, ShardError) and isinstance(plans.best, ShardError):
        raise plans.route


async def _see(where: Where) -> Sight:
    from shardp2p.cli.seeing import open_sight

    async with open_sight(where) as look:
        return await look()
