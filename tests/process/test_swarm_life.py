"""A private swarm of processes with a real model forms itself, and goes on while peers die, leave, return and join.

Every answer is compared with transformers' own. How long it takes is printed, and bounded only so that nothing hangs.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from shardp2p.coordinator.request import GenerationRequest
from shardp2p.errors import OverloadedError, PeerUnavailableError, RemoteProtocolError
from shardp2p.identity.join import parse_join
from shardp2p.identity.joined import JoinedSwarms
from shardp2p.identity.keys import Identity
from shardp2p.lab.forking import prepare_forking
from shardp2p.lab.swarm_children import JoinedPeer, PeerOptions, SwarmChildren, joined_swarm
from shardp2p.member import open_member
from shardp2p.runtime.reference import Reference
from shardp2p.runtime.tokenizer import Tokenizer
from shardp2p.swarm_client import SwarmClient
from shardp2p.vocabulary import Token
from shardp2p.weights.store import ModelStore
from tests.support.models import smollm2_directory

MEMORY = ("340MiB", "300MiB", "250MiB", "200MiB", "340MiB", "220MiB", "260MiB", "350MiB")
"""In fp32 a layer takes 13.5 MiB, and the first or the last one 108 MiB more for the embedding: room for all twice."""
LAYERS = 30
PROMPTS = ("Why is the sky blue?", "List five fruits.", "Write a line about rain.", "Count from one to nine.")
TOKENS = 24
STEPS = 20
FEWEST = 5
MODELS_DIR = smollm2_directory().parent
OPTIONS = PeerOptions(MODELS_DIR, "smollm2", cache_rows=1024)
CLEAR = (PeerUnavailableError, OverloadedError, RemoteProtocolError)


class Questions:
    """Prompts with the answers that they must get."""

    def __init__(self) -> None:
        tokenizer, reference = Tokenizer(smollm2_directory()), Reference(smollm2_directory())
        self.prompts = [tokenizer.encode_chat([{"role": "user", "content": text}]) for text in PROMPTS]
        self.answers = [reference.generate(prompt, TOKENS).tokens for prompt in self.prompts]


@pytest.fixture(scope="module")
def questions() -> Questions:
    return Questions()


@asynccontextmanager
async def client_of(swarm: SwarmChildren, directory: Path) -> AsyncIterator[SwarmClient]:
    identity, model = Identity.generate(), ModelStore(MODELS_DIR).resolve("smollm2")
    joined = JoinedSwarms(directory).join(parse_join(swarm.token), identity, time.time())
    async with open_member(identity, joined, is_listener=True) as member:
        yield SwarmClient(member, model.name, model.manifest)


async def ask(client: SwarmClient, prompt: Sequence[Token]) -> tuple[Token, ...]:
    request = GenerationRequest(tuple(prompt), TOKENS)
    tokens: list[Token] = []
    async with client.generate(request) as answer:
        async for batch in answer:
            tokens.extend(batch)
    return tuple(tokens)


async def coverage(peer: JoinedPeer) -> dict[str, object]:
    """What `shardp2p coverage` says on the machine of a peer."""
    command = [sys.executable, "-P", "-m", "shardp2p", "coverage", "smollm2", "--json"]
    command += ["--data-dir", str(peer.paths.data_dir)]
    done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    if done.returncode:
        return {"complete": False, "error": done.stderr.decode()}
    found: dict[str, object] = json.loads(done.stdout)
    return found


async def wait_complete(swarm: SwarmChildren, within_s: float) -> dict[str, object]:
    with trio.fail_after(within_s):
        while not (found := await coverage(swarm.running[0]))["complete"]:
            await trio.sleep(0.3)
    return found


def counts(held: Sequence[tuple[int, int]]) -> list[int]:
    return [sum(start <= layer < stop for start, stop in held) for layer in range(LAYERS)]


async def wait_settled(swarm: SwarmChildren) -> tuple[list[dict[str, Any]], list[int]]:
    """Wait until all serve and every layer is on two peers, as memory allows; else as long as a few moves take."""
    with trio.move_on_after(150):
        while True:
            statuses = [await peer.status() for peer in swarm.peers]
            by_layer = counts([tuple(one["layers"]) for status in statuses for one in status["held"]])
            if all(one["state"] == "serving" for one in statuses) and min(by_layer) == 2:
                break
            await trio.sleep(1)
    return statuses, by_layer


async def test_eight_peers_that_start_at_once_cover_the_model_and_answer(
    questions: Questions, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Eight machines import what they need side by side; on this one it is imported once, before the clock starts.
    await trio.to_thread.run_sync(prepare_forking, abandon_on_cancel=True)
    async with joined_swarm(MEMORY, OPTIONS, is_awaited=False) as swarm:
        started = trio.current_time()
        await wait_complete(swarm, within_s=120)
        complete_s = trio.current_time() - started
        with trio.fail_after(120):
            await swarm.wait_ready()
        statuses, by_layer = await wait_settled(swarm)
        for status in statuses:
            memory = status["memory"]
            assert status["state"] == "serving"
            assert 0 < memory["used_bytes"] <= memory["offered_bytes"] - memory["headroom_bytes"]
        assert min(by_layer) == sum(by_layer) // LAYERS == 2
        async with client_of(swarm, tmp_path) as client:
            for prompt, answer in zip(questions.prompts, questions.answers, strict=True):
                with trio.fail_after(120):
                    assert await ask(client, prompt) == answer
        with capsys.disabled():
            print(f"\ncomplete {complete_s:.1f} s after the start; holders of each layer: {by_layer}")


class Tally:
    """How requests ended."""

    def __init__(self) -> None:
        self.exact = 0
        self.failed: list[str] = []


async def keep_asking(client: SwarmClient, questions: Questions, first: int, tally: Tally) -> None:
    number = first
    while True:
        at = number % len(questions.prompts)
        number += 1
        try:
            answer = await ask(client, questions.prompts[at])
        except CLEAR as error:
            tally.failed.append(error.message)
            await trio.sleep(0.2)
        else:
            assert answer == questions.answers[at]
            tally.exact += 1


async def change(swarm: SwarmChildren, rng: Random) -> str:
    """One thing that happens to a swarm; a word for it."""
    running = swarm.running
    gone = [peer for peer in swarm.peers if not peer.is_running]
    actions = ["join", *(["restart"] * 2 if gone else []), *(["kill", "leave"] * 2 if len(running) > FEWEST else [])]
    action = rng.choice(actions)
    if action == "join":
        await swarm.add(rng.choice(MEMORY))
    elif action == "restart":
        await rng.choice(gone).start_again()
    elif action == "kill":
        # The first peer stays: its address is the token's.
        await rng.choice(running[1:]).kill()
    else:
        rng.choice(running[1:]).interrupt()
    return action


async def test_requests_are_exact_or_fail_clearly_while_peers_come_and_go(
    questions: Questions, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng, tally, steps = Random(20), Tally(), []
    async with joined_swarm(MEMORY, OPTIONS) as swarm, client_of(swarm, tmp_path) as client:
        async with trio.open_nursery() as asking:
            for first in range(2):
                asking.start_soon(keep_asking, client, questions, first, tally)
            for _ in range(STEPS):
                steps.append(await change(swarm, rng))
                await trio.sleep(rng.uniform(0.5, 4.0))
            asking.cancel_scope.cancel()
        # What is left settles by itself, and serves again.
        await wait_complete(swarm, within_s=180)
        with trio.fail_after(120):
            assert await ask(client, questions.prompts[0]) == questions.answers[0]
    with capsys.disabled():
        print(f"\n{' '.join(steps)}: {tally.exact} exact, {len(tally.failed)} failed")
        print(*sorted(set(tally.failed))[:5], sep="\n")
    assert tally.exact >= 3
    assert all(len(message) > 20 for message in tally.failed)
