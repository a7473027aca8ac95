"""Who is asked by `generate` and `chat`: the ring of the peers that were named, else the swarm that was joined.

Where a swarm is named with --join, peers that are named too are those of it to dial first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial

from shardp2p.cli.asked_ring import open_ring_asker
from shardp2p.cli.asked_swarm import open_swarm_asker
from shardp2p.cli.asking import Asker, Wish
from shardp2p.cli.client_identity import client_place
from shardp2p.cli.output import note, one_line
from shardp2p.config import Settings
from shardp2p.errors import ConfigError
from shardp2p.identity.joined import JoinedSwarms
from shardp2p.weights.store import StoredModel

OpenAsker = Callable[[], AbstractAsyncContextManager[Asker]]


@contextmanager
def ready_to_ask(join: str | None, wish: Wish, model: StoredModel, settings: Settings) -> Iterator[OpenAsker]:
    """What opens an asker, within the context. Raises: ConfigError when there is nobody."""
    rows = settings.up.cache_rows
    if join is None and wish.peers:
        if wish.only or wish.blocked:
            raise ConfigError(
                "--only and --block choose among the peers of a swarm: say which with --join NAME|TOKEN|FILE; of a "
                "ring, name those you want"
            )
        if swarms := JoinedSwarms(settings.paths.swarms_dir).names():
            note(_told_ring(len(wish.peers), swarms))
        yield partial(open_ring_asker, wish, model, rows)
        return
    with client_place(join, settings.paths) as place:
        if place is None:
            raise ConfigError(
                "this machine's clients are in no swarm, and no peer is named: join a swarm with --join TOKEN|FILE, or "
                "name each peer of a ring with --peer ADDRESS, as its `shardp2p up` prints it; "
                f"looked in {settings.paths.swarms_dir}"
            )
        yield partial(open_swarm_asker, wish, model, rows, place, settings.paths)


def _told_ring(count: int, swarms: Sequence[str]) -> str:
    """Who is asked, and how to ask a swarm instead that was joined."""
    ring = "the peer that is named" if count == 1 else f"the ring of the {count} peers that are named"
    return f"asking {ring}, and no swarm; to ask {one_line(' or '.join(swarms))}, add --join {one_line(swarms[0])}"
