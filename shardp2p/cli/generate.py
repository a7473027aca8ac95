"""`shardp2p generate`: let a ring of peers continue a text or answer a prompt."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardp2p.cli.interrupts import interrupts
from shardp2p.cli.options import AsJson, DataDir, LogLevel
from shardp2p.cli.output import note, write, write_json
from shardp2p.cli.progress import progress_bar
from shardp2p.config import load_settings
from shardp2p.errors import ConfigError
from shardp2p.telemetry import configure_logging
from shardp2p.vocabulary import SamplingParams, Token
from shardp2p.weights.store import ModelStore, StoredModel

if TYPE_CHECKING:
    from shardp2p.coordinator.commands import FinishReason, Limits, Proposer
    from shardp2p.coordinator.driver import GenerationStream
    from shardp2p.node import Node
    from shardp2p.runtime.tokenizer import TextStream, Tokenizer
    from shardp2p.scheduler.plan import Plan

DRAFTS = ("none", "lookup")
DEFAULT_MAX_TOKENS = 256
DEFAULTS = SamplingParams()


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of whom, checked as far as this machine alone can tell. `max_tokens` None: no wish."""

    model: StoredModel
    tokenizer: Tokenizer
    prompt_tokens: tuple[Token, ...]
    peers: tuple[str, ...]
    max_tokens: int | None
    sampling: SamplingParams
    stop_strings: tuple[str, ...]
    proposer: Proposer | None
    limits: Limits
    is_quiet: bool


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


def generate(
    model: Annotated[str, typer.Argument(help="A model in the store, or a directory.", show_default=False)],
    prompt: Annotated[str, typer.Argument(help="What to ask or continue; - reads it from stdin.", show_default=False)],
    peer: Annotated[
        list[str] | None,
        typer.Option("--peer", metavar="MULTIADDR", help="A peer of the ring, as it prints it; repeat for each."),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option("--max-tokens", min=1, help=f"How long the answer may be. Default: {DEFAULT_MAX_TOKENS}."),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the prompt as it is, without the chat template.")
    ] = False,
    stop: Annotated[list[str] | None, typer.Option("--stop", metavar="TEXT", help="End before this text.")] = None,
    temperature: Annotated[float, typer.Option(help="0: always the likeliest token.")] = DEFAULTS.temperature,
    top_k: Annotated[int, typer.Option(help="Choose among so many tokens; 0: all.")] = DEFAULTS.top_k,
    top_p: Annotated[float, typer.Option(help="Choose among the likeliest with this share.")] = DEFAULTS.top_p,
    min_p: Annotated[float, typer.Option(help="Drop what is this much less likely than the best.")] = DEFAULTS.min_p,
    repetition_penalty: Annotated[
        float, typer.Option(help="Above 1: avoid what the text has.")
    ] = DEFAULTS.repetition_penalty,
    frequency_penalty: Annotated[
        float, typer.Option(help="Above 0: avoid what the answer has, by count.")
    ] = DEFAULTS.frequency_penalty,
    presence_penalty: Annotated[
        float, typer.Option(help="Above 0: avoid what the answer has.")
    ] = DEFAULTS.presence_penalty,
    logit_bias: Annotated[
        list[str] | None, typer.Option("--logit-bias", metavar="TOKEN:BIAS", help="Favour a token id, or ban it.")
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Another seed, another answer; matters above temperature 0.")
    ] = DEFAULTS.seed,
    draft: Annotated[
        str, typer.Option("--draft", help="lookup: guess from the text so far. none: token by token.")
    ] = "none",
    depth: Annotated[int, typer.Option("--depth", min=1, help="Chunks of drafts in the ring at once.")] = 4,
    data_dir: DataDir = None,
    as_json: AsJson = False,
    log_level: LogLevel = None,
) -> None:
    """Let a ring of peers answer a prompt."""
    configure_logging(log_level or "warning")
    sampling = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        frequency_penalty=frequency_penalty,
        presence_penalty=presence_penalty,
        logit_bias=tuple(_parse_bias(text) for text in logit_bias or ()),
        seed=seed,
    )
    _check_peers(peer or ())
    proposer, limits = _drafting(draft, depth)
    text = _read_prompt(prompt)
    with progress_bar() as report:
        stored = ModelStore(load_settings(data_dir=data_dir).paths.models_dir).resolve(model, report)
    from shardp2p.runtime.tokenizer import TextStream, Tokenizer

    tokenizer = Tokenizer(stored.directory)
    question = Question(
        model=stored,
        tokenizer=tokenizer,
        prompt_tokens=_encode(tokenizer, text, is_raw=raw),
        peers=tuple(peer or ()),
        max_tokens=max_tokens,
        sampling=sampling,
        stop_strings=tuple(stop or ()),
        proposer=proposer,
        limits=limits,
        is_quiet=as_json,
    )
    answer = interrupts.run(partial(_ask, question, TextStream(tokenizer, question.stop_strings)))
    if as_json:
        write_json(_object(answer))
    else:
        _show_end(answer)


def _parse_bias(text: str) -> tuple[Token, float]:
    token, _, bias = text.partition(":")
    try:
        return int(token), float(bias)
    except ValueError:
        raise ConfigError(f"--logit-bias {text!r} is no TOKEN:BIAS; write a token id and a number, as 42:-5") from None


def _check_peers(addresses: Sequence[str]) -> None:
    """Refuse what is no address of a peer, before anything slow begins."""
    from shardp2p.host.addresses import parse_address

    advice = "name each peer of the ring with --peer ADDRESS, as its `shardp2p up` prints it"
    if not addresses:
        raise ConfigError(f"no peer is named; {advice}")
    for address in addresses:
        if parse_address(address).peer is None:
            raise ConfigError(f"{address} names no peer, for it does not end in /p2p/PEER-ID; {advice}")


def _drafting(draft: str, depth: int) -> tuple[Proposer | None, Limits]:
    """Who proposes, and how much may be under way."""
    from shardp2p.coordinator.commands import Limits
    from shardp2p.runtime.draft import PromptLookup
    from shardp2p.wire.credit import INITIAL_CREDITS

    if draft not in DRAFTS:
        raise ConfigError(f"--draft is {draft!r}; it must be one of {', '.join(DRAFTS)}")
    if depth > INITIAL_CREDITS:
        raise ConfigError(f"--depth is {depth}; it must be at most {INITIAL_CREDITS}")
    return (PromptLookup() if draft == "lookup" else None), Limits(max_chunks=depth)


def _read_prompt(prompt: str) -> str:
    """The prompt that was given, or stdin without the newline at its end. Raises: ConfigError for an empty one."""
    try:
        # What the shell passes on is not always UTF-8; Python hides such bytes in surrogates.
        text = prompt.encode().decode() if prompt != "-" else sys.stdin.buffer.read().decode().removesuffix("\n")
    except UnicodeError as error:
        raise ConfigError("the prompt is not UTF-8 text") from error
    if not text.strip():
        raise ConfigError("the prompt is empty; give some text, or - and a text on standard input")
    return text


def _encode(tokenizer: Tokenizer, text: str, *, is_raw: bool) -> tuple[Token, ...]:
    if is_raw or not tokenizer.has_chat_template:
        return tokenizer.encode(text)
    return tokenizer.encode_chat([{"role": "user", "content": text}])


async def _ask(question: Question, text: TextStream) -> Answer:
    """Find the ring, generate over it, and show the text as it comes."""
    from shardp2p.coordinator.driver import GenerationRequest
    from shardp2p.identity.keys import Identity
    from shardp2p.node import open_node

    with ExitStack() as waiting:
        report = waiting.enter_context(progress_bar())
        async with open_node(Identity.generate()) as node:
            report("asking the peers", 0, 0)
            plan = await _find_ring(node, question)
            request = GenerationRequest(
                question.prompt_tokens, _max_tokens(question, plan), question.tokenizer.stop_tokens, question.sampling
            )
            report("waiting for the first token", 0, 0)
            reader = _Reader(text, None if question.is_quiet else waiting.close)
            async with node.generate(plan, request, proposer=question.proposer, limits=question.limits) as stream:
                await reader.read(stream)
    result = stream.result
    return Answer(
        plan=plan,
        text=text.text,
        tokens=tuple(reader.tokens),
        # Without a finish it was us who ended it, at a stop string.
        finish_reason=result.finish.reason if result.finish and not text.is_stopped else "stop",
        tok_s=reader.tok_s,
        ttft_s=result.ttft_s or 0.0,
        laps=result.finish.laps if result.finish else len(result.laps),
    )


async def _find_ring(node: Node, question: Question) -> Plan:
    """The ring through the peers that were named. Raises: ConfigError if they run other weights than ours."""
    from shardp2p.scheduler.route import route

    model = question.model
    members = await node.members(question.peers)
    # A model is known by its digest; its name is each machine's own.
    named = [
        replace(member, info=replace(member.info, model=model.name))
        if member.info.model_digest == model.manifest.digest
        else member
        for member in members
    ]
    plan = route(model.name, named)
    if plan.model_digest != model.manifest.digest:
        raise ConfigError(
            f"the peers serve other weights as {model.name} ({plan.model_digest[:12]}) than are stored here "
            f"({model.manifest.digest[:12]}); the text could not be read: use the same model on both sides"
        )
    return plan


def _max_tokens(question: Question, plan: Plan) -> int:
    """What was asked for, or the default as far as the context has room after the prompt."""
    if question.max_tokens is not None:
        return question.max_tokens
    return max(1, min(DEFAULT_MAX_TOKENS, plan.context_tokens - len(question.prompt_tokens)))


class _Reader:
    """Reads an answer, shows it if wanted, and times it. `before_text` is called before anything is shown."""

    def __init__(self, text: TextStream, before_text: Callable[[], None] | None) -> None:
        self.tokens: list[Token] = []
        self.tok_s = 0.0
        self._text = text
        self._before_text = before_text
        self._is_in_line = False

    async def read(self, stream: GenerationStream) -> None:
        """Read to the end or to a stop string."""
        import trio

        first_batch, first_at = 0, 0.0
        try:
            async for batch in stream:
                now = trio.current_time()
                if not self.tokens:
                    first_batch, first_at = len(batch), now
                self.tokens.extend(batch)
                if now > first_at:
                    self.tok_s = (len(self.tokens) - first_batch) / (now - first_at)
                await self._show(self._text.feed(batch))
                if self._text.is_stopped:
                    break
            await self._show(self._text.finish())
        finally:
            if self._is_in_line:
                write("\n")

    async def _show(self, piece: str) -> None:
        import trio

        if not piece or self._before_text is None:
            return
        self._before_text()
        self._is_in_line = not piece.endswith("\n")
        # In a thread, because whoever reads our output may take a long time; the ring does not wait for that.
        await trio.to_thread.run_sync(write, piece, abandon_on_cancel=True)


def _object(answer: Answer) -> dict[str, Any]:
    """What --json says."""
    return {
        "model": answer.plan.model,
        "text": answer.text,
        "tokens": list(answer.tokens),
        "finish_reason": answer.finish_reason,
        "tok_s": round(answer.tok_s, 3),
        "ttft_s": round(answer.ttft_s, 4),
        "laps": answer.laps,
        "accepted_per_lap": round(answer.accepted_per_lap, 3),
        "stages": [
            {"peer_id": stage.peer_id, "layers": [stage.layers.start, stage.layers.stop]}
            for stage in answer.plan.stages
        ],
    }


def _show_end(answer: Answer) -> None:
    ended = {"length": "; cut at the most tokens allowed"}.get(answer.finish_reason, "")
    note(
        f"{len(answer.tokens)} tokens in {answer.laps} laps of {len(answer.plan.stages)} stages, "
        f"{answer.tok_s:.1f} tokens/s, the first after {answer.ttft_s:.2f} s{ended}"
    )
