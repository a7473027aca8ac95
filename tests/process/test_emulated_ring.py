"""An emulated ring of real processes: every scheme answers as the language itself does, over ways that take time."""

from __future__ import annotations

from shardp2p.lab.emulation.profile import parse_profile
from shardp2p.lab.emulation.wan import measure_wan
from shardp2p.lab.network.catalog import read_text


async def test_every_scheme_is_exact_over_a_real_ring() -> None:
    ring = parse_profile("gpt-oss", read_text("gpt-oss"))
    names = ("plain", "flush", "sync_tree", "tree")
    told = (await measure_wan(ring, 0.74, names=names, rounds=1, tokens=48)).report()
    assert {name: arm["exact"] for name, arm in told["arms"].items()} == dict.fromkeys(names, True)
    assert told["hop_ms"] > 0
    assert told["lap_ms"] >= 1e3 * ring.plain_lap_s  # no way is shorter than it should be
    assert told["arms"]["tree"]["accepted_per_lap"] > told["arms"]["plain"]["accepted_per_lap"]
    assert all(arm["stage_overhead_ms"] > 0 for arm in told["arms"].values())
    assert told["tree_over"].keys() == {"plain", "flush", "sync_tree", "bound"}


async def test_a_hop_is_charged_where_plain_decoding_is_not_asked_for() -> None:
    ring = parse_profile("gpt-oss", read_text("gpt-oss"))
    told = (await measure_wan(ring, 0.74, names=("tree",), rounds=1, tokens=32)).report()
    assert [*told["arms"]] == ["tree"]
    assert told["hop_ms"] > 0
    assert told["lap_ms"] >= 1e3 * ring.plain_lap_s
