"""`shardp2p chat`: talk with a model that a swarm, or a ring of peers, runs, turn by turn."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from shardp2p.cli import options
from shardp2p.cli.askers import OpenAsker, ready_to_ask
from shardp2p.cli.asking import Asker, Printer, Wish
from shardp2p.cli.hints import hinted
from shardp2p.cli.interrupts import interrupts
from shardp2p.cli.option_sets import AskOptions, taking
from shardp2p.cli.output import note, one_line, write
from shardp2p.cli.progress import progress_bar, waiting_bar
from shardp2p.config import load_settings
from shardp2p.errors import ConfigError, LocalProtocolError, ShardError
from shardp2p.vocabulary import Token
from shardp2p.weights.store import ModelStore

if TYPE_CHECKING:
    from shardp2p.runtime.tokenizer import Tokenizer

MAX_LINE_CHARACTERS = 1 << 20
"""Of one thing said: more than any context has room for."""


@taking(AskOptions, draft="lookup")
def chat(asked: AskOptions, model: options.AskedModel) -> None:
    """Talk with a model. Ctrl-C stops an answer; a second one, or Ctrl-D, leaves."""
    wish = asked.wish()
    settings = load_settings(data_dir=asked.data_dir)
    with progress_bar() as report:
        stored = ModelStore(settings.paths.models_dir).resolve(model, report)
    from shardp2p.runtime.tokenizer import Tokenizer

    tokenizer = Tokenizer(stored.directory)
    if not tokenizer.has_chat_template:
        raise ConfigError(f"{stored.name} has no chat template; let `shardp2p generate --raw` continue a text instead")
    with ready_to_ask(asked.join, wish, stored, settings) as open_asker:
        interrupts.run(partial(_talk, open_asker, wish, tokenizer))


async def _talk(open_asker: OpenAsker, wish: Wish, tokenizer: Tokenizer) -> None:
    async with open_asker() as asker:
        plan = await asker.find_ring()
        if asker.swarm:
            note(f"(the swarm {one_line(asker.swarm)} answers)")
        if sys.stdin.isatty():
            note("(Ctrl-C stops an answer, Ctrl-D leaves)")
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
        report = waiting.enter_context(waiting_bar())
        printer = Printer(waiting.close)
        try:
            with trio.CancelScope() as answering, interrupts.first_means(answering.cancel):
                prompt = conversation.prompt(wish.max_tokens or 1)
                await asker.ask(prompt, tokenizer.stop_tokens, text, report=report, show=printer.show)
        except LocalProtocolError:
            raise
        except ShardError as error:
            printer.end()
            note(f"shardp2p: error: {one_line(hinted(error.message))}")
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
