"""`shardp2p chat`: talk with a model that a swarm, or a ring of peers, runs, turn by turn."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from shardp2p.cli import options
from shardp2p.cli.askers import OpenAsker, ready_to_ask
from shardp2p.cli.asking import (
    DEFAULTS,
    Asker,
    Printer,
    Wish,
    check_peer_ids,
    check_peers,
    parse_biases,
    parse_drafting,
)
from shardp2p.cli.interrupts import interrupts
from shardp2p.cli.output import note, one_line, write
from shardp2p.cli.progress import progress_bar
from shardp2p.cli.texts import to_text
from shardp2p.config import load_settings
from shardp2p.errors import ConfigError, LocalProtocolError, ShardError
from shardp2p.telemetry import configure_logging
from shardp2p.vocabulary import SamplingParams, Token
from shardp2p.weights.store import ModelStore

if TYPE_CHECKING:
    from shardp2p.runtime.tokenizer import Tokenizer

MAX_LINE_CHARACTERS = 1 << 20
"""Of one thing said: more than any context has room for."""


def chat(
    model: options.AskedModel,
    join: options.Join = None,
    peer: options.Peers = None,
    only: options.Only = None,
    block: options.Block = None,
    max_tokens: options.MaxTokens = None,
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
    draft: options.Draft = "lookup",
    depth: options.Depth = 1,
    local_driver: options.LocalDriver = False,
    local_layers: options.LocalLayers = 0,
    data_dir: options.DataDir = None,
    log_level: options.LogLevel = None,
) -> None:
    """Talk with a model. Ctrl-C stops an answer; a second one, or Ctrl-D, leaves."""
    configure_logging(log_level or "warning")
    bias = parse_biases(logit_bias or ())
    sampling = SamplingParams(
        temperature, top_k, top_p, min_p, repetition_penalty, frequency_penalty, presence_penalty, bias, seed
    )
    kind, limits = parse_drafting(draft, depth)
    peers = check_peers(peer or ())
    stops = tuple(to_text(text, "a --stop text") for text in stop or ())
    blocked, allowed = check_peer_ids(block or (), "--block"), check_peer_ids(only or (), "--only")
    wish = Wish(peers, max_tokens, sampling, stops, kind, limits, local_driver, local_layers, blocked, allowed)
    settings = load_settings(data_dir=data_dir)
    with progress_bar() as report:
        stored = ModelStore(settings.paths.models_dir).resolve(model, report)
    from shardp2p.runtime.tokenizer import Tokenizer

    tokenizer = Tokenizer(stored.directory)
    if not tokenizer.has_chat_template:
        raise ConfigError(f"{stored.name} has no chat template; let `shardp2p generate --raw` continue a text instead")
    with ready_to_ask(join, wish, stored, settings) as open_asker:
        interrupts.run(partial(_talk, open_asker, wish, tokenizer))


async def _talk(open_asker: OpenAsker, wish: Wish, tokenizer: Tokenizer) -> None:
    async with open_asker() as asker:
        plan = await asker.find_ring()
        interrupts.is_serving = True  # Ctrl-C is the normal way out
        conversation = Conversation(tokenizer, plan.context_tokens)
        while (said := await _listen()) is not None:
            if said.strip():
                conversation.say(said)
                await _answer(asker, conversation, tokenizer, wish)


class Conversation:
    """What was said so far, as far as the model's context has room for it."""

    def __init__(self, tokenizer: Tokenizer, context_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._context_tokens = context_tokens
        self._messages: list[dict[str, str]] = []

    def say(self, text: str) -> None:
        """The user's next words."""
        self._messages.append({"role": "user", "content": text})

    def hear(self, text: str) -> None:
        """The model's answer to them, or as much of it as was wanted."""
        self._messages.append({"role": "assistant", "content": text})

    def take_back(self) -> None:
        """Forget what was said last: nobody answered it."""
        self._messages.pop()

    def prompt(self, room_tokens: int) -> tuple[Token, ...]:
        """The whole of it as tokens, without the oldest exchanges where `room_tokens` would not be left."""
        tokens = self._tokenizer.encode_chat(self._messages)
        while len(tokens) + room_tokens > self._context_tokens and len(self._messages) > 2:
            del self._messages[:2]
            note("(the beginning of the conversation has no room any more and is forgotten)")
            tokens = self._tokenizer.encode_chat(self._messages)
        return tokens


async def _answer(asker: Asker, conversation: Conversation, tokenizer: Tokenizer, wish: Wish) -> None:
    """Have the last words answered. A failure is told, and the talk goes on."""
    import trio

    from shardp2p.runtime.tokenizer import TextStream

    text = TextStream(tokenizer, wish.stop_strings)
    with ExitStack() as waiting:
        report = waiting.enter_context(progress_bar())
        printer = Printer(waiting.close)
        try:
            with trio.CancelScope() as answering, interrupts.first_means(answering.cancel):
                prompt = conversation.prompt(wish.max_tokens or 1)
                await asker.ask(prompt, tokenizer.stop_tokens, text, report=report, show=printer.show)
        except LocalProtocolError:
            raise
        except ShardError as error:
            printer.end()
            note(f"shardp2p: error: {one_line(error.message)}")
            if not sys.stdin.isatty():
                raise
        finally:
            printer.end()
    if text.text:
        conversation.hear(text.text)
    else:
        conversation.take_back()


async def _listen() -> str | None:
    """What the user says next; None at the end of stdin."""
    import trio

    if sys.stdin.isatty():
        write("> ")
    # In a thread that may be left behind: a signal that ends us does not wait for a line.
    line = await trio.to_thread.run_sync(_read_line, abandon_on_cancel=True)
    if not line:
        if sys.stdin.isatty():
            write("\n")
        return None
    return line.removesuffix("\n")


def _read_line() -> str:
    try:
        line = sys.stdin.buffer.readline(4 * MAX_LINE_CHARACTERS).decode()
    except UnicodeError as error:
        raise ConfigError("what was said is not UTF-8 text") from error
    except OSError as error:
        raise ConfigError(f"cannot read standard input: {error.strerror}") from error
    return line
