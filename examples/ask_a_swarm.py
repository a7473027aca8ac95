"""Ask a swarm from Python: join it without layers, and let the best ring that is live answer.

A peer of the swarm prints how to join it; a private one needs a token of its owner's:

    shardp2p model import smollm2
    shardp2p swarm create home
    shardp2p up --join home
    shardp2p swarm invite home --peer ADDRESS --out token

Then: python examples/ask_a_swarm.py token
"""

from __future__ import annotations

import sys

import trio

from shardp2p.cli.client_identity import client_place
from shardp2p.config import load_settings
from shardp2p.coordinator.request import GenerationRequest
from shardp2p.errors import ShardError
from shardp2p.member import open_member
from shardp2p.runtime.tokenizer import TextStream, Tokenizer
from shardp2p.swarm_client import SwarmClient, Terms
from shardp2p.telemetry import configure_logging
from shardp2p.weights.store import ModelStore

QUESTION = "Name three rivers in Europe, then name the same three rivers again."


async def ask(token: str) -> None:
    """Join, ask, print the answer as it comes, and say who gave it and why they were chosen."""
    paths = load_settings().paths
    model = ModelStore(paths.models_dir).resolve("smollm2")
    tokenizer = Tokenizer(model.directory)
    prompt = tokenizer.encode_chat([{"role": "user", "content": QUESTION}])
    request = GenerationRequest(prompt, max_tokens=64, stop_tokens=tokenizer.stop_tokens)
    text = TextStream(tokenizer)

    # An identity that no other process uses now, and the swarm that it is in; the token is needed once.
    with client_place(token, paths) as place:
        assert place is not None
        async with open_member(place.identity, place.joined, kept=place.kept, is_listener=True) as member:
            client = SwarmClient(member, model.name, model.manifest)
            async with client.generate(request, Terms(draft="lookup")) as answer:
                async for tokens in answer:
                    print(text.feed(tokens), end="", flush=True)
            print(text.finish())

    for choice in answer.route.choices:
        print(f"{choice.peer_id} ({choice.held}) {choice.reason}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    configure_logging("warning")
    try:
        trio.run(ask, sys.argv[1])
    except ShardError as error:
        sys.exit(f"error: {error}")
