"""`shardp2p coverage`: which layers of a model are there now, on whom, and how fast."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from shardp2p.cli import options
from shardp2p.cli.coverage_view import coverage_lines, coverage_object
from shardp2p.cli.interrupts import interrupts
from shardp2p.cli.output import write_json
from shardp2p.cli.screen import REFRESH_S, Draw, show, watch
from shardp2p.cli.seeing import Look, Where, digest_in, open_sight
from shardp2p.cli.swarm_views import Sight
from shardp2p.config import load_settings
from shardp2p.scheduler.coverage import ModelCoverage, SeenModel, coverage_of, find_model, models_of
from shardp2p.telemetry import configure_logging

if TYPE_CHECKING:
    from rich.text import Text

LINES_BESIDE = 8
"""What stands above and below the bars."""


def coverage(
    model: options.SeenModel,
    join: options.Join = None,
    peer: options.SeenPeers = None,
    from_dht: options.FromDht = False,
    is_watching: options.Watch = False,
    data_dir: options.DataDir = None,
    as_json: options.AsJson = False,
    log_level: options.LogLevel = None,
) -> None:
    """Show which layers of a model are there now, on whom, and how fast."""
    configure_logging(log_level or "error")
    paths = load_settings(data_dir=data_dir).paths
    where = Where(paths, join, tuple(peer or ()), from_dht, digest_in(model))
    interrupts.run(partial(_run, where, model, is_watching=is_watching, as_json=as_json))


async def _run(where: Where, asked: str, *, is_watching: bool, as_json: bool) -> None:
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

    async def draw() -> Draw:
        return _drawn(await look(), model)

    if not as_json:
        await watch(draw)
    interrupts.is_serving = True
    while True:
        write_json(_object(await look(), model))
        await trio.sleep(REFRESH_S)


def _drawn(sight: Sight, model: SeenModel) -> Draw:
    return partial(_lines, coverage_of(model, sight.seen), sight)


def _lines(coverage: ModelCoverage, sight: Sight, columns: int, rows: int) -> Sequence[Text]:
    return coverage_lines(coverage, sight.rtts_s, columns, max(1, rows - LINES_BESIDE))


def _object(sight: Sight, model: SeenModel) -> dict[str, Any]:
    return {**coverage_object(coverage_of(model, sight.seen)), **sight.head()}
