"""`shardp2p generate`: let a ring of peers continue a text or answer a prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardp2p.cli import options
from shardp2p.cli.interrupts import interrupts
from shardp2p.cli.output import note, write, write_json
from shardp2p.cli.progress import progress_bar
from shardp2p.cli.texts import read_prompt, to_text
from shardp2p.config import load_settings
from shardp2p.errors import ConfigError
from shardp2p.telemetry import configure_logging
from shardp2p.vocabulary import SamplingParams, Token
from shardp2p.weights.store import ModelStore, StoredModel

if TYPE_CHECKING:
    from shardp2p.coordinator.commands import FinishReason, Limits, Proposer
    from shardp2p.coordinator.stream import GenerationStream
    from shardp2p.node import Node
    from shardp2p.runtime.tokenizer import TextStream, Tokenizer
    from shardp2p.scheduler.plan import Plan

DRAFTS = ("none", "lookup")
DEFAULT_MAX_TOKENS = 256
DEFAULTS = SamplingParams()


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asks for. `max_tokens` None: as many as is usual."""

    prompt: str
    is_raw: bool
    peers: tuple[str, ...]
    max_tokens: int | None
    sampling: SamplingParams
    stop_strings: tuple[str, ...]
    proposer: Proposer | None
    limits: Limits
    is_quiet: bool


@dataclass(frozen=True, slots=True)
class Question:
    """A wish, and what it means in the tokens of a model."""

    wish: Wish
    model: StoredModel
    prompt_tokens: tuple[Token, ...]
    stop_tokens: frozenset[Token]


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
    model: options.AskedModel,
    prompt: options.Prompt,
    peer: options.Peers = None,
    max_tokens: options.MaxTokens = None,
    raw: options.Raw = False,
    stop: options.Stop = None,
    temperature: options.Temperature = DEFAULTS.temperature,
    top_k: options.TopK = DEFAULTS.top_k,
    top_p: options.TopP = DEFAULTS.top_p,
    min_p: options.MinP = DEFAULTS.min_p,
    repetition_penalty: options.RepetitionPenalty = DEFAULTS.repetition_penalty,
    frequency_penalty: options.FrequencyPenalty = DEFAULTS.frequency_penalty,
    presence_penalty: options.PresencePenalty = DEFAULTS.presence_penalty,
    logit_bias: options.LogitBias = None,
    seed: options.Seed = DEFAULTS.seed,
    draft: options.Draft = "none",
    depth: options.Depth = 1,
    data_dir: options.DataDir = None,
    as_json: options.AsJson = False,
    log_level: options.LogLevel = None,
) -> None:
    """Let a ring of peers answer a prompt."""
    configure_logging(log_level or "warning")
    bias = tuple(_parse_bias(text) for text in logit_bias or ())
    sampling = SamplingParams(
        temperature, top_k, top_p, min_p, repetition_penalty, frequency_penalty, presence_penalty, bias, seed
    )
    proposer, limits = _drafting(draft, depth)
    _check_peers(peer or ())
    wish = Wish(
        prompt=read_prompt(prompt),
        is_raw=raw,
        peers=tuple(peer or ()),
        max_tokens=max_tokens,
        sampling=sampling,
        stop_strings=tuple(to_text(text, "a --stop text") for text in stop or ()),
        proposer=proposer,
        limits=limits,
        is_quiet=as_json,
    )
    answer = _answer(wish, model, data_dir)
    if as_json:
        write_json(_object(answer))
    else:
        _show_end(answer)


def _answer(wish: Wish, model: str, data_dir: Path | None) -> Answer:
    """Turn the prompt into tokens, which needs the model's own files, and have them answered."""
    with progress_bar() as report:
        stored = ModelStore(load_settings(data_dir=data_dir).paths.models_dir).resolve(model, report)
    from shardp2p.runtime.tokenizer import TextStream, Tokenizer

    tokenizer = Tokenizer(stored.directory)
    question = Question(wish, stored, _encode(tokenizer, wish), tokenizer.stop_tokens)
    return interrupts.run(partial(_ask, question, TextStream(tokenizer, wish.stop_strings)))


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
        if not address.strip():
            raise ConfigError(f"a --peer is empty; {advice}")
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


def _encode(tokenizer: Tokenizer, wish: Wish) -> tuple[Token, ...]:
    if wish.is_raw or not tokenizer.has_chat_template:
        return tokenizer.encode(wish.prompt)
    return tokenizer.encode_chat([{"role": "user", "content": wish.prompt}])


async def _ask(question: Question, text: TextStream) -> Answer:
    """Find the ring, generate over it, and show the text as it comes."""
    from shardp2p.coordinator.request import GenerationRequest
    from shardp2p.identity.keys import Identity
    from shardp2p.node import open_node

    wish = question.wish
    with ExitStack() as waiting:
        report = waiting.enter_context(progress_bar())
        async with open_node(Identity.generate()) as node:
            report("asking the peers", 0, 0)
            plan = await _find_ring(node, question)
            request = GenerationRequest(
                question.prompt_tokens,
                _max_tokens(question, plan),
                question.stop_tokens,
                wish.sampling,
                question.model.manifest.vocab_size,
            )
            report("waiting for the first token", 0, 0)
            reader = _Reader(text, None if wish.is_quiet else waiting.close)
            async with node.generate(plan, request, proposer=wish.proposer, limits=wish.limits) as stream:
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
    from shardp2p.scheduler.route import recognise, route

    model = question.model
    members = await node.members(question.wish.peers)
    return route(model.name, recognise(model.name, model.manifest.digest, model.manifest.layers, members))


def _max_tokens(question: Question, plan: Plan) -> int:
    """What was asked for, or the default as far as the context has room after the prompt."""
    if question.wish.max_tokens is not None:
        return question.wish.max_tokens
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
    cut = "; cut at the most tokens allowed" if answer.finish_reason == "length" else ""
    note(
        f"{_count(len(answer.tokens), 'token')} in {_count(answer.laps, 'lap')} of "
        f"{_count(len(answer.plan.stages), 'stage')}, "
        f"{answer.tok_s:.1f} tokens/s, the first after {answer.ttft_s:.2f} s{cut}"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
