"""`shardp2p peers`: who is live in the swarm, and what each peer says of itself."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from shardp2p.cli import options
from shardp2p.cli.interrupts import interrupts
from shardp2p.cli.output import write_json
from shardp2p.config import load_settings
from shardp2p.telemetry import configure_logging

if TYPE_CHECKING:
    from shardp2p.cli.screen import Draw
    from shardp2p.cli.seeing import Where


def peers(
    join: options.Join = None,
    peer: options.SeenPeers = None,
    from_dht: options.FromDht = False,
    is_watching: options.Watch = False,
    data_dir: options.DataDir = None,
    as_json: options.AsJson = False,
    log_level: options.LogLevel = None,
) -> None:
    """Show who is live in the swarm."""
    configure_logging(log_level or "error")
    paths = load_settings(data_dir=data_dir).paths
    from shardp2p.cli.seeing import Where

    where = Where(paths, join, tuple(peer or ()), from_dht, needs_links=True)
    interrupts.run(partial(_run, where, is_watching=is_watching, as_json=as_json))


async def _run(where: Where, *, is_watching: bool, as_json: bool) -> None:
    from shardp2p.cli.peers_view import peer_lines, peers_object
    from shardp2p.cli.screen import show, watch
    from shardp2p.cli.seeing import open_sight

    async with open_sight(where) as look:

        async def draw() -> Draw:
            return partial(peer_lines, await look())

        if as_json:
            write_json(peers_object(await look()))
        elif is_watching:
            await watch(draw)
        else:
            show(await draw())
