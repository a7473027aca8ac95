"""A path that is waited for a while, in place of the one that there happens to be at one moment."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import Mock

import trio

from shardp2p.lab.network.hosted import HostedSwarm


class Swaying(HostedSwarm):
    """A swarm whose one edge is what `paths` says, look by look, and stays what it was last."""

    def __init__(self, *paths: str) -> None:
        super().__init__(Mock(), Mock())
        self._paths: Iterator[str] = iter(paths)
        self._last = "none"

    async def path(self, host: str, other: str) -> str:
        await trio.lowlevel.checkpoint()
        self._last = next(self._paths, self._last)
        return self._last


async def test_a_path_that_is_doubted_for_a_moment_comes_back(autojump_clock: trio.testing.MockClock) -> None:
    assert await Swaying("relayed", "none", "punched", "relayed").path_within("a", "b", "punched") == "punched"


async def test_a_path_that_never_becomes_what_is_wanted_is_told_as_it_is(
    autojump_clock: trio.testing.MockClock,
) -> None:
    begin = trio.current_time()
    assert await Swaying("punched", "relayed").path_within("a", "b", "direct", within_s=5) == "relayed"
    assert trio.current_time() - begin == 5
