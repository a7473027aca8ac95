"""One identity on two machines, where no lock of a file can tell: the younger process ends, the older one stays."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import trio

from shardp2p.lab.swarm_children import PeerOptions, joined_swarm
from shardp2p.swarm.publisher import Coverage
from shardp2p.weights.store import ModelStore, StoredModel
from tests.process.test_member_faults import Swarm, wait_until
from tests.support.models import tiny_llama

WITHIN_S = 60.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> StoredModel:
    directory = tmp_path_factory.mktemp("model")
    return ModelStore(directory / "models").import_model(tiny_llama(directory / "tiny", layers=4))


async def test_both_notice_and_the_rest_of_the_swarm_keeps_the_older(tmp_path: Path) -> None:
    swarm, elsewhere = Swarm(tmp_path / "here"), Swarm(tmp_path / "elsewhere")
    elsewhere.invite = swarm.invite
    async with swarm.member(1) as one, swarm.member(2, *one.node.addresses()) as older:
        for member in (one, older):
            member.say(Coverage(addresses=member.node.addresses()))
        await wait_until(lambda: len(one.live()) == len(older.live()) == 2)
        started = trio.current_time()
        async with elsewhere.member(2, *one.node.addresses()) as younger:
            younger.say(Coverage(addresses=younger.node.addresses()))
            await wait_until(younger.gossip.twin_seen.is_set)
            await wait_until(older.gossip.twin_seen.is_set)
            assert younger.gossip.has_older_twin
            assert not older.gossip.has_older_twin
        print(f"noticed after {trio.current_time() - started:.1f} s")
        await wait_until(lambda: older.gossip.own_sealed() in one.gossip.live_sealed())
        assert one.gossip.strikes.score(older.peer_id, trio.current_time()) == 0


async def test_up_with_a_key_that_is_in_use_elsewhere_ends_and_says_what_to_do(
    model: StoredModel, tmp_path: Path
) -> None:
    copied_key = tmp_path / "copied.key"
    async with joined_swarm(["2MiB", "2MiB"], PeerOptions(model.directory.parent, cache_rows=256)) as swarm:
        older = swarm.peers[1]
        shutil.copy(older.paths.identity_file, copied_key)
        younger = await swarm.add("2MiB", "--identity", str(copied_key))
        with trio.fail_after(WITHIN_S):
            assert await younger.wait_end() == 2
        last = younger.log.splitlines()[-1]
        assert last.startswith("shardp2p: error: another process with this peer's identity, ")
        assert "give this one its own with --identity FILE" in last
        await wait_until(lambda: "it came later and should have ended" in older.log)
        with trio.fail_after(WITHIN_S):
            while older.peer_id not in json.dumps(await swarm.peers[0].records()):
                await trio.sleep(0.1)
        assert (await older.status())["state"] == "serving"
