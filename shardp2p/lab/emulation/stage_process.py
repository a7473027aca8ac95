"""A stage whose layers are emulated, in a process of its own: a real peer, real streams, rows of a real model's size.

`python -m shardp2p.lab.emulation.stage_process PROFILE STAGE ACCEPT SEED`. It says its peer id and port, reads the
addresses of the peers that it is to be connected with, says when it is, and serves until its standard input ends.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from typing import Final

import trio

from shardp2p.host.addresses import parse_tcp_address
from shardp2p.identity.keys import Identity
from shardp2p.lab.emulation.arms import CACHE_ROWS
from shardp2p.lab.emulation.language import Language
from shardp2p.lab.emulation.layers import DigestRows, digests_of, frame_of
from shardp2p.lab.emulation.profile import Profile, parse_profile
from shardp2p.lab.emulation.waiting import Lateness, wait_s
from shardp2p.lab.network.catalog import read_text
from shardp2p.node import HeldModel, Node, open_node
from shardp2p.stage.holding import HeldBlock, Holding, OpenCompute
from shardp2p.stage.live import Compute
from shardp2p.stage.session import Work
from shardp2p.telemetry import configure_logging
from shardp2p.vocabulary import LayerRange, ModelId, PeerId, Token
from shardp2p.wire.messages import Activations, Open, Verdict

SESSIONS: Final = 64
"""So many texts of CACHE_ROWS rows have room."""


def model_of(profile: Profile, accept: float, seed: int) -> tuple[ModelId, str]:
    """The name and digest of what is emulated."""
    name = f"emulated-{profile.name}"
    return ModelId(name), hashlib.sha256(f"{name} {accept} {seed}".encode()).hexdigest()


def emulated_layers(profile: Profile, stage: int, language: Language) -> OpenCompute:
    """What opens sessions on layers that do nothing for as long as the profile says, one chunk after the other."""
    device, lateness = trio.Lock(), Lateness()
    is_last = stage == len(profile.stages) - 1

    async def open_compute(_: Open) -> Compute:
        rows = DigestRows(language, is_first=stage == 0)

        async def compute(work: Work, _: tuple[Token, ...]) -> Activations | Verdict:
            a = work.arrival
            inputs = digests_of(a.hidden) if isinstance(a, Activations) else a.tokens
            async with device:
                started = time.perf_counter()
                digests = rows.compute(work, inputs)
                choices = rows.choices(work, digests) if is_last else ()
                frame = None if is_last else frame_of(digests, profile.row_bytes)
                due = started + profile.stage_s(len(work.rows))
                if (left_s := due - time.perf_counter()) > 0:
                    await trio.to_thread.run_sync(wait_s, left_s - lateness.seconds)
                    lateness.note(time.perf_counter() - due)
                own_us = round((time.perf_counter() - started) * 1e6)
            before_us, slowest_us = (a.compute_us, a.slowest_us) if isinstance(a, Activations) else (0, 0)
            spent_us = before_us + own_us, max(slowest_us, own_us)
            if is_last:
                return Verdict(a.ref, a.quiet, choices, *spent_us)
            return Activations(a.ref, a.parents, a.root, a.quiet, work.skipped, frame, *spent_us)

        return compute

    return open_compute


async def _serve(profile: Profile, stage: int, accept: float, seed: int) -> None:
    async with open_node(Identity.generate(), ["/ip4/127.0.0.1/tcp/0"]) as node:
        layers = LayerRange(stage, stage + 1)
        model, digest = model_of(profile, accept, seed)
        compute = emulated_layers(profile, stage, Language(accept, seed))
        served = HeldBlock(layers, Holding(digest, "bfloat16", SESSIONS * CACHE_ROWS), [1], compute)
        node.serve(HeldModel(model, len(profile.stages), CACHE_ROWS, 0, "emulated", 0, served))
        await _connect(node)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)


async def _connect(node: Node) -> None:
    """Say where we are, and take up the connections that we are told to."""
    [address, *_] = node.addresses()
    _say({"peer_id": node.peer_id, "port": parse_tcp_address(address).port})
    line = await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
    for peer, at in json.loads(line):
        await node.connect(PeerId(peer), [at])
    _say({"connected": True})


def _say(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    configure_logging("warning")
    _, name, stage_, accept_, seed_ = sys.argv
    trio.run(_serve, parse_profile(name, read_text(name)), int(stage_), float(accept_), int(seed_))
