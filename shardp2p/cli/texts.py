"""Texts that a user gives on the command line or on standard input, whatever the locale makes of their bytes."""

from __future__ import annotations

import os
import sys

from shardp2p.errors import ConfigError


def to_text(argument: str, what: str) -> str:
    """The text of a command-line argument. Raises: ConfigError that names it as `what` if it is no UTF-8."""
    try:
        try:
            return argument.encode().decode()
        except UnicodeEncodeError:
            # Bytes that the locale has no character for hide in surrogates; they may be UTF-8 all the same.
            return os.fsencode(argument).decode()
    except UnicodeError as error:
        raise ConfigError(f"{what} is not UTF-8 text") from error


def read_prompt(argument: str) -> str:
    """The prompt that was given, or for - all of stdin without the newline at its end.

    Raises: ConfigError for an empty one, and for one that is no UTF-8 text.
    """
    if argument != "-":
        text = to_text(argument, "the prompt")
    else:
        try:
            text = sys.stdin.buffer.read().decode().removesuffix("\n")
        except UnicodeError as error:
            raise ConfigError("the prompt is not UTF-8 text") from error
        except OSError as error:
            raise ConfigError(f"cannot read the prompt from standard input: {error.strerror}") from error
    if not text.strip():
        raise ConfigError("the prompt is empty; give some text, or - and a text on standard input")
    return text
