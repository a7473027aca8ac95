"""`shardp2p coverage`: which layers of a model are there now, on whom, and how fast."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from shardp2p.cli import options
from shardp2p.cli.interrupts import interrupts
from shardp2p.cli.option_sets import SeeOptions, taking
from shardp2p.cli.output import write_json

if TYPE_CHECKING:
    from shardp2p.cli.screen import Draw
    from shardp2p.cli.seeing import Look, Where
    from shardp2p.cli.sight import Sight
    from shardp2p.scheduler.coverage import SeenModel


@taking(SeeOptions)
def coverage(seen: SeeOptions, model: options.SeenModel, is_watching: options.Watch = False) -> None:
    """Show which layers of a model are there now, on whom, and how fast."""
    where = seen.where(model)
    interrupts.run(partial(_run, where, model, is_watching=is_watching, as_json=seen.as_json))


async def _run(where: Where, asked: str, *, is_watching: bool, as_json: bool) -> None:
    from shardp2p.cli.screen import show
    from shardp2p.cli.seeing import open_sight
    from shardp2p.scheduler.coverage import find_model, models_of

    async with open_sight(where) as look:
        sight = await look()
        found = find_model(asked, models_of(one.record for one in sight.seen))
        if is_watching:
            await _watch(look, found, as_json=as_json)
        elif as_json:
            write_json(_object(sight, found))
        else:
            show(_drawn(sight, found))


async def _watch(look: Look, model: SeenModel, *, as_json: bool) -> None:
    import trio

    from shardp2p.cli.screen import REFRESH_S, watch

    async def draw() -> Draw:
        return _drawn(await look(), model)

    if not as_json:
        await watch(draw)
    interrupts.is_serving = True
    while True:
        write_json(_object(await look(), model))
        await trio.sleep(REFRESH_S)


def _drawn(sight: Sight, model: SeenModel) -> Draw:
    from shardp2p.cli.coverage_view import screen_lines
    from shardp2p.scheduler.coverage import coverage_of

    return partial(screen_lines, coverage_of(model, sight.seen), sight.rtts_s)


def _object(sight: Sight, model: SeenModel) -> dict[str, Any]:
    from shardp2p.cli.coverage_view import coverage_object
    from shardp2p.scheduler.coverage import coverage_of

    return {**coverage_object(coverage_of(model, sight.seen)), **sight.head()}
