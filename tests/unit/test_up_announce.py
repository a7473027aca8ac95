"""What `up` says while it waits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from shardp2p.cli.up_swarm import announce
from shardp2p.errors import OverloadedError

WHY = "no place: not even one layer of toy fits: offer --memory 47MiB or more; " + 20 * "a long account "


def keeper(trouble: str, *, has_no_place: bool = False) -> Any:
    return SimpleNamespace(
        state="placing",
        trouble=trouble,
        waits_for=f"{trouble}; looking again in 5 s",
        has_no_place=has_no_place,
        is_ready=trio.Event(),
        status=dict,
    )


async def test_what_is_in_the_way_is_told_in_full_and_once_for_each_reason(
    autojump_clock: trio.testing.MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    serving = keeper(f"{WHY}\x1b[2J")
    start = cast(Any, SimpleNamespace(is_once=False, as_json=True))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(announce, cast(Any, None), serving, start)
        await trio.sleep(10)
        serving.trouble = "loading failed: the disk is full"
        await trio.sleep(10)
        serving.is_ready.set()
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"placing: {WHY}\N{REPLACEMENT CHARACTER}[2J", "placing: loading failed: the disk is full"]


async def test_who_is_to_start_once_ends_where_no_layer_fits() -> None:
    start = cast(Any, SimpleNamespace(is_once=True, as_json=True))
    with pytest.raises(OverloadedError) as caught:
        await announce(cast(Any, None), keeper(WHY, has_no_place=True), start)
    assert (caught.value.message, caught.value.exit_code) == (WHY, 3)
