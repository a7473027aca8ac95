"""Two models in one swarm: peers that offer both share them out by themselves, and both are asked."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import trio

from shardp2p.lab.swarm_children import PeerOptions, SwarmChildren, joined_swarm
from shardp2p.runtime.reference import Reference
from shardp2p.runtime.tokenizer import Tokenizer
from shardp2p.weights.store import ModelStore, StoredModel
from tests.support.models import tiny_llama
from tests.support.processes import finished

PROMPT = "Tell me"
MAX_TOKENS = 12
LAYERS = {"ash": 6, "birch": 4}
"""Each layer takes 0.28 MiB with its cache of ROWS, and an end of a model 0.06 MiB more."""
ROWS = 512
MEMORY = ("3MiB", "1MiB", "1MiB", "1MiB")
"""Of which four fifths are used: nobody has room for both models, and only the first for a part of both."""
WITHIN_S = 120.0


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, StoredModel]:
    directory = tmp_path_factory.mktemp("models")
    store = ModelStore(directory / "models")
    made = [tiny_llama(directory / name, layers=LAYERS[name], seed=seed) for seed, name in enumerate(LAYERS)]
    return {model.name: model for model in map(store.import_model, made)}


def answer(model: StoredModel) -> list[int]:
    tokenizer = Tokenizer(model.directory)
    prompt = tokenizer.encode_chat([{"role": "user", "content": PROMPT}])
    return list(Reference(model.directory).generate(prompt, MAX_TOKENS, tokenizer.stop_tokens).tokens)


async def run(data_dir: Path, command: str, model: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    with trio.fail_after(WITHIN_S):
        return await finished(command, model, *arguments, "--json", "--data-dir", data_dir)


async def ask(data_dir: Path, command: str, model: str, *arguments: str) -> dict[str, Any]:
    done = await run(data_dir, command, model, *arguments)
    assert done.returncode == 0, done.stderr.decode()
    said: dict[str, Any] = json.loads(done.stdout)
    return said


Held = list[list[tuple[str, range]]]
"""The layers that each peer serves."""


async def held_by_peer(swarm: SwarmChildren) -> Held:
    """What is served once both models are whole."""
    while True:
        statuses = [await peer.status() for peer in swarm.peers]
        held = [[(one["model"], range(*one["layers"])) for one in status["held"]] for status in statuses]
        if all(is_whole(held, name) for name in LAYERS):
            return held
        await trio.sleep(0.3)


def is_whole(held: Held, model: str) -> bool:
    return {layer for peer in held for name, layers in peer if name == model for layer in layers} == set(
        range(LAYERS[model])
    )


async def test_two_models_are_covered_and_answered_by_one_swarm(models: dict[str, StoredModel]) -> None:
    options = PeerOptions(next(iter(models.values())).directory.parent, cache_rows=ROWS)
    async with joined_swarm(MEMORY, options) as swarm:
        with trio.fail_after(WITHIN_S):
            held = await held_by_peer(swarm)
        assert {name for name, _ in held[0]} == set(LAYERS)
        client = swarm.new_data_dir("client")
        for name, model in models.items():
            seen = await ask(client, "coverage", name, "--join", str(swarm.token_file))
            assert seen["complete"]
            assert seen["layers"] == LAYERS[name]
            said = await ask(client, "generate", name, PROMPT, "--max-tokens", str(MAX_TOKENS))
            assert said["tokens"] == answer(model)
            assert said["model"] == name
        refused = await run(client, "generate", "birch", PROMPT, "--max-tokens", "300")
        assert refused.returncode == 3
        line = refused.stderr.decode()
        assert line.startswith("shardp2p: error: birch has no room for so long a request: layers ")
        assert f" of {ROWS} cache rows free, and the request takes " in line
        assert line.endswith(" tokens less, as by a smaller --max-tokens\n")
        assert line.count("\n") == 1
