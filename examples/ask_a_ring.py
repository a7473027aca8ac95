"""Ask a ring of running peers from Python, and see what each lap carried.

Start the peers first, each in a terminal of its own; each prints its address:

    shardp2p model import smollm2
    shardp2p up --model smollm2 --layers 0:15 --identity left.key
    shardp2p up --model smollm2 --layers 15:30 --identity right.key

Then: python examples/ask_a_ring.py ADDRESS ADDRESS
"""

from __future__ import annotations

import sys

import trio

from shardp2p.config import load_settings
from shardp2p.coordinator.commands import Limits
from shardp2p.coordinator.driver import GenerationRequest
from shardp2p.errors import ShardError
from shardp2p.identity.keys import Identity
from shardp2p.node import open_node
from shardp2p.runtime.draft import PromptLookup
from shardp2p.runtime.tokenizer import TextStream, Tokenizer
from shardp2p.scheduler.route import route
from shardp2p.telemetry import configure_logging
from shardp2p.weights.store import ModelStore

QUESTION = "Name three rivers in Europe, then name the same three rivers again."


async def ask(addresses: list[str]) -> None:
    """Find out what the peers hold, plan the ring, and print the answer as it comes."""
    model = ModelStore(load_settings().paths.models_dir).resolve("smollm2")
    tokenizer = Tokenizer(model.directory)
    prompt = tokenizer.encode_chat([{"role": "user", "content": QUESTION}])
    request = GenerationRequest(prompt, max_tokens=64, stop_tokens=tokenizer.stop_tokens)
    text = TextStream(tokenizer)

    # A client is a peer that holds no layers: it needs an identity, and no address to listen on.
    async with open_node(Identity.generate()) as node:
        plan = route(model.name, await node.members(addresses))
        # One chunk at a time suits peers that are near; far ones are kept busy with several (max_chunks=4).
        async with node.generate(plan, request, proposer=PromptLookup(), limits=Limits(max_chunks=1)) as stream:
            async for tokens in stream:
                print(text.feed(tokens), end="", flush=True)
        print(text.finish())

    for lap in stream.result.laps:
        beside_ms = 1e3 * (lap.lap_s - lap.compute_s)
        print(f"{lap.tokens:3} tokens in {1e3 * lap.lap_s:6.1f} ms, {beside_ms:.1f} ms of it not computing")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    configure_logging("warning")
    try:
        trio.run(ask, sys.argv[1:])
    except ShardError as error:
        sys.exit(f"error: {error}")
