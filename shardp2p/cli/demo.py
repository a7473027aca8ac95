"""`shardp2p demo`: a swarm of processes on this machine answers a prompt, and the answer is checked."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardp2p.cli.asking import parse_wire
from shardp2p.cli.demo_screen import Screen
from shardp2p.cli.interrupts import interrupts
from shardp2p.cli.options import AsJson, DataDir, Wire
from shardp2p.cli.output import write_json
from shardp2p.cli.progress import progress_bar
from shardp2p.cli.texts import read_prompt
from shardp2p.config import UpSettings, load_settings
from shardp2p.errors import ConfigError, IntegrityError
from shardp2p.telemetry import configure_logging
from shardp2p.vocabulary import DType, LayerRange, ModelId, Token, WireScheme
from shardp2p.weights.store import ModelStore, StoredModel

if TYPE_CHECKING:
    from shardp2p.lab.reference_process import ReferenceAnswer
    from shardp2p.lab.ring_run import RingRun
    from shardp2p.node import Node
    from shardp2p.runtime.tokenizer import Tokenizer
    from shardp2p.scheduler.route import Member
    from shardp2p.wire.messages import MemberInfo

DEMO_MODEL = "smollm2"
PROMPT = "What is a peer-to-peer network? Answer in two short sentences."
DRAFTS = ("lookup", "none")


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be shown, checked before anything is started."""

    model: StoredModel
    tokenizer: Tokenizer
    splits: tuple[LayerRange, ...]
    prompt_tokens: tuple[Token, ...]
    max_tokens: int
    dtype: DType
    uses_lookup: bool
    depth: int
    wire_scheme: WireScheme
    has_reference: bool
    data_dir: Path | None

    @property
    def model_argument(self) -> str:
        """What `up --model` is told."""
        return self.model.name if self.model.is_imported else str(self.model.directory)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it went. `members` are the stages' accounts of themselves after the answer."""

    members: tuple[MemberInfo, ...]
    run: RingRun
    reference: ReferenceAnswer | None

    @property
    def is_identical(self) -> bool | None:
        """Whether the answer equals the reference's token for token; None without one."""
        return None if self.reference is None else self.reference.tokens == self.run.tokens


def demo(
    stages: Annotated[int, typer.Option("--stages", help="Processes to split the layers over.")] = 3,
    prompt: Annotated[str, typer.Option("--prompt", help="What to ask; - reads it from stdin.")] = PROMPT,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="How long the answer may be.")] = 64,
    dtype: Annotated[str, typer.Option("--dtype", help="float32, bfloat16 or float16.")] = "float32",
    draft: Annotated[str, typer.Option("--draft", help="lookup: guess from the text so far. none: plain.")] = "lookup",
    depth: Annotated[int, typer.Option("--depth", help="Chunks in the ring at once.")] = 1,
    wire: Wire = "raw",
    model: Annotated[str, typer.Option("--model", help="A model in the store, or a directory.")] = DEMO_MODEL,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the prompt as it is, without a chat template.")] = False,
    no_reference: Annotated[bool, typer.Option("--no-reference", help="Do not check the answer.")] = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Let a swarm of processes on this machine answer a prompt with a real model, and check the answer."""
    configure_logging("warning")
    if draft not in DRAFTS:
        raise ConfigError(f"--draft is {draft!r}; it must be one of {', '.join(DRAFTS)}")
    _check_numbers(stages, max_tokens, depth)
    settings = UpSettings(dtype=dtype)  # type: ignore[arg-type]  # checks it
    prompt = read_prompt(prompt)
    stored = _find_model(model, data_dir)
    tokenizer, prompt_tokens = _tokenize(stored, prompt, max_tokens, is_raw=raw)
    from shardp2p.lab.local_swarm import even_splits

    order = Order(
        model=stored,
        tokenizer=tokenizer,
        splits=even_splits(stored.manifest.layers, stages),
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        dtype=settings.dtype,
        uses_lookup=draft == "lookup",
        depth=depth,
        wire_scheme=parse_wire(wire),
        has_reference=not no_reference,
        data_dir=data_dir,
    )
    outcome = interrupts.run(lambda: _show(order, Screen(tokenizer, is_quiet=as_json), prompt))
    if as_json:
        write_json(_report(order, outcome))
    if outcome.is_identical is False and order.dtype == "float32" and order.wire_scheme == "raw":
        raise IntegrityError("the ring's answer differs from the single-process reference; please report this")


def _check_numbers(stages: int, max_tokens: int, depth: int) -> None:
    from shardp2p.wire.protocols import INITIAL_CREDITS

    for name, value, most in (
        ("--stages", stages, None),
        ("--max-tokens", max_tokens, None),
        ("--depth", depth, INITIAL_CREDITS),
    ):
        if value < 1 or (most is not None and value > most):
            rule = "at least 1" if most is None else f"between 1 and {most}"
            raise ConfigError(f"{name} is {value}; it must be {rule}")


def _find_model(name: str, data_dir: Path | None) -> StoredModel:
    """The model, imported now if it is the demo's own and not there yet."""
    store = ModelStore(load_settings(data_dir=data_dir).paths.models_dir)
    with progress_bar() as report:
        if name == DEMO_MODEL and not store.has(ModelId(name)):
            return store.import_model(name, progress=report)
        return store.resolve(name, progress=report)


def _tokenize(model: StoredModel, prompt: str, max_tokens: int, *, is_raw: bool) -> tuple[Tokenizer, tuple[Token, ...]]:
    from shardp2p.runtime.tokenizer import Tokenizer

    tokenizer = Tokenizer(model.directory)
    if is_raw or not tokenizer.has_chat_template:
        tokens = tokenizer.encode(prompt)
    else:
        tokens = tokenizer.encode_chat([{"role": "user", "content": prompt}])
    context = model.manifest.context_tokens
    if len(tokens) + max_tokens > context:
        raise ConfigError(
            f"the prompt has {len(tokens)} tokens and {max_tokens} more are asked for; {model.name} takes {context} "
            "in all: shorten the prompt or lower --max-tokens"
        )
    return tokenizer, tokens


async def _show(order: Order, screen: Screen, prompt: str) -> Outcome:
    """Start the ring, ask it, end it, and then ask the reference."""
    from shardp2p.identity.keys import Identity
    from shardp2p.lab.local_swarm import local_swarm, share_of_cores
    from shardp2p.node import open_node

    async with AsyncExitStack() as stack:
        with progress_bar() as report:
            threads = share_of_cores(len(order.splits))
            swarm = local_swarm(
                order.model_argument, order.splits, dtype=order.dtype, threads=threads, data_dir=order.data_dir,
                progress=report,
            )  # fmt: skip
            stages = await stack.enter_async_context(swarm)
        node = await stack.enter_async_context(open_node(Identity.generate()))
        addresses = [address for stage in stages for address in stage.addresses]
        members = await node.members(addresses)
        screen.show_ring(order.model.name, order.dtype, [member.info for member in members])
        screen.show_prompt(prompt)
        run = await _ask(order, node, members, screen)
        infos = tuple(member.info for member in await node.members(addresses))
    screen.show_speed(run)
    reference = await _ask_reference(order) if order.has_reference else None
    outcome = Outcome(infos, run, reference)
    if reference is not None:
        screen.show_verdict(reference, is_identical=bool(outcome.is_identical))
    return outcome


async def _ask(order: Order, node: Node, members: Sequence[Member], screen: Screen) -> RingRun:
    from shardp2p.coordinator.commands import Limits
    from shardp2p.coordinator.request import GenerationRequest
    from shardp2p.lab.ring_run import run_ring
    from shardp2p.runtime.draft import PromptLookup
    from shardp2p.scheduler.route import route

    run = await run_ring(
        node,
        route(order.model.name, members),
        GenerationRequest(
            order.prompt_tokens,
            order.max_tokens,
            order.tokenizer.stop_tokens,
            vocab_size=order.model.manifest.vocab_size,
            wire_scheme=order.wire_scheme,
        ),
        proposer=PromptLookup() if order.uses_lookup else None,
        limits=Limits(max_chunks=order.depth),
        on_tokens=screen.show_tokens,
    )
    screen.end_tokens()
    return run


async def _ask_reference(order: Order) -> ReferenceAnswer:
    from shardp2p.lab.reference_process import open_reference

    with progress_bar() as report:
        report("checking the answer against the whole model in one process", 0, 0)
        async with open_reference(order.model.directory, order.dtype) as reference:
            return await reference.generate(order.prompt_tokens, order.max_tokens, order.tokenizer.stop_tokens)


def _report(order: Order, outcome: Outcome) -> dict[str, Any]:
    """What --json says."""
    run, reference = outcome.run, outcome.reference
    return {
        "model": order.model.name,
        "dtype": order.dtype,
        "stages": [
            {
                "peer_id": info.peer_id,
                "pid": info.pid,
                "layers": [info.layers.start, info.layers.stop] if info.layers else None,
                "rss_bytes": info.rss_bytes,
                "layer_bytes": info.layer_bytes,
            }
            for info in outcome.members
        ],
        "text": order.tokenizer.decode(run.tokens),
        "tokens": list(run.tokens),
        "reference_tokens": None if reference is None else list(reference.tokens),
        "identical": outcome.is_identical,
        "tok_s": round(run.tok_s, 3),
        "ttft_s": round(run.ttft_s, 4),
        "laps": run.laps,
        "accepted_per_lap": round(run.accepted_per_lap, 3),
    }
