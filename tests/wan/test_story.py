"""The README's story, and what may befall it."""

from __future__ import annotations

import pytest

from shardp2p.lab.network.catalog import read_network
from shardp2p.lab.network.story import tell

pytestmark = pytest.mark.usefixtures("demo_model")


@pytest.mark.soak
async def test_requests_go_on_when_a_relay_dies_a_router_forgets_and_an_address_changes() -> None:
    """The 15 seconds of `is_back` are what is promised."""
    story = await tell(read_network("story"))
    assert story.exact
    assert story.hung == 0
    assert len(story.events) == 3
    assert all(event.is_back for event in story.events), story.events
