"""A ring of real stages that are apart: every arm answers as the whole model does, greedily and sampled."""

from __future__ import annotations

from pathlib import Path

from shardp2p.lab.emulation.profile import Ways
from shardp2p.lab.far_answers import FarOrder, measure_far
from shardp2p.vocabulary import ModelId, SamplingParams
from shardp2p.weights.store import ModelStore, StoredModel
from tests.support.models import tiny_llama

WAY_S = 0.004
PEERS = ("client", "s0", "s1")


WAYS = Ways("near", PEERS, {(a, b): WAY_S for a in PEERS for b in PEERS})


def tiny(tmp_path: Path) -> StoredModel:
    return ModelStore(tmp_path / "models").resolve(ModelId(str(tiny_llama(tmp_path / "tiny", layers=4))))


async def test_every_arm_is_exact_and_the_ways_take_their_time(tmp_path: Path) -> None:
    prompts = (("list", "One, two, three."), ("chat", "Well?"))
    order = FarOrder(tiny(tmp_path), WAYS, ("flush", "tree"), rounds=1, tokens=24, prompts=prompts)
    told = (await measure_far(order, data_dir=tmp_path)).report()
    for arms in (told["arms"], told["sampled_arms"]):
        assert {name: arm["exact"] for name, arm in arms.items()} == dict.fromkeys(("plain", "flush", "tree"), True)
    assert told["lap_ms"] >= 1e3 * WAYS.hops_s
    assert told["kinds"].keys() == {"list", "chat"}
    assert [len(one["ratios"]) for one in told["prompts"]] == [2, 2]


async def test_stages_with_weights_laid_out_anew_are_held_against_the_model_as_it_is(tmp_path: Path) -> None:
    greedy = SamplingParams()
    order = FarOrder(
        tiny(tmp_path), WAYS, rounds=1, tokens=24, fast_layout=True, prompts=(("chat", "Well?"),), sampling=greedy
    )
    told = (await measure_far(order, data_dir=tmp_path)).report()
    assert "sampled_arms" not in told
    assert {name: arm["exact"] for name, arm in told["arms"].items()} == {"plain": True, "tree": True}
