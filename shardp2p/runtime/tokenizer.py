"""Text to token ids and back, as a model's directory says. Knows no torch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import tokenizers

from shardp2p.errors import ConfigError, IntegrityError
from shardp2p.vocabulary import Token

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""What a decoder gives for the bytes of an unfinished character."""

_TEMPLATE_FAILURES = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What the expressions of a template raise: it is a program, and comes with the model."""


class Tokenizer:
    """The tokenizer, chat template and stop tokens of a Hugging Face model directory."""

    def __init__(self, directory: Path) -> None:
        path = directory / "tokenizer.json"
        if not path.exists():
            raise ConfigError(f"{directory} has no tokenizer.json; token ids cannot be made from text without it")
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower
            raise IntegrityError(f"{path} is damaged: {error}; import the model again") from error
        self._settings = _read_json(directory / "tokenizer_config.json")
        template = directory / "chat_template.jinja"
        self._template = _read_text(template) if template.exists() else self._settings.get("chat_template")
        self.stop_tokens = _stop_tokens(directory)

    @property
    def has_chat_template(self) -> bool:
        """Whether the model says how a conversation is written."""
        return isinstance(self._template, str)

    @property
    def vocabulary(self) -> dict[str, Token]:
        """Every token's id, those that were added included."""
        return dict(self._tokenizer.get_vocab(with_added_tokens=True))

    @property
    def special_tokens(self) -> dict[Token, str]:
        """The tokens that no text is made of, and what each is written as."""
        added = self._tokenizer.get_added_tokens_decoder()
        return {token: str(one.content) for token, one in added.items() if one.special}

    def encode(self, text: str) -> tuple[Token, ...]:
        """The ids of plain text, with what the tokenizer itself adds around it."""
        return tuple(self._tokenizer.encode(text).ids)

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> tuple[Token, ...]:
        """The ids of a conversation (`role` and `content` each) up to where the assistant's answer begins.

        Raises: ConfigError when the model has no chat template or the template refuses the messages.
        """
        from jinja2 import TemplateError  # costs a tenth of a second
        from transformers.utils.chat_template_utils import render_jinja_template

        if not isinstance(self._template, str):
            raise ConfigError("this model has no chat template; use plain text (--raw)")
        special = {k: _content(v) for k, v in self._settings.items() if k.endswith("_token") and v is not None}
        try:
            rendered, _ = cast(
                tuple[list[str], Any],
                render_jinja_template(
                    conversations=[list(messages)], chat_template=self._template, add_generation_prompt=True, **special
                ),
            )
            return tuple(self._tokenizer.encode(rendered[0], add_special_tokens=False).ids)
        except (TemplateError, *_TEMPLATE_FAILURES) as error:
            raise ConfigError(f"the model's chat template refuses these messages: {error}") from error

    def decode(self, tokens: Iterable[Token]) -> str:
        """The text of `tokens` without special ones."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))


class TextStream:
    """Text from tokens that come bit by bit, cut at the first stop string.

    Characters that are not finished, and an end that may be the beginning of a stop string, are held back.
    """

    def __init__(self, tokenizer: Tokenizer, stop_strings: Sequence[str] = ()) -> None:
        if any(not stop for stop in stop_strings):
            raise ConfigError("a stop string is empty; leave it out, or give at least one character")
        self._tokenizer = tokenizer
        self._stops = tuple(stop_strings)
        self._tokens: list[Token] = []
        self._shown = 0  # tokens whose text is in `_text` for good
        self._context = 0  # where decoding begins, so that spaces between tokens come out right
        self._text = ""
        self._given = 0
        self.is_stopped = False

    @property
    def text(self) -> str:
        """All text so far that was given out."""
        return self._text[: self._given]

    def feed(self, tokens: Iterable[Token]) -> str:
        """Take more tokens; gives the new text that is certain. After a stop string nothing comes any more."""
        if not self.is_stopped:
            self._tokens.extend(tokens)
            self._decode(is_last=False)
            self._cut()
        return self._give(0 if self.is_stopped else self._held_back())

    def finish(self) -> str:
        """The rest of the text, now that no token will come."""
        if not self.is_stopped:
            self._decode(is_last=True)
            self._cut()
        return self._give(0)

    def _decode(self, *, is_last: bool) -> None:
        before = self._tokenizer.decode(self._tokens[self._context : self._shown])
        now = self._tokenizer.decode(self._tokens[self._context :])
        if len(now) > len(before) and (is_last or not now.endswith(REPLACEMENT)):
            self._text += now[len(before) :]
            self._context, self._shown = self._shown, len(self._tokens)

    def _cut(self) -> None:
        """Cut at the stop string that ends first, the longest of them: so it does not matter how tokens are batched."""
        found = [(at + len(stop), at) for stop in self._stops if (at := self._text.find(stop, self._given)) >= 0]
        if found:
            _, at = min(found)
            self._text = self._text[:at]
            self.is_stopped = True

    def _held_back(self) -> int:
        """How many characters at the end may be the beginning of a stop string."""
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(self._text)), longest, -1):
                if self._text.endswith(stop[:length]):
                    longest = length
                    break
        return longest

    def _give(self, held_back: int) -> str:
        end = max(self._given, len(self._text) - held_back)
        piece, self._given = self._text[self._given : end], end
        return piece


def _content(value: Any) -> Any:
    """A special token's text; some files write it as an object."""
    return value.get("content") if isinstance(value, dict) else value


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise IntegrityError(f"{path} is damaged: {error}; import the model again") from error


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        value = json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{path} is damaged: {error}; import the model again") from error
    return value if isinstance(value, dict) else {}


def _stop_tokens(directory: Path) -> frozenset[Token]:
    for name in ("generation_config.json", "config.json"):
        said = _read_json(directory / name).get("eos_token_id")
        ids = said if isinstance(said, list) else [] if said is None else [said]
        if any(type(token) is not int for token in ids):
            raise IntegrityError(
                f"{directory / name} is damaged: eos_token_id is {said!r}, and no token id; import the model again"
            )
        if ids:
            return frozenset(ids)
    return frozenset()
