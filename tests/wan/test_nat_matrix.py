"""A spread of the NAT matrix: each pair of routers finds the way that there is. The whole of it: docs/nat-matrix.md."""

from __future__ import annotations

import pytest

from shardp2p.lab.network.catalog import read_network
from shardp2p.lab.network.nat_matrix import run_cells

pytestmark = pytest.mark.usefixtures("demo_model")

SPREAD = {
    ("open", "cone2"): "direct",
    ("cone", "remapping2"): "punched",
    ("double", "reset2"): "punched",
    ("symmetric", "cone2"): "relayed",
    ("symmetric", "open2"): "direct",
}


async def test_each_pair_of_routers_finds_the_way_that_there_is_and_answers_exactly() -> None:
    cells = await run_cells(read_network("nat-kinds"), list(SPREAD))
    assert {(cell.a, cell.b): cell.path for cell in cells} == SPREAD, [cell.problem for cell in cells]
    assert all(cell.is_right for cell in cells)
