"""Two peers behind one router use the network at home."""

from __future__ import annotations

import pytest

from shardp2p.lab.network.catalog import read_network
from shardp2p.lab.network.one_home import live_at_home

pytestmark = pytest.mark.usefixtures("demo_model")


@pytest.mark.parametrize("network", ["one-home", "hairpin-home"])
async def test_peers_in_one_home_need_no_line_out_to_reach_each_other(network: str) -> None:
    home = await live_at_home(read_network(network))
    assert home.exact
    assert home.path == "direct"
    assert home.answers_without_line
    assert any("/ip4/192.168.1." in address for address in home.addresses)
    assert home.docker_addresses == ()
