"""`shardp2p generate`: let a swarm, or a ring of peers, continue a text or answer a prompt."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from shardp2p.cli import options
from shardp2p.cli.askers import OpenAsker, ready_to_ask
from shardp2p.cli.asking import (
    DEFAULTS,
    Answer,
    Asker,
    Printer,
    Wish,
    check_peer_ids,
    check_peers,
    parse_biases,
    parse_drafting,
)
from shardp2p.cli.interrupts import interrupts
from shardp2p.cli.output import note, write_json
from shardp2p.cli.progress import progress_bar
from shardp2p.cli.texts import read_prompt, to_text
from shardp2p.config import load_settings
from shardp2p.errors import IntegrityError, PeerUnavailableError, RemoteProtocolError
from shardp2p.telemetry import configure_logging
from shardp2p.vocabulary import SamplingParams
from shardp2p.weights.store import ModelStore

if TYPE_CHECKING:
    from shardp2p.runtime.tokenizer import TextStream, Tokenizer

RESTARTS = 2
"""How often an answer of which nothing was shown is begun anew when its ring breaks."""


def generate(
    model: options.AskedModel,
    prompt: options.Prompt,
    join: options.Join = None,
    peer: options.Peers = None,
    only: options.Only = None,
    block: options.Block = None,
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
    local_driver: options.LocalDriver = False,
    local_layers: options.LocalLayers = 0,
    data_dir: options.DataDir = None,
    as_json: options.AsJson = False,
    log_level: options.LogLevel = None,
) -> None:
    """Let a swarm, or a ring of peers, answer a prompt."""
    configure_logging(log_level or "warning")
    penalties = (repetition_penalty, frequency_penalty, presence_penalty)
    sampling = SamplingParams(temperature, top_k, top_p, min_p, *penalties, parse_biases(logit_bias or ()), seed)
    kind, limits = parse_drafting(draft, depth)
    peers, text = check_peers(peer or ()), read_prompt(prompt)
    stops = tuple(to_text(text, "a --stop text") for text in stop or ())
    blocked, allowed = check_peer_ids(block or (), "--block"), check_peer_ids(only or (), "--only")
    wish = Wish(peers, max_tokens, sampling, stops, kind, limits, local_driver, local_layers, blocked, allowed)
    settings = load_settings(data_dir=data_dir)
    with progress_bar() as report:
        stored = ModelStore(settings.paths.models_dir).resolve(model, report)
    from shardp2p.runtime.tokenizer import Tokenizer

    tokenizer = Tokenizer(stored.directory)
    question = _encode(tokenizer, text, is_raw=raw)
    with ready_to_ask(join, wish, stored, settings) as open_asker:
        answer = interrupts.run(partial(_ask, open_asker, wish, tokenizer, question, is_quiet=as_json))
    if as_json:
        write_json(_object(answer))
    else:
        note(answer.account())


def _encode(tokenizer: Tokenizer, prompt: str, *, is_raw: bool) -> tuple[int, ...]:
    if is_raw or not tokenizer.has_chat_template:
        return tokenizer.encode(prompt)
    return tokenizer.encode_chat([{"role": "user", "content": prompt}])


async def _ask(
    open_asker: OpenAsker, wish: Wish, tokenizer: Tokenizer, question: tuple[int, ...], *, is_quiet: bool
) -> Answer:
    from shardp2p.runtime.tokenizer import TextStream

    async with open_asker() as asker:
        restarts = RESTARTS if is_quiet else 0
        while True:
            text = TextStream(tokenizer, wish.stop_strings)
            try:
                return await _ask_once(asker, question, tokenizer.stop_tokens, text, is_quiet=is_quiet)
            except (PeerUnavailableError, RemoteProtocolError, IntegrityError):
                # A swarm has other rings; where not even the beginning of an answer came, they were tried.
                if not (restarts and text.text):
                    raise
                restarts -= 1


async def _ask_once(
    asker: Asker, question: tuple[int, ...], stop_tokens: frozenset[int], text: TextStream, *, is_quiet: bool
) -> Answer:
    with ExitStack() as waiting:
        report = waiting.enter_context(progress_bar())
        printer = Printer(waiting.close)
        try:
            return await asker.ask(question, stop_tokens, text, report=report, show=None if is_quiet else printer.show)
        finally:
            printer.end()


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
