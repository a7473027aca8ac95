"""A plan covers the layers, and names a stage so that its reader finds it."""

from __future__ import annotations

import pytest

from shardp2p.errors import LocalProtocolError
from shardp2p.scheduler.plan import Plan, Stage
from shardp2p.vocabulary import LayerRange, ModelId, PeerId


def plan(*ranges: str) -> Plan:
    stages = tuple(Stage(PeerId(f"peer-{n}"), LayerRange.parse(text)) for n, text in enumerate(ranges, 1))
    return Plan(ModelId("tiny"), "ab" * 32, "float32", 100, stages)


def test_a_stage_is_called_by_its_place_and_its_layers() -> None:
    assert plan("0:2", "2:5").describe(PeerId("peer-2")) == "stage 2 of 2 (layers 2:5, peer peer-2)"
    assert plan("0:2").describe(PeerId("stranger")) == "peer stranger"


@pytest.mark.parametrize("ranges", [("1:3",), ("0:2", "3:5"), ("0:3", "2:5"), ("0:2", "0:2")])
def test_a_gap_or_an_overlap_is_our_bug(ranges: tuple[str, ...]) -> None:
    with pytest.raises(LocalProtocolError, match="a gap or an overlap"):
        plan(*ranges)
