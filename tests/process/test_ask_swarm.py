"""`shardp2p generate` against a private swarm of `up --join` peers: nobody names a ring."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from shardp2p.cli.client_identity import client_place
from shardp2p.config import default_paths
from shardp2p.coordinator.request import GenerationRequest
from shardp2p.identity.join import parse_join
from shardp2p.identity.joined import JoinedSwarms
from shardp2p.identity.keys import Identity
from shardp2p.lab.swarm_children import PeerOptions, SwarmChildren, joined_swarm
from shardp2p.member import open_member
from shardp2p.runtime.reference import Reference
from shardp2p.runtime.tokenizer import Tokenizer
from shardp2p.swarm.publisher import Coverage
from shardp2p.swarm_client import SwarmClient
from shardp2p.vocabulary import LayerRange, PeerId
from shardp2p.weights.store import ModelStore, StoredModel
from shardp2p.wire.records import HeldLayers
from tests.support.models import tiny_llama
from tests.support.processes import finished

PROMPT = "Tell me"
MAX_TOKENS = 16
HANG_S = 60.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> StoredModel:
    directory = tmp_path_factory.mktemp("model")
    return ModelStore(directory / "models").import_model(tiny_llama(directory / "tiny", layers=6))


@pytest.fixture(scope="module")
def answer(model: StoredModel) -> tuple[int, ...]:
    tokenizer = Tokenizer(model.directory)
    prompt = tokenizer.encode_chat([{"role": "user", "content": PROMPT}])
    return Reference(model.directory).generate(prompt, MAX_TOKENS, tokenizer.stop_tokens).tokens


@dataclass(frozen=True)
class Said:
    """What `generate` said."""

    code: int
    out: str
    err: str

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(json.loads(self.out)["tokens"])

    @property
    def ring(self) -> list[str]:
        return [stage["peer_id"] for stage in json.loads(self.out)["stages"]]


async def generate(data_dir: Path, *options: str) -> Said:
    command = ("generate", "tiny", PROMPT, "--data-dir", data_dir, "--max-tokens", MAX_TOKENS, "--json", *options)
    with trio.fail_after(HANG_S):
        done = await finished(*command)
    return Said(done.returncode, done.stdout.decode(), done.stderr.decode())


@asynccontextmanager
async def claiming(swarm: SwarmChildren, model: StoredModel, data_dir: Path) -> AsyncIterator[PeerId]:
    """A member that claims to hold the whole model, and faster than anybody, and serves nothing."""
    identity = Identity.generate()
    kept = JoinedSwarms(data_dir)
    joined = kept.join(parse_join(swarm.token), identity, time.time())
    layers = model.manifest.layers
    held = HeldLayers(
        model.name, model.manifest.digest, layers, LayerRange(0, layers), "serving", "float32",
        model.manifest.context_tokens, 1_000_000, 4096, 4096, 1e-6, 1e-6,
    )  # fmt: skip
    async with open_member(identity, joined, ("/ip4/127.0.0.1/tcp/0",), kept=kept) as member:
        member.say(Coverage("serving", member.node.addresses(), memory_bytes=2**20, held=(held,)))
        await member.wait_sight()
        for peer in swarm.peers:
            while str(member.peer_id) not in json.dumps(await peer.status()):
                await trio.sleep(0.1)
        yield member.peer_id


async def ask_around(
    claimer: PeerId, swarm: SwarmChildren, data_dir: Path, model: StoredModel, answer: tuple[int, ...]
) -> None:
    """A client that knows of the claim tries it first, and is answered by the others; by the library, from here."""
    tokenizer = Tokenizer(model.directory)
    prompt = tokenizer.encode_chat([{"role": "user", "content": PROMPT}])
    request = GenerationRequest(prompt, MAX_TOKENS, tokenizer.stop_tokens)
    with client_place(None, default_paths(data_dir)) as place:
        assert place is not None
        async with open_member(place.identity, place.joined, kept=place.kept, is_listener=True) as member:
            while len(member.live()) < len(swarm.peers) + 1:
                await member.gossip.wait_change(member.gossip.changes)
            tokens: list[int] = []
            async with SwarmClient(member, model.name, model.manifest).generate(request) as answering:
                async for batch in answering:
                    tokens.extend(batch)
            assert tuple(tokens) == answer
            assert {stage.peer_id for stage in answering.plan.stages} == {peer.peer_id for peer in swarm.peers}
            assert member.gossip.strikes.score(claimer, trio.current_time()) > 0


async def test_a_client_without_layers_is_answered_by_whoever_is_live(
    model: StoredModel, answer: tuple[int, ...], tmp_path: Path
) -> None:
    options = PeerOptions(model.directory.parent, cache_rows=1024)
    async with joined_swarm(["2MiB", "2MiB"], options) as swarm:
        client = swarm.new_data_dir("client")
        ring = {str(peer.peer_id) for peer in swarm.peers}

        refused = await generate(client)
        assert refused.code == 2
        assert "--join TOKEN|FILE" in refused.err
        assert "--peer ADDRESS" in refused.err

        first = await generate(client, "--join", str(swarm.token_file))
        assert (first.code, first.err) == (0, "")
        assert first.tokens == answer
        assert set(first.ring) == ring

        said: dict[str, Said] = {}

        async def ask(name: str, *options: str) -> None:
            said[name] = await generate(client, *options)

        # Two clients at once, to each of whom the last stage sends its verdicts.
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "one", "--local-driver")
            nursery.start_soon(ask, "other", "--local-driver")
        for one in said.values():
            assert one.code == 0, one.err
            assert one.tokens == answer
            assert set(one.ring) == ring

        async with claiming(swarm, model, tmp_path / "claimer") as claimer:
            await ask_around(claimer, swarm, client, model, answer)

        await swarm.peers[0].kill()
        # The token names nobody but the peer that is gone; the client has met the other one.
        missing = await generate(client)
        assert missing.code == 3
        assert missing.err.count("\n") == 1
        assert "of tiny are missing" in missing.err
