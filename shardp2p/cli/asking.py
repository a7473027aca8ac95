"""How `generate` and `chat` have a ring of peers answer: what was asked for, the ring, and the answer as it comes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from shardp2p.cli.output import write
from shardp2p.cli.progress import Report, progress_bar
from shardp2p.config import prepare_compute
from shardp2p.errors import ConfigError
from shardp2p.vocabulary import LayerRange, SamplingParams, Token
from shardp2p.weights.store import StoredModel

if TYPE_CHECKING:
    from shardp2p.coordinator.commands import FinishReason, Limits
    from shardp2p.coordinator.stream import GenerationStream
    from shardp2p.node import Node
    from shardp2p.runtime.block import Block
    from shardp2p.runtime.device import DeviceThread
    from shardp2p.runtime.tokenizer import TextStream
    from shardp2p.scheduler.plan import Plan
    from shardp2p.scheduler.route import Member
    from shardp2p.vocabulary import DType
    from shardp2p.wire.driving import DraftKind

DEFAULT_MAX_TOKENS = 256
DEFAULTS = SamplingParams()


Show = Callable[[str], None]
"""Shows a piece of text; called in a thread of its own, since whoever reads our output may take long."""


@dataclass(frozen=True, slots=True)
class Wish:
    """How the user wants to be answered. `max_tokens` None: as many as is usual.

    `is_local`: the generation is driven here, not by the peer of the first layers. `local_layers`: so many of the
    first layers run here.
    """

    peers: tuple[str, ...]
    max_tokens: int | None
    sampling: SamplingParams
    stop_strings: tuple[str, ...]
    draft: DraftKind
    limits: Limits
    is_local: bool
    local_layers: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. Speeds are 0 where there is too little to measure; laps count the prompt's own."""

    plan: Plan
    text: str
    tokens: tuple[Token, ...]
    finish_reason: FinishReason
    tok_s: float
    ttft_s: float
    laps: int

    @property
    def accepted_per_lap(self) -> float:
        """Tokens of the answer per lap: 1 without drafts."""
        return len(self.tokens) / self.laps if self.laps else 0.0

    def account(self) -> str:
        """What it took, as a line to read."""
        cut = "; cut at the most tokens allowed" if self.finish_reason == "length" else ""
        return (
            f"{_count(len(self.tokens), 'token')} in {_count(self.laps, 'lap')} of "
            f"{_count(len(self.plan.stages), 'stage')}, "
            f"{self.tok_s:.1f} tokens/s, the first after {self.ttft_s:.2f} s{cut}"
        )


def parse_biases(texts: Sequence[str]) -> tuple[tuple[Token, float], ...]:
    """The logit biases that were given. Raises: ConfigError."""
    biases = []
    for text in texts:
        token, _, bias = text.partition(":")
        try:
            biases.append((int(token), float(bias)))
        except ValueError:
            raise ConfigError(
                f"--logit-bias {text!r} is no TOKEN:BIAS; write a token id and a number, as 42:-5"
            ) from None
    return tuple(biases)


def check_peers(addresses: Sequence[str]) -> tuple[str, ...]:
    """Refuse what is no address of a peer, before anything slow begins."""
    from shardp2p.host.addresses import parse_address

    advice = "name each peer of the ring with --peer ADDRESS, as its `shardp2p up` prints it"
    if not addresses:
        raise ConfigError(f"no peer is named; {advice}")
    for address in addresses:
        if not address.strip():
            raise ConfigError(f"a --peer is empty; {advice}")
        if parse_address(address).peer is None:
            raise ConfigError(f"{address} names no peer, for it does not end in /p2p/PEER-ID; {advice}")
    return tuple(addresses)


def parse_drafting(draft: str, depth: int) -> tuple[DraftKind, Limits]:
    """Who proposes, and how much may be under way. Raises: ConfigError."""
    from shardp2p.coordinator.commands import Limits
    from shardp2p.wire.credit import INITIAL_CREDITS

    if draft != "none" and draft != "lookup":
        raise ConfigError(f"--draft is {draft!r}; it must be one of none, lookup")
    if depth > INITIAL_CREDITS:
        raise ConfigError(f"--depth is {depth}; it must be at most {INITIAL_CREDITS}")
    return ("lookup" if draft == "lookup" else "none"), Limits(max_chunks=depth)


@asynccontextmanager
async def open_asker(wish: Wish, model: StoredModel, cache_rows: int) -> AsyncIterator[Asker]:
    """A peer that can have questions answered; it holds the first layers itself where that is wished."""
    from shardp2p.identity.keys import Identity
    from shardp2p.node import open_node

    async with open_node(Identity.generate()) as node:
        if not wish.local_layers:
            yield Asker(node, wish, model)
            return
        prepare_compute()
        from shardp2p.runtime.device import DeviceThread

        with DeviceThread() as device:
            asker = Asker(node, wish, model)
            dtype = (await asker.find_members())[0].info.dtype
            await _hold_first(node, device, wish, model, dtype, cache_rows)
            yield asker


class Asker:
    """Has questions answered, each by the ring that stands at that moment. Made by `open_asker`."""

    def __init__(self, node: Node, wish: Wish, model: StoredModel) -> None:
        self._node = node
        self._wish = wish
        self._model = model

    async def find_members(self) -> tuple[Member, ...]:
        """The peers that were named, those with our model first.

        Raises: ConfigError if they run other weights than ours.
        """
        from shardp2p.scheduler.route import recognise

        model, manifest = self._model.name, self._model.manifest
        members = await self._node.members(self._wish.peers)
        known = recognise(model, manifest.digest, manifest.layers, members)
        return tuple(sorted(known, key=lambda member: member.info.model_digest != manifest.digest))

    async def find_ring(self) -> Plan:
        """The ring through the peers that were named, beginning with us where we hold layers."""
        from shardp2p.scheduler.first_layers import keep_first
        from shardp2p.scheduler.route import Member, route

        members = await self.find_members()
        if self._node.held:
            members = keep_first(Member(self._node.describe(), ()), members)
        return route(self._model.name, members)

    async def ask(
        self,
        prompt_tokens: tuple[Token, ...],
        stop_tokens: frozenset[Token],
        text: TextStream,
        *,
        report: Report,
        show: Show | None,
    ) -> Answer:
        """Find the ring and generate over it; `show` gets the text as it comes."""
        from shardp2p.coordinator.request import GenerationRequest

        wish = self._wish
        report("asking the peers", 0, 0)
        plan = await self.find_ring()
        request = GenerationRequest(
            prompt_tokens,
            _max_tokens(wish, len(prompt_tokens), plan),
            stop_tokens,
            wish.sampling,
            self._model.manifest.vocab_size,
        )
        report("waiting for the first token", 0, 0)
        driver: Literal["first", "local"] = "local" if wish.is_local else "first"
        async with self._node.generate(plan, request, driver=driver, draft=wish.draft, limits=wish.limits) as stream:
            tokens = await _read(stream, text, show)
        result = stream.result
        return Answer(
            plan=plan,
            text=text.text,
            tokens=tokens,
            # Without a finish it was us who ended it, at a stop string.
            finish_reason=result.finish.reason if result.finish and not text.is_stopped else "stop",
            tok_s=stream.tok_s,
            ttft_s=result.ttft_s or 0.0,
            laps=result.finish.laps if result.finish else len(result.laps),
        )


async def _hold_first(
    node: Node, device: DeviceThread, wish: Wish, model: StoredModel, dtype: DType, cache_rows: int
) -> None:
    """Load the first layers and serve them to ourselves."""
    import trio

    from shardp2p.cli.interrupts import interrupts

    layers = LayerRange(0, wish.local_layers)
    if layers.stop > model.manifest.layers:
        raise ConfigError(f"--local-layers {layers.stop} is more than {model.name} has: {model.manifest.layers}")

    def load() -> Block:
        from shardp2p.runtime.load import load_block
        from shardp2p.runtime.prepare import prepare

        prepare(model.directory, dtype, "cpu")
        block = load_block(model.directory, layers, dtype=dtype, digests=model.manifest.digests(), progress=progress)
        block.warm_up()
        return block

    with progress_bar() as report:

        def progress(done: int, total: int) -> None:
            interrupts.check()
            report(f"loading layers {layers}", done, total)

        await trio.to_thread.run_sync(_import_runtime, abandon_on_cancel=True)
        block = await device.run(load)
    from shardp2p.stage.holding import Holding

    node.hold(model.name, block, device, Holding(model.manifest.digest, dtype, cache_rows), 0)


def _import_runtime() -> None:
    """Seconds: in a thread that holds up neither the network nor a signal."""
    import shardp2p.runtime.load
    import shardp2p.stage.worker  # noqa: F401


def _max_tokens(wish: Wish, prompt_tokens: int, plan: Plan) -> int:
    """What was asked for, or the default as far as the context has room after the prompt."""
    if wish.max_tokens is not None:
        return wish.max_tokens
    return max(1, min(DEFAULT_MAX_TOKENS, plan.context_tokens - prompt_tokens))


async def _read(stream: GenerationStream, text: TextStream, show: Show | None) -> tuple[Token, ...]:
    """Read to the end or to a stop string."""
    import trio

    tokens: list[Token] = []

    async def put(piece: str) -> None:
        if piece and show is not None:
            await trio.to_thread.run_sync(show, piece, abandon_on_cancel=True)

    async for batch in stream:
        tokens.extend(batch)
        await put(text.feed(batch))
        if text.is_stopped:
            break
    await put(text.finish())
    return tuple(tokens)


class Printer:
    """Shows an answer on stdout, and ends its last line."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self._before = before
        self._is_in_line = False

    def show(self, piece: str) -> None:
        """Write a piece of the text; `before` is called first."""
        self._before()
        self._is_in_line = not piece.endswith("\n")
        write(piece)

    def end(self) -> None:
        """Begin a new line, unless one has begun."""
        if self._is_in_line:
            self._is_in_line = False
            write("\n")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
