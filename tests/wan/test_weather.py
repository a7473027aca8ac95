"""Answers over bad lines and odd routers."""

from __future__ import annotations

import pytest

from shardp2p.lab.network.catalog import read_network
from shardp2p.lab.network.weather import endure

pytestmark = pytest.mark.usefixtures("demo_model")


@pytest.mark.parametrize("network", ["narrow", "rough-homes"])
async def test_a_hole_is_found_and_used_over_a_bad_line(network: str) -> None:
    weather = await endure(read_network(network))
    assert weather.exact
    assert weather.path == "punched"


async def test_who_may_only_dial_443_is_served_by_a_relay_that_listens_there() -> None:
    weather = await endure(read_network("only-443"))
    assert weather.exact
    assert weather.path == "relayed"


@pytest.mark.soak
async def test_a_hole_through_a_forgetful_router_is_kept_open_while_nobody_asks() -> None:
    weather = await endure(read_network("forgetful"))
    assert weather.exact
    assert weather.idle_paths == ("punched",)
    assert weather.path == "punched"
