"""`shardp2p generate`: let a swarm, or a ring of peers, continue a text or answer a prompt."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from shardp2p.cli import options
from shardp2p.cli.askers import OpenAsker, ready_to_ask
from shardp2p.cli.asking import Answer, Asker, Printer, Wish
from shardp2p.cli.interrupts import interrupts
from shardp2p.cli.option_sets import AskOptions, taking
from shardp2p.cli.output import note, write_json
from shardp2p.cli.progress import progress_bar, waiting_bar
from shardp2p.cli.texts import read_prompt
from shardp2p.config import load_settings
from shardp2p.errors import ConfigError, IntegrityError, PeerUnavailableError, RemoteProtocolError
from shardp2p.weights.store import ModelStore

if TYPE_CHECKING:
    from shardp2p.runtime.tokenizer import TextStream, Tokenizer

RESTARTS = 2
"""How often an answer of which nothing was shown is begun anew when its ring breaks."""


@taking(AskOptions)
def generate(
    asked: AskOptions,
    model: options.AskedModel,
    prompt: options.Prompt,
    raw: options.Raw = False,
    as_json: options.AsJson = False,
) -> None:
    """Let a swarm, or a ring of peers, answer a prompt."""
    if prompt == asked.join == "-":
        raise ConfigError("standard input has room for one: the prompt, or the token of --join; give a file to --join")
    wish, text = asked.wish(), read_prompt(prompt)
    settings = load_settings(data_dir=asked.data_dir)
    with progress_bar() as report:
        stored = ModelStore(settings.paths.models_dir).resolve(model, report)
    from shardp2p.runtime.tokenizer import Tokenizer

    tokenizer = Tokenizer(stored.directory)
    question = _encode(tokenizer, text, is_raw=raw)
    with ready_to_ask(asked.join, wish, stored, settings) as open_asker:
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
        report = waiting.enter_context(waiting_bar())
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
