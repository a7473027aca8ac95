"""A ring of real `shardp2p up` processes for tests of the client, and what they say of themselves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import trio

from shardp2p.identity.keys import Identity
from shardp2p.node import open_node
from shardp2p.wire.messages import MemberInfo
from tests.support.models import tiny_llama

LAYERS = 4
CONTEXT_TOKENS = 8192


def slow_talker(directory: Path, *, seed: int = 0) -> Path:
    """A tiny model with a context so long that an answer takes as long as a test needs."""
    return tiny_llama(directory, layers=LAYERS, context_tokens=CONTEXT_TOKENS, seed=seed)


def endless(model: Path) -> tuple[str, ...]:
    """Options that make `model` write letters and never end by itself."""
    vocabulary = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]
    favoured = [f"--logit-bias={vocabulary[letter]}:900" for letter in "abcdefgh"]
    return ("--raw", "--max-tokens", "8000", *favoured)


def describe(addresses: Sequence[str]) -> list[MemberInfo]:
    """What the peers at these addresses say of themselves."""

    async def ask() -> list[MemberInfo]:
        async with open_node(Identity.generate()) as node:
            return [member.info for member in await node.members(addresses)]

    return trio.run(ask)
