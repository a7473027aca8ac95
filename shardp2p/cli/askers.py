"""Who is asked by `generate` and `chat`: the swarm that clients here are in, else the peers that were named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial

from shardp2p.cli.asked_ring import open_ring_asker
from shardp2p.cli.asked_swarm import open_swarm_asker
from shardp2p.cli.asking import Asker, Wish
from shardp2p.cli.client_identity import client_place
from shardp2p.config import Settings
from shardp2p.errors import ConfigError
from shardp2p.weights.store import StoredModel

OpenAsker = Callable[[], AbstractAsyncContextManager[Asker]]


@contextmanager
def ready_to_ask(join: str | None, wish: Wish, model: StoredModel, settings: Settings) -> Iterator[OpenAsker]:
    """What opens an asker, within the context. Raises: ConfigError when there is nobody to ask."""
    rows = settings.up.cache_rows
    with client_place(join, settings.paths) as place:
        if place is not None:
            yield partial(open_swarm_asker, wish, model, rows, place, settings.paths)
        elif not wish.peers:
            raise ConfigError(
                "this machine's clients are in no swarm, and no peer is named: join a swarm with --join TOKEN|FILE, or "
                "name each peer of a ring with --peer ADDRESS, as its `shardp2p up` prints it"
            )
        elif wish.only or wish.blocked:
            raise ConfigError("--only and --block choose among the peers of a swarm; of a ring, name those you want")
        else:
            yield partial(open_ring_asker, wish, model, rows)
