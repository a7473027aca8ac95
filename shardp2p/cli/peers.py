"""`shardp2p peers`: who is live in the swarm, and what each peer says of itself."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from shardp2p.cli import options
from shardp2p.cli.interrupts import interrupts
from shardp2p.cli.option_sets import SeeOptions, taking
from shardp2p.cli.output import write_json

if TYPE_CHECKING:
    from shardp2p.cli.screen import Draw
    from shardp2p.cli.seeing import Where


@taking(SeeOptions)
def peers(seen: SeeOptions, is_watching: options.Watch = False) -> None:
    """Show who is live in the swarm."""
    where = seen.where(needs_links=True)
    interrupts.run(partial(_run, where, is_watching=is_watching, as_json=seen.as_json))


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
