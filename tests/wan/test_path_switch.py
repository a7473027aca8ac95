"""A long answer goes on while its path moves from a relay to a hole and back."""

from __future__ import annotations

import pytest

from shardp2p.lab.network.catalog import read_network
from shardp2p.lab.network.path_switch import switch_paths

pytestmark = pytest.mark.usefixtures("demo_model")


async def test_an_answer_stays_exact_while_its_path_moves_to_a_hole_and_back() -> None:
    """How long tokens wait is a figure: of `shardp2p lab run path-switch`, and below of `make soak`."""
    switch = await switch_paths(read_network("two-homes"))
    assert switch.exact, switch.problem
    assert switch.punched_after_s is not None
    assert switch.relayed_after_s is not None


@pytest.mark.soak
async def test_no_token_is_waited_for_longer_than_two_laps_and_a_second_while_the_path_moves() -> None:
    switch = await switch_paths(read_network("two-homes"))
    assert switch.failure is None
